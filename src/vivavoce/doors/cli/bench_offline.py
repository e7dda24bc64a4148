"""`vivavoce bench offline`: texts in batches, by runtime and batch size."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from vivavoce.doors.cli import bench_options, options
from vivavoce.doors.cli.bench_backends.choosing import Backend, check_installed, parse_backends
from vivavoce.doors.cli.bench_texts import TextChoice
from vivavoce.doors.cli.console import Reporter
from vivavoce.doors.cli.model import EngineChoice, ModelChoice
from vivavoce.doors.cli.output import STDOUT, check_writable
from vivavoce.errors import InvalidRequest

SUMMARY = "Texts in batches, by runtime and size."
EXAMPLES = options.examples(
    "vivavoce bench offline",
    "vivavoce bench offline --backend torch --backend hf --batch-size 4,1 -n 8 --json offline.json",
    "vivavoce bench offline --model CosyVoice2-0.5B --manifest meta.lst --output-dir speech --plot offline.png",
)
BATCH_SIZES = (16, 8, 4, 2, 1)
_MOST = 256


@dataclass(frozen=True)
class OfflineRequest:
    """The options, understood."""

    choice: ModelChoice
    engine: EngineChoice
    texts: TextChoice
    backends: Sequence[Backend]
    batch_sizes: Sequence[int] | None
    """None: `BATCH_SIZES`, as far as there are texts for them."""
    token2wav_batch_size: int | None
    """None: the language model's."""
    tokens: int | None
    seed: int
    llm_model: str | None
    engine_dir: Path | None
    output_dir: Path | None
    json_file: str | None
    plot: Path | None
    command: str
    """As a shell would read it."""

    def check(self) -> None:
        """Refuse before a model loads what could not be done.

        Raises:
            InvalidRequest: options that exclude one another, or are out of their limits.
            MissingDependency: a runtime, or what draws, is not installed.
        """
        from vivavoce.engine.request import SamplingParams
        from vivavoce.service.limits import check_seed

        check_seed(self.seed)
        SamplingParams(exact_tokens=self.tokens)
        self.texts.check()
        if self.engine_dir is not None and Backend.TRTLLM not in self.backends:
            raise InvalidRequest("engine_dir: only the backend trtllm runs engines; add --backend trtllm")
        if self.engine_dir is not None and not self.engine_dir.is_dir():
            raise InvalidRequest(f"engine_dir: {str(self.engine_dir)!r} is no folder; name the one of trtllm-build")
        if self.llm_model is not None and all(backend is Backend.TORCH for backend in self.backends):
            raise InvalidRequest(
                "llm_model_name_or_path: torch reads the model's own folder; add a --backend that reads a merged one "
                "(hf, vllm or trtllm), or leave it out"
            )
        for backend in self.backends:
            check_installed(backend)
        check_places(self.output_dir, self.json_file)
        if self.plot is not None:
            from vivavoce.bench.picture import check_drawing

            check_drawing()
            check_writable(self.plot, field="plot")

    def sizes(self, num_texts: int) -> Sequence[int]:
        """The batch sizes that can be filled.

        Raises:
            InvalidRequest: one was asked for that cannot.
        """
        if self.batch_sizes is None:
            return [size for size in BATCH_SIZES if size <= num_texts]
        largest = max(self.batch_sizes)
        if largest > num_texts:
            raise InvalidRequest(f"batch_size: {largest} is more than the {num_texts} texts; give more, or take it out")
        return self.batch_sizes


def check_places(output_dir: Path | None, json_file: str | None) -> None:
    """Refuse places that cannot be written; the folder is made.

    Raises:
        InvalidRequest: names the option.
    """
    if json_file not in (None, STDOUT):
        check_writable(Path(str(json_file)), field="json")
    if output_dir is not None:
        try:
            output_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidRequest(
                f"output_dir: {str(output_dir)!r} cannot be made ({error.strerror}); choose another place"
            ) from None
        check_writable(output_dir / "probe.wav", field="output_dir")


def _batch_sizes(given: Sequence[str]) -> list[int] | None:
    parts = [part for one in given for part in re.split(r"[,\s]+", one.strip())]
    sizes = [int(part) if part.isdecimal() else 0 for part in parts]
    for part, size in zip(parts, sizes, strict=True):
        if not 1 <= size <= _MOST:
            raise InvalidRequest(f"batch_size: {part!r} is no number in 1 … {_MOST}; write some such as 16,8,1")
    return list(dict.fromkeys(sizes)) or None


def offline(
    backend: Annotated[
        list[str] | None,
        typer.Option(
            "--backend", metavar="NAME", help="torch, hf, vllm or trtllm; may be repeated.  [default: torch, our own]"
        ),
    ] = None,
    batch_size: Annotated[
        list[str] | None,
        typer.Option("--batch-size", metavar="NUMBERS", help="Texts at once, such as 16,4.  [default: 16,8,4,2,1]"),
    ] = None,
    token2wav_batch_size: Annotated[
        int | None,
        typer.Option(
            "--token2wav-batch-size",
            metavar="NUMBER",
            min=1,
            max=_MOST,
            help="Of the second half, tokens to samples.  [default: the same]",
        ),
    ] = None,
    num_texts: bench_options.NumTextsOption = None,
    text_file: bench_options.TextFileOption = None,
    manifest: bench_options.ManifestOption = None,
    dataset: bench_options.DatasetOption = None,
    split: bench_options.SplitOption = None,
    tokens: bench_options.TokensOption = None,
    voice: options.VoiceOption = None,
    prompt_text: options.PromptTextOption = "",
    seed: Annotated[int, typer.Option("--seed", metavar="NUMBER", help="Of the first text; the others follow.")] = 0,
    output_dir: bench_options.OutputDirOption = None,
    json_file: bench_options.JsonFileOption = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw a PNG file; needs vivavoce[eval].")
    ] = None,
    model: bench_options.ModelOption = None,
    llm_model: Annotated[
        str | None,
        typer.Option(
            "--llm-model-name-or-path",
            metavar="NAME|FOLDER",
            help="The merged language model of hf, vllm and trtllm.  [default: made from the model, and kept]",
        ),
    ] = None,
    engine_dir: Annotated[
        Path | None, typer.Option("--engine-dir", metavar="FOLDER", help="An engine that trtllm-build made.")
    ] = None,
    kernels: options.KernelsOption = None,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    variant: options.VariantOption = None,
    voices: options.VoicesOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Speak texts in batches: seconds of the language model and of token2wav, by runtime and batch size."""
    reporter = Reporter(quiet)
    request = OfflineRequest(
        choice=ModelChoice(model, device, dtype, variant, voices),
        engine=EngineChoice(kernels=kernels),
        texts=TextChoice(text_file, manifest, dataset, split, num_texts, voice, prompt_text),
        backends=parse_backends(backend or [Backend.TORCH.value]),
        batch_sizes=_batch_sizes(batch_size or []),
        token2wav_batch_size=token2wav_batch_size,
        tokens=tokens,
        seed=seed,
        llm_model=llm_model,
        engine_dir=engine_dir,
        output_dir=output_dir,
        json_file=json_file,
        plot=plot,
        command=shlex.join(["vivavoce", *sys.argv[1:]]),
    )
    with reporter.working("starting …"):
        request.check()
        from vivavoce.doors.cli.bench_offline_run import run
    run(request, reporter)
