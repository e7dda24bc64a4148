"""`vivavoce export trtllm`: write the language model as a TensorRT-LLM checkpoint."""

from __future__ import annotations

import itertools
import resource
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vivavoce.cli.console import Reporter, print_table, progress, size_text
from vivavoce.cli.flags import MODEL_VARIABLE, REQUIRED, QuietOption, VariantOption, flag
from vivavoce.errors import InvalidRequest

if TYPE_CHECKING:
    from vivavoce_export.hf_folder import Source
    from vivavoce_export.trtllm.calibration import Calibration, Prompt
    from vivavoce_export.trtllm.convert import Conversion, Progress
    from vivavoce_export.trtllm.options import ConvertOptions

EXAMPLES = (
    "vivavoce export trtllm --model CosyVoice2-0.5B --out ./checkpoint --dtype bfloat16",
    "vivavoce export trtllm --model ./cosyvoice2_llm --out ./checkpoint --use-weight-only --check",
    "vivavoce export trtllm --model CosyVoice2-0.5B --out ./checkpoint --smoothquant 0.5 --per-token --per-channel",
)


@dataclass(frozen=True, kw_only=True)
class TrtllmFlags:
    model: str | None = flag(
        "A downloaded model, a model folder, or a merged Qwen2 folder.  [default: mini]",
        "NAME|FOLDER",
        "--model",
        "-m",
        "--model-dir",
        envvar=MODEL_VARIABLE,
    )
    variant: VariantOption = None
    dtype: str = flag("float16, bfloat16, float32, or auto (the model's 16-bit dtype).", "NAME", default="auto")
    tp_size: int = flag("Tensor parallelism: GPUs that split every layer.", "N", default=1)
    pp_size: int = flag("Pipeline parallelism: GPUs that divide the layers.", "N", default=1)
    cp_size: int = flag("Context parallelism is not supported: must be 1.", "N", default=1)
    use_weight_only: bool = flag("Quantise the weight matrices, not the activations.", default=False)
    weight_only_precision: str | None = flag("Precision of the weights: int8 or int4.  [default: int8]", "NAME")
    prequantize: str | None = flag(
        "Quantise now: for sm80 (compute capability 7.5 to 8.9) or sm90 (TensorRT-LLM 0.17 only).  "
        "[default: trtllm-build quantises]",
        "GPUS",
    )
    int8_kv_cache: bool = flag("Cache keys and values in int8; runs a calibration.", default=False)
    use_parallel_embedding: bool = flag("Split the embedding among the --tp-size GPUs.", default=False)
    smoothquant: float | None = flag("SmoothQuant: int8 weights and inputs; often 0.5; calibrates.", "ALPHA")
    per_token: bool = flag("SmoothQuant: scale each token's inputs at run time.", default=False)
    per_channel: bool = flag("SmoothQuant: scale each output channel of the weights.", default=False)
    out: Path = flag("Checkpoint folder to create.", "FOLDER", "--out", "-o", "--output-dir", default=REQUIRED)
    calibration: Path | None = flag(
        "Speech prompts: a spk2info.pt or JSON [{text_ids, speech_ids}, …]; or recorded ranges "
        "(safetensors).  [default: the model's own voices]",
        "FILE",
    )
    workers: int = flag("Threads; each converts one layer at a time.", "N", default=1)
    check: bool = flag("Compare the logits of the checkpoint and the model.", default=False)
    write_back: Path | None = flag(
        "Also make a model folder that speaks with the checkpoint's weights, for `speak` and `eval`.", "FOLDER"
    )
    force: bool = flag("Replace an earlier conversion.", default=False)

    def chosen(self) -> ConvertOptions:
        """Return the options of the conversion. InvalidRequest: options contradict each other."""
        from vivavoce_export.trtllm.options import ConvertOptions

        if self.weight_only_precision is not None and not self.use_weight_only:
            raise InvalidRequest("weight-only-precision: belongs to --use-weight-only; add it, or leave this out")
        same = ("dtype", "prequantize", "int8_kv_cache", "smoothquant", "per_token", "per_channel")
        chosen = ConvertOptions(
            **{name: getattr(self, name) for name in same},
            tp=self.tp_size,
            pp=self.pp_size,
            cp=self.cp_size,
            weight_only=(self.weight_only_precision or "int8") if self.use_weight_only else None,
            parallel_embedding=self.use_parallel_embedding,
        )
        if self.calibration is not None and not (chosen.needs_calibration or self.check):
            raise InvalidRequest(
                "calibration: nothing uses it; add --smoothquant, --int8-kv-cache or --check, or leave it out"
            )
        return chosen

    def open(self) -> tuple[Source, Path]:
        from vivavoce.checkpoint.folder import BACKBONE
        from vivavoce.frontend.model_choice import model_folder
        from vivavoce.frontend.text.tokenizer import TextTokenizer
        from vivavoce_export.hf_folder import is_hugging_face, open_hugging_face, open_official

        given = None if self.model is None else Path(self.model)
        if given is not None and is_hugging_face(given):
            if self.variant:
                raise InvalidRequest(f"variant: {given} is a merged model, which has no variants; leave it out")
            return open_hugging_face(given), given
        folder = model_folder(self.model)
        return open_official(folder, len(TextTokenizer.from_folder(folder / BACKBONE)), self.variant), folder


