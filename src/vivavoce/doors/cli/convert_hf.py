"""`vivavoce convert hf`: the language model as a Hugging Face Qwen2 folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vivavoce.doors.cli import options
from vivavoce.doors.cli.console import Reporter, size_text

EXAMPLES = options.examples(
    "vivavoce convert hf --model CosyVoice2-0.5B --out ./cosyvoice2_llm",
    "vivavoce convert hf --model ./CosyVoice2-0.5B --out ./llm16 --dtype bfloat16 --force",
)


def convert_hf(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="The folder to make.")],
    model: options.ModelOption = None,
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="NAME", help="auto (the model's own), float32, float16 or bfloat16.")
    ] = "auto",
    variant: options.VariantOption = None,
    force: Annotated[bool, typer.Option("--force", help="Take the place of an earlier export.")] = False,
    quiet: options.QuietOption = False,
) -> None:
    """Write the language model for transformers, vLLM and the like.

    Text and speech become one vocabulary of one Hugging Face Qwen2 model.
    """
    reporter = Reporter(quiet)
    with reporter.working("starting …"):
        from vivavoce.checkpoint.folder import BACKBONE
        from vivavoce.export.hf.write import export_hf
        from vivavoce.service.default_model import model_folder
        from vivavoce.service.text.tokenizer import TextTokenizer

        folder = model_folder(model)
        tokenizer = TextTokenizer.from_folder(folder / BACKBONE)
    with reporter.working("converting …"):
        export = export_hf(folder, out, tokenizer.to_json(), dtype=dtype, variant=variant, force=force)
    reporter.report(
        f"{out}: {export.vocabulary.padded_size:,} ids ({export.vocabulary.text_size:,} of text), "
        f"{str(export.dtype).removeprefix('torch.')}, {size_text(export.num_bytes)}"
    )
    reporter.note("the speech head's bias is in embedding_bias.npy: what serves the folder must add it to the logits")
