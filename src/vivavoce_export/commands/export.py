"""`vivavoce export`: write a model's networks in the format of another runtime."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vivavoce.cli import flags
from vivavoce.cli.console import Reporter, size_text
from vivavoce.cli.flags import REQUIRED, command, flag, group
from vivavoce.errors import InvalidRequest
from vivavoce_export.commands import export_trtllm

NETWORK_EXAMPLES = (
    "vivavoce export onnx --model CosyVoice2-0.5B",
    "vivavoce export jit --model CosyVoice2-0.5B --parts estimator,encoder",
    "vivavoce export aoti --model CosyVoice2-0.5B --device cuda --dtype fp16",
    "vivavoce export tensorrt --model CosyVoice2-0.5B --dtype fp16",
)


@dataclass(frozen=True)
class ExportFlags:
    model: flags.ModelOption = None
    parts: str = flag("Networks to export: estimator, encoder, vocoder, lm.", "A,B", default="estimator")
    dtype: str = flag("Precision: fp32 or fp16.", "NAME", default="fp32")
    device: flags.DeviceOption = "auto"
    out: Path | None = flag("Existing folder for the files. [default: the model's]", "FOLDER", "--out", "--into", "-o")
    quiet: flags.QuietOption = False


def exporter(kind: str, what: str) -> Callable[[ExportFlags], None]:
    def export(wanted: ExportFlags) -> None:
        _export(kind, wanted)

    export.__doc__ = f"{what}\n\nEach file's outputs are compared with PyTorch's. A file that differs is deleted."
    return export


COMMANDS: dict[str, Callable[..., None]] = {
    "onnx": exporter("onnx", "Write networks as ONNX, for ONNX Runtime and TensorRT; needs vivavoce[onnx]."),
    "jit": exporter("jit", "Write networks as TorchScript, for the device that will run them."),
    "aoti": exporter("aoti", "Compile networks for a device with AOTInductor; needs a C++ compiler."),
    "tensorrt": exporter("tensorrt", "Build a TensorRT 10 engine of the estimator for this GPU, from its ONNX file."),
}


def _export(kind: str, wanted: ExportFlags) -> None:
    reporter, out = Reporter(wanted.quiet), wanted.out
    with reporter.working("starting …"):
        from vivavoce.frontend.model_choice import choose_device, model_folder
        from vivavoce.models.build import build_models
        from vivavoce_export.network_files import check_parts, export_part, part_of
        from vivavoce_runtimes.files import PRECISIONS

        names = check_parts(kind, wanted.parts)
        if out is not None and not out.is_dir():
            raise InvalidRequest(f"out: {out} is not a folder; create it, or leave --out out")
        if wanted.dtype not in PRECISIONS:
            raise InvalidRequest(f"dtype: {wanted.dtype!r} is unknown; use {' or '.join(PRECISIONS)}")
        device = choose_device("cuda" if kind == "tensorrt" else wanted.device)
        folder, dtype = model_folder(wanted.model), PRECISIONS[wanted.dtype]
        models = build_models(folder, device, dtype, language_model="lm" in names)
    for name in names:
        with reporter.working(f"exporting the {name} …"):
            path, error = export_part(part_of(models, name), kind, out or folder)
        size = size_text(path.stat().st_size)
        reporter.report(f"{path}: {size}, largest difference from PyTorch {error:.1g} of the largest value")


def hf(
    out: Path = flag("Folder to create.", "FOLDER", "-o", default=REQUIRED),
    model: flags.ModelOption = None,
    dtype: str = flag("auto (the model's dtype), float32, float16 or bfloat16.", "NAME", default="auto"),
    variant: flags.VariantOption = None,
    force: bool = flag("Replace an earlier export.", default=False),
    quiet: flags.QuietOption = False,
) -> None:
    """Write the language model for transformers, vLLM and other runtimes that load Hugging Face models.

    The result is one Qwen2 model, whose vocabulary contains text and speech tokens.
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
    reporter.note("the speech head's bias is in embedding_bias.npy: the server of the model must add it to the logits")


EXAMPLES = (
    "vivavoce export hf --model CosyVoice2-0.5B --out ./cosyvoice2_llm",
    "vivavoce export hf --model ./CosyVoice2-0.5B --out ./llm16 --dtype bfloat16 --force",
)
app = group(
    "Write networks for other runtimes: transformers, vLLM, TensorRT-LLM, ONNX Runtime, TensorRT.",
    EXAMPLES[0],
    *export_trtllm.EXAMPLES[:2],
    NETWORK_EXAMPLES[0],
)
command(app, *EXAMPLES, name="hf")(hf)
command(app, *export_trtllm.EXAMPLES, name="trtllm")(export_trtllm.trtllm)
for kind, function in COMMANDS.items():
    command(app, *(line for line in NETWORK_EXAMPLES if f" {kind} " in line), name=kind)(function)