def trtllm(flags: TrtllmFlags, quiet: QuietOption = False) -> None:
    """Write the language model as a TensorRT-LLM checkpoint, from which trtllm-build builds an engine.

    The checkpoint is for TensorRT-LLM up to 1.2; later releases load the folder that `export hf` writes. This
    command does not need TensorRT-LLM.
    """
    reporter = Reporter(quiet)
    with reporter.working("starting …"):
        from vivavoce_export.trtllm.convert import convert
        from vivavoce_export.trtllm.options import build_command
        from vivavoce_export.trtllm.reread import Reread, write_back

        chosen = flags.chosen()
        if flags.check and quiet:
            raise InvalidRequest("check: --quiet hides its result; leave one of the two out")
    with reporter.working("opening the model …"):
        source, folder = flags.open()
        chosen.check_fits(source.sizes)
        calibration, prompts = _calibration(flags, chosen, source, folder)
        if flags.write_back is not None:
            _check_write_back(flags.write_back, flags, folder)
    started = time.perf_counter()
    with progress(reporter) as show:

        def step(what: str, done: int, total: int) -> None:
            show(what, done, total, f"{what}: {total} layers and blocks")

        conversion = convert(
            source, flags.out, chosen, calibration=calibration, workers=flags.workers, force=flags.force, progress=step
        )
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        checked = _check(source, conversion, prompts, reporter, step) if flags.check else []
    if flags.write_back is not None and source.vocabulary is not None:
        with reporter.working("writing the model back …"):
            write_back(Reread(conversion.folder), folder, flags.write_back, source.vocabulary, force=flags.force)
        reporter.report(f"{flags.write_back} speaks with the checkpoint's weights; its activations are not rounded")
    if quiet:
        return
    rows = [
        ("checkpoint", str(conversion.folder)),
        ("options", _described(chosen, conversion)),
        ("ranks", str(chosen.world)),
        ("size", size_text(conversion.num_bytes)),
        ("time", "was there already" if conversion.was_there else f"{seconds:.1f} s"),
        ("peak memory", size_text(peak)),
    ]
    print_table([*rows, *checked])
    out = flags.out if flags.out.name not in ("", "..") else flags.out.resolve()  # "." has no name to append to
    engine = str(out.with_name(f"{out.name}-engine"))
    dtype = str(conversion.dtype).removeprefix("torch.")
    print(f"\nnext: {shlex.join(build_command(str(flags.out), engine, dtype))}")
    if source.bias is None:
        reporter.note("the model's head has no bias: nothing prevents an engine from choosing text ids")
    else:
        reporter.note("the speech head's bias is in embedding_bias.npy: send it with each request as embedding_bias")


def _check_write_back(target: Path, flags: TrtllmFlags, folder: Path) -> None:
    from vivavoce_export.files import check_target
    from vivavoce_export.hf_folder import is_hugging_face
    from vivavoce_export.trtllm.reread import WRITTEN_BACK

    back, out = target.resolve(), flags.out.resolve()
    if back == out or back in out.parents or out in back.parents:
        raise InvalidRequest(f"write-back: {target} and --out {flags.out} overlap; choose separate folders")
    if is_hugging_face(folder):
        raise InvalidRequest(
            f"write-back: {folder} holds a language model alone, which cannot speak; convert the model's own folder"
        )
    check_target(target, folder, force=flags.force, mark=WRITTEN_BACK, field="write-back")


def _calibration(
    flags: TrtllmFlags, chosen: ConvertOptions, source: Source, folder: Path
) -> tuple[Calibration, tuple[Prompt, ...]]:
    """Read the calibration, and the prompts for `--check`. Without a file, both use the model's own voices."""
    from vivavoce.checkpoint.folder import SPEAKERS
    from vivavoce_export.trtllm.calibration import Calibration, read_calibration, voices_prompts

    def own() -> tuple[Prompt, ...]:
        voices = folder / SPEAKERS
        if source.vocabulary is None or not voices.is_file():
            return ()
        return voices_prompts(voices, source.vocabulary)

    if flags.calibration is not None:
        calibration = read_calibration(flags.calibration, source)
    else:
        calibration = Calibration(own()) if chosen.needs_calibration else Calibration()
    return calibration, (calibration.prompts or own()) if flags.check else ()


def _check(
    source: Source, conversion: Conversion, prompts: tuple[Prompt, ...], reporter: Reporter, step: Progress
) -> list[tuple[str, str]]:
    from vivavoce_export.trtllm.calibration import random_prompts
    from vivavoce_export.trtllm.reread import Reread, compare_logits

    if not prompts:
        reporter.note("the model has no voice with a transcript and tokens: comparing logits on random ids")
        prompts = random_prompts(source)
    layers = itertools.count(1)
    checked = compare_logits(
        source, Reread(conversion.folder), prompts, lambda: step("comparing", next(layers), 2 * source.sizes.num_layers)
    )
    return [
        ("logits' relative error", f"{checked.relative_error:.2e}"),
        ("logits' largest error", f"{checked.largest_error:.2e}"),
        ("same best id", f"{checked.top1_agreement:.1%} of {checked.num_positions} positions"),
    ]


def _described(chosen: ConvertOptions, conversion: Conversion) -> str:
    words = [str(conversion.dtype).removeprefix("torch.")]
    words += [f"{name} {size}" for name, size in (("tp", chosen.tp), ("pp", chosen.pp)) if size > 1]
    if chosen.weight_only is not None:
        when = f"laid out for {chosen.prequantize}" if chosen.prequantize else "quantised by trtllm-build"
        words.append(f"{chosen.weight_only} weights {when}")
    if chosen.smoothquant is not None:
        inputs = "per token" if chosen.per_token else "static"
        weights = "per channel" if chosen.per_channel else "per tensor"
        words.append(f"smoothquant {chosen.smoothquant:g} ({inputs}, {weights})")
    words += ["int8 cache"] if chosen.int8_kv_cache else []
    words += ["parallel embedding"] if chosen.parallel_embedding else []
    return ", ".join(words)
