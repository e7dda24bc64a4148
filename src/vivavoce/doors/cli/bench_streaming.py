"""`vivavoce bench streaming`: speech tokens that are all there, spoken chunk by chunk."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vivavoce.doors.cli import bench_options, options
from vivavoce.doors.cli.bench_offline import check_places
from vivavoce.doors.cli.bench_texts import TextChoice
from vivavoce.doors.cli.console import Reporter
from vivavoce.doors.cli.model import EngineChoice, ModelChoice
from vivavoce.errors import InvalidRequest

if TYPE_CHECKING:
    from vivavoce.bench.chunking import Strategy

SUMMARY = "Speech tokens to sound, chunk by chunk."
EXAMPLES = options.examples(
    "vivavoce bench streaming --output-dir chunks",
    "vivavoce bench streaming --strategy exponential --chunk-size 15 -n 8 --json streaming.json",
    "vivavoce bench streaming --recording me.wav --overlap 3",
)
DEFAULT_COUNT = 4


@dataclass(frozen=True)
class StreamingRequest:
    """The options, understood."""

    choice: ModelChoice
    engine: EngineChoice
    texts: TextChoice
    recordings: Sequence[Path]
    chunk_size: int
    overlap: int
    strategy: Strategy
    tokens: int | None
    seed: int
    output_dir: Path | None
    json_file: str | None
    command: str
    """As a shell would read it."""

    def check(self) -> None:
        """Refuse before a model loads what could not be done.

        Raises:
            InvalidRequest: options that exclude one another, or are out of their limits.
        """
        from vivavoce.bench.chunking import cuts
        from vivavoce.engine.request import SamplingParams
        from vivavoce.service.limits import check_seed

        check_seed(self.seed)
        SamplingParams(exact_tokens=self.tokens)
        self.texts.check()
        cuts(1, self.chunk_size, self.strategy, 0)
        if not 0 <= self.overlap < self.chunk_size:
            raise InvalidRequest(
                f"overlap: {self.overlap} is outside of 0 … {self.chunk_size - 1}; a chunk has {self.chunk_size} tokens"
            )
        if self.recordings and (self.texts.source != "built in" or self.texts.count or self.tokens):
            raise InvalidRequest(
                "recording: its tokens are spoken, no text is; leave texts, their number and --tokens out"
            )
        for path in self.recordings:
            if not path.is_file():
                raise InvalidRequest(f"recording: {str(path)!r} is no file; check the path")
        check_places(self.output_dir, self.json_file)


def _strategy(name: str) -> Strategy:
    from vivavoce.bench.chunking import Strategy

    try:
        return Strategy(name)
    except ValueError:
        known = ", ".join(one.value for one in Strategy)
        raise InvalidRequest(f"strategy: {name!r} is unknown; use one of {known}") from None


def streaming(
    chunk_size: Annotated[
        int, typer.Option("--chunk-size", metavar="NUMBER", help="Speech tokens of the first chunk: 25 are a second.")
    ] = 25,
    overlap: Annotated[
        int,
        typer.Option(
            "--overlap", metavar="NUMBER", help="Tokens that chunks share and fade over.  [default: 0, seamless joins]"
        ),
    ] = 0,
    strategy: Annotated[
        str,
        typer.Option("--strategy", metavar="NAME", help="equal, or exponential: each chunk twice the one before."),
    ] = "equal",
    recording: Annotated[
        list[Path] | None,
        typer.Option(
            "--recording", metavar="FILE", help="Speak the tokens of a recording instead of texts; may be repeated."
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
    model: bench_options.ModelOption = None,
    memory: options.MemoryOption = None,
    kernels: options.KernelsOption = None,
    device: options.DeviceOption = "auto",
    dtype: options.DtypeOption = "auto",
    variant: options.VariantOption = None,
    voices: options.VoicesOption = None,
    quiet: options.QuietOption = False,
) -> None:
    """Turn speech tokens into sound chunk by chunk: time to the first one and to each, and what joins sound like."""
    reporter = Reporter(quiet)
    with reporter.working("starting …"):
        request = StreamingRequest(
            choice=ModelChoice(model, device, dtype, variant, voices),
            engine=EngineChoice(memory_gb=memory, kernels=kernels),
            texts=TextChoice(text_file, manifest, dataset, split, num_texts, voice, prompt_text),
            recordings=recording or [],
            chunk_size=chunk_size,
            overlap=overlap,
            strategy=_strategy(strategy),
            tokens=tokens,
            seed=seed,
            output_dir=output_dir,
            json_file=json_file,
            command=shlex.join(["vivavoce", *sys.argv[1:]]),
        )
        request.check()
        from vivavoce.doors.cli.bench_streaming_run import run
    run(request, reporter)
