"""`vivavoce export`: a model's networks in the format of another runtime."""

from __future__ import annotations

from pathlib import Path

from vivavoce.cli import flags
from vivavoce.cli.console import Reporter, size_text
from vivavoce.cli.flags import REQUIRED, command, flag, group
from vivavoce_export.commands import export_networks, export_trtllm


def hf(
    out: Path = flag("The folder to make.", "FOLDER", "-o", default=REQUIRED),
    model: flags.ModelOption = None,
    dtype: str = flag("auto (the model's own), float32, float16 or bfloat16.", "NAME", default="auto"),
    variant: flags.VariantOption = None,
    force: bool = flag("Replace an earlier export.", default=False),
    quiet: flags.QuietOption = False,
) -> None:
    """Write the language model for transformers, vLLM and the like.

    Text and speech become one vocabulary of one Hugging Face Qwen2 model.
    """
    reporter = Reporter(quiet)
    with reporter.working("starting …"):
        from vivavoce.checkpoint.folder import BACKBONE
        from vivavoce.frontend.model_choice import model_folder
        from vivavoce.frontend.text.tokenizer import TextTokenizer
        from vivavoce_export.hf_folder import export_hf

        folder = model_folder(model)
        tokenizer = TextTokenizer.from_folder(folder / BACKBONE)
    with reporter.working("converting …"):
        export = export_hf(folder, out, tokenizer.to_json(), dtype=dtype, variant=variant, force=force)
    reporter.report(
        f"{out}: {export.vocabulary.padded_size:,} ids ({export.vocabulary.text_size:,} of text), "
        f"{str(export.dtype).removeprefix('torch.')}, {size_text(export.num_bytes)}"
    )
    reporter.note("the speech head's bias is in embedding_bias.npy: what serves the folder must add it to the logits")


EXAMPLES = (
    "vivavoce export hf --model CosyVoice2-0.5B --out ./cosyvoice2_llm",
    "vivavoce export hf --model ./CosyVoice2-0.5B --out ./llm16 --dtype bfloat16 --force",
)
app = group(
    "Write networks for other runtimes: transformers, vLLM, TensorRT-LLM, ONNX Runtime, TensorRT.",
    EXAMPLES[0],
    *export_trtllm.EXAMPLES[:2],
    export_networks.EXAMPLES[0],
)
command(app, *EXAMPLES, name="hf")(hf)
command(app, *export_trtllm.EXAMPLES, name="trtllm")(export_trtllm.trtllm)
for kind, function in export_networks.COMMANDS.items():
    command(app, *(line for line in export_networks.EXAMPLES if f" {kind} " in line), name=kind)(function)
