"""`vivavoce convert trtllm`: the language model as a TensorRT-LLM checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vivavoce.doors.cli import options
from vivavoce.doors.cli.console import Reporter

EXAMPLES = options.examples(
    "vivavoce convert trtllm --model CosyVoice2-0.5B --out ./checkpoint --dtype bfloat16",
    "vivavoce convert trtllm --model ./cosyvoice2_llm --out ./checkpoint --use-weight-only --check",
    "vivavoce convert trtllm --model CosyVoice2-0.5B --out ./checkpoint --smoothquant 0.5 --per-token --per-channel",
)


def convert_trtllm(
    out: Annotated[
        Path, typer.Option("--out", "-o", "--output-dir", metavar="FOLDER", help="The checkpoint folder to make.")
    ],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            "--model-dir",
            metavar="NAME|FOLDER",
            envvar=options.MODEL_VARIABLE,
            help="A downloaded model, a model folder, or a merged Qwen2 folder.  [default: mini]",
        ),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option("--dtype", metavar="NAME", help="float16, bfloat16, float32, or auto: the model's, 16 bit."),
    ] = "auto",
    tp_size: Annotated[int, typer.Option("--tp-size", metavar="N", help="GPUs that share every layer.")] = 1,
    pp_size: Annotated[int, typer.Option("--pp-size", metavar="N", help="GPUs that share the layers out.")] = 1,
    cp_size: Annotated[int, typer.Option("--cp-size", metavar="N", help="Must be 1.")] = 1,
    use_weight_only: Annotated[
        bool, typer.Option("--use-weight-only", help="Quantise the matrices; activations stay as they are.")
    ] = False,
    weight_only_precision: Annotated[
        str | None, typer.Option("--weight-only-precision", metavar="NAME", help="int8 or int4.  [default: int8]")
    ] = None,
    prequantize: Annotated[
        str | None,
        typer.Option(
            "--prequantize",
            metavar="GPUS",
            help="Quantise now, for sm80 (compute capability 7.5 to 8.9) or sm90 (TensorRT-LLM 0.17 only).  "
            "[default: trtllm-build does]",
        ),
    ] = None,
    int8_kv_cache: Annotated[
        bool, typer.Option("--int8-kv-cache", help="Keys and values in int8; calibrates.")
    ] = False,
    use_parallel_embedding: Annotated[
        bool, typer.Option("--use-parallel-embedding", help="Split the embedding among the --tp-size GPUs.")
    ] = False,
    smoothquant: Annotated[
        float | None,
        typer.Option("--smoothquant", metavar="ALPHA", help="int8 weights and inputs; 0.5 is usual; calibrates."),
    ] = None,
    per_token: Annotated[
        bool, typer.Option("--per-token", help="SmoothQuant: inputs are scaled row by row at run time.")
    ] = False,
    per_channel: Annotated[
        bool, typer.Option("--per-channel", help="SmoothQuant: weights are scaled output by output.")
    ] = False,
    calibration: Annotated[
        Path | None,
        typer.Option(
            "--calibration",
            metavar="FILE",
            help="Prompts of speech, a spk2info.pt or JSON [{text_ids, speech_ids}, …], or ranges recorded before "
            "(safetensors).  [default: the model's own voices]",
        ),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", metavar="N", help="Threads, each with one layer.")] = 1,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the checkpoint's logits with the model's on the prompts.")
    ] = False,
    write_back: Annotated[
        Path | None,
        typer.Option(
            "--write-back",
            metavar="FOLDER",
            help="Also make a model folder that speaks with the checkpoint's weights, for `speak` and `eval`.",
        ),
    ] = None,
    variant: options.VariantOption = None,
    force: Annotated[bool, typer.Option("--force", help="Take the place of an earlier conversion.")] = False,
    quiet: options.QuietOption = False,
) -> None:
    """Write the language model as a TensorRT-LLM checkpoint, of which trtllm-build makes an engine.

    For TensorRT-LLM up to 1.2; later releases take the folder that `convert hf` writes. Nothing of TensorRT-LLM is
    needed here. After a break the same command goes on where it stopped.
    """
    with Reporter(quiet).working("starting …"):
        from vivavoce.doors.cli.convert_trtllm_run import Wishes, run
        from vivavoce.export.trtllm.options import ConvertOptions

        chosen = ConvertOptions(
            dtype=dtype,
            tp=tp_size,
            pp=pp_size,
            cp=cp_size,
            weight_only=_weight_only(use_weight_only, weight_only_precision),
            prequantize=prequantize,
            int8_kv_cache=int8_kv_cache,
            parallel_embedding=use_parallel_embedding,
            smoothquant=smoothquant,
            per_token=per_token,
            per_channel=per_channel,
        )
    run(Wishes(model, variant, out, chosen, calibration, workers, check, write_back, force), Reporter(quiet))


def _weight_only(wanted: bool, precision: str | None) -> str | None:
    from vivavoce.errors import InvalidRequest

    if precision is not None and not wanted:
        raise InvalidRequest("weight-only-precision: belongs to --use-weight-only; add it, or leave this out")
    return (precision or "int8") if wanted else None
