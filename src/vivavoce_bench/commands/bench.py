"""`vivavoce bench`: speed under load. Its subcommands measure the language model and token2wav separately."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from vivavoce.cli import flags
from vivavoce.cli.console import Reporter, progress
from vivavoce.cli.flags import command, examples, flag, with_flags
from vivavoce.cli.model import BackendChoice, EngineChoice, ModelChoice, Spread, load_model, note_if_no_real_model
from vivavoce.errors import InvalidRequest
from vivavoce_bench.commands import bench_stages
from vivavoce_bench.commands.evaluate import recogniser_jobs
from vivavoce_bench.commands.options import (
    JsonFileOption,
    PlotOption,
    TokensOption,
    TranscriptsOption,
    check_report_places,
    named_voices,
    print_figures,
)

if TYPE_CHECKING:
    from vivavoce.api import Vivavoce
    from vivavoce.checkpoint.config import Generation
    from vivavoce.engine.chunk_policy import ChunkPolicy
    from vivavoce.engine.request import SamplingParams
    from vivavoce.frontend.voices.voice import Voice
    from vivavoce_bench import Load, Outcome, Report, Target, Utterance, Workload
    from vivavoce_bench.targets import Recorded

EXAMPLES = (
    "vivavoce bench --concurrency 8 --requests 64",
    "vivavoce bench --model CosyVoice2-0.5B --rate 4 -n 200 --json bench.json --plot bench.png",
    "vivavoce bench --url http://127.0.0.1:8880 --rate 20 -n 400 --voice me.wav --fresh-voice",
    "vivavoce bench --tokens 125 --policy official --warmup 4 --json -",
    "vivavoce bench --model CosyVoice2-0.5B --gpus 0,1 --offline --concurrency 512 --requests 1024",
    "vivavoce bench offline --help",
)
app = typer.Typer(epilog=examples(*EXAMPLES))
command(app, *bench_stages.OFFLINE_EXAMPLES, short_help="Measure texts in batches, by runtime and batch size.")(
    bench_stages.offline
)
command(app, *bench_stages.STREAMING_EXAMPLES, short_help="Measure speech tokens to audio, chunk by chunk.")(
    bench_stages.streaming
)
DEFAULT_POLICY = "low_latency"
_DEFAULT_WARMUP = 4


@dataclass(frozen=True)
class BenchLoad:
    concurrency: int | None = flag("Users at once; each sends request after request.  [default: 1]", "NUMBER", "-c")
    rate: float | None = flag("Users per second, who arrive at random; instead of --concurrency.", "NUMBER")
    requests: int = flag("Number of measured requests.", "NUMBER", "-n", default=32, min=1)
    warmup: int | None = flag(
        "Requests before the measured ones.  [default: one per user, or 4 with --rate]", "NUMBER", min=0
    )
    text_file: Path | None = flag("File with one text per line.  [default: 40 English sentences]", "FILE", "-f")
    words: str | None = flag("Use only texts with MIN to MAX words, such as 5-15.", "MIN-MAX")
    tokens: TokensOption = None
    voice: list[str] | None = flag(
        "Voice; if repeated, requests use the voices in turn.  [default: the model's first voice]",
        "NAME|RECORDING",
        "-v",
    )
    transcript: TranscriptsOption = None
    fresh_voice: bool = flag(
        "Alter the recordings of --voice for each request, so that each voice is extracted anew.", default=False
    )
    offline: bool = flag("Request whole utterances instead of streams.", default=False)
    policy: str | None = flag(
        "Chunk policy of streams: official, low_latency (default), equal, exponential or time_based.", "NAME"
    )
    first_hop: int | None = flag("Number of speech tokens in the first chunk.", "NUMBER")
    lookahead: int | None = flag("Number of later speech tokens that a chunk waits for.", "NUMBER")
    seed: int = flag("Random seed of texts, arrivals and speech.", "NUMBER", default=0)

    def load(self) -> Load:
        from vivavoce_bench import ClosedLoop, OpenLoop

        if self.rate is None:
            return ClosedLoop(1 if self.concurrency is None else self.concurrency)
        if self.concurrency is not None:
            raise InvalidRequest(
                "rate: the load has a rate or a number of users, not both; leave --rate or --concurrency out"
            )
        return OpenLoop(self.rate, self.seed)

    def num_warmup(self) -> int:
        if self.warmup is not None:
            return self.warmup
        return min(self.concurrency or 1, self.requests) if self.rate is None else _DEFAULT_WARMUP

    def workload(self, voices: Sequence[str | None] = (None,)) -> Workload:
        """Return the load's texts and voices. InvalidRequest: texts cannot be read, or no text fits --words."""
        from vivavoce_bench import SENTENCES, Workload
        from vivavoce_bench.load import read_texts, with_words

        texts = SENTENCES if self.text_file is None else read_texts(self.text_file)
        if self.words is not None:
            found = re.fullmatch(r"(\d+)-(\d+)", self.words)
            if found is None or int(found[1]) > int(found[2]):
                raise InvalidRequest(f"words: {self.words!r} is not a range; write two numbers of words, such as 5-15")
            texts = with_words(texts, int(found[1]), int(found[2]))
        return Workload(texts, voices, self.seed)

    def chunk_policy(self, generation: Generation | None = None) -> ChunkPolicy | None:
        """Return the checked chunk policy; None for whole utterances, or if no option and no generation is given."""
        from vivavoce.engine.chunk_policy import ChunkPolicy, Schedule, policy_for

        given = {"--policy": self.policy, "--first-hop": self.first_hop, "--lookahead": self.lookahead}
        named = [option for option, value in given.items() if value is not None]
        if self.offline:
            for option in named:
                raise InvalidRequest(f"offline: whole utterances are not cut into chunks; leave {option} out")
            return None
        policy = None
        if named:
            policy = ChunkPolicy.parse(self.policy or DEFAULT_POLICY)
            if self.first_hop is not None:
                equal = policy.schedule is Schedule.EQUAL
                policy = replace(policy, first_hop=self.first_hop, max_hop=self.first_hop if equal else policy.max_hop)
            if self.lookahead is not None:
                policy = replace(policy, lookahead=self.lookahead)
        return policy if generation is None else policy_for(generation, policy)

    def sampling(self) -> SamplingParams:
        from vivavoce.engine.request import SamplingParams

        return SamplingParams(exact_tokens=self.tokens)


@dataclass(frozen=True)
class BenchServer:
    """A server to test, instead of a model in this process."""

    url: str | None = flag("Load-test the server at this address, over POST /v1/audio/speech.", "URL")
    key: str | None = flag("API key of the server.", "KEY")


@dataclass(frozen=True)
class BenchOutput:
    quality: bool = flag("Also measure word errors and speaker similarity; needs vivavoce[eval].", default=False)
    json_file: JsonFileOption = None
    plot: PlotOption = None


@dataclass(frozen=True)
class BenchRequest:
    load: BenchLoad
    engine: EngineChoice
    output: BenchOutput
    model: ModelChoice
    command: str
    backends: BackendChoice = field(default_factory=BackendChoice)
    spread: Spread = field(default_factory=Spread)
    server: BenchServer = field(default_factory=BenchServer)

    def check(self) -> None:
        from vivavoce.frontend.speech import check_seed

        check_seed(self.load.seed)
        self._check_server()
        self.load.load()
        self.load.workload()
        self.load.chunk_policy()
        self.load.sampling()
        self.engine.settings(self.backends)
        self.spread.over(self.model.device)
        if self.output.quality and self.load.tokens is not None:
            raise InvalidRequest(
                "quality: speech of a forced length is not intelligible; leave --tokens or --quality out"
            )
        if self.load.fresh_voice and self.output.quality:
            raise InvalidRequest("quality: altered recordings have no voice to compare with; leave --fresh-voice out")
        if self.load.fresh_voice and not self.load.voice:
            raise InvalidRequest("fresh-voice: it needs a recording to alter; add --voice RECORDING")
        check_report_places(self.output.json_file, self.output.plot)

    def _check_server(self) -> None:
        """Refuse options that only the server can set, and a key without a server."""
        load, url = self.load, self.server.url
        if url is None:
            if self.server.key is not None:
                raise InvalidRequest("key: it is for a server; add --url")
            return
        given = {
            "--tokens": load.tokens is not None,
            "--offline": load.offline,
            "--first-hop": load.first_hop is not None,
            "--lookahead": load.lookahead is not None,
            "--quality": self.output.quality,
        }
        for option in (name for name, is_given in given.items() if is_given):
            raise InvalidRequest(f"url: the server decides this; leave {option} out")


@app.callback(invoke_without_command=True)
@with_flags
def bench(
    context: typer.Context,
    load: BenchLoad,
    engine: EngineChoice,
    output: BenchOutput,
    model: ModelChoice,
    backends: BackendChoice,
    spread: Spread,
    server: BenchServer,
    quiet: flags.QuietOption = False,
) -> None:
    """Load-test the engine, or a server: time to first audio, gaps, underruns, throughput, memory.

    The exit code is 1 if a request failed; refused requests are only counted. docs/measuring.md explains the figures.
    """
    if context.invoked_subcommand is not None:
        _refuse_lost_options(context)
        return
    line = shlex.join(["vivavoce", *sys.argv[1:]])
    request = BenchRequest(load, engine, output, model, line, backends, spread, server)
    if run_bench(request, Reporter(quiet)):
        raise typer.Exit(1)


def _refuse_lost_options(context: typer.Context) -> None:
    """Refuse options before a subcommand: they are options of the load test, and the subcommand would ignore them."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            command = context.invoked_subcommand
            raise InvalidRequest(f"bench: --{name.replace('_', '-')} stands before {command}; write it after {command}")


def run_bench(
    request: BenchRequest, reporter: Reporter, load: Callable[[BenchRequest], Vivavoce] | None = None
) -> bool:
    """Run the load test and print the figures; return True if a request failed. load: function that loads the model."""
    with reporter.working("starting …"):
        request.check()
    if request.server.url is not None:
        return _deliver(measured_server(request, reporter), request.output, reporter)
    if load is None:
        tts = load_model(request.model, reporter, request.engine, request.backends, request.spread)[0]
    else:
        tts = load(request)
    try:
        report = measured(request, tts, reporter)
    finally:
        tts.close()
    failed = _deliver(report, request.output, reporter)
    note_if_no_real_model(tts.card, reporter)
    return failed


def measured(request: BenchRequest, tts: Vivavoce, reporter: Reporter) -> Report:
    from vivavoce_bench import Ending, Report
    from vivavoce_bench.hardware import reset_peaks, resources
    from vivavoce_bench.load import with_ending
    from vivavoce_bench.targets import EngineTarget, instruments_for, quality

    load = request.load
    with reporter.working("preparing …"):
        voices = _voices(request, tts)
        workload = load.workload(list(voices))
        utterances, warmup = workload.utterances(load.requests), workload.utterances(load.num_warmup(), "warm-up")
        instruments = (
            instruments_for(tts, utterances, recogniser_jobs(len(utterances))) if request.output.quality else None
        )
        if warmup:
            tts.warm_up()
    target = EngineTarget(tts, voices, load.chunk_policy(tts.generation), load.sampling(), request.output.quality)

    own = tts.device if request.spread == Spread() else None  # peak memory of other processes is unknown

    with progress(reporter, transient=True) as bar:
        outcomes = asyncio.run(_warm_and_load(target, warmup, utterances, load.load(), bar, lambda: reset_peaks(own)))
    report = Report(_settings(request, tts), outcomes, resources(own))
    if instruments is None:
        return report
    with reporter.working("listening …") as say:
        return replace(
            report,
            quality=quality(with_ending(outcomes, Ending.OK), cast("Mapping[str, Voice]", voices), instruments, say),
        )


def measured_server(request: BenchRequest, reporter: Reporter) -> Report:
    """Load-test the server at `--url`. Its memory is not measured."""
    from vivavoce_bench import Report
    from vivavoce_bench.hardware import client_keys
    from vivavoce_bench.targets import HttpTarget, Recorded, open_client

    load, url = request.load, request.server.url or ""
    names = load.voice or ()
    stored = [name for name in names if not Path(name).is_file()]
    recorded = named_voices([name for name in names if name not in stored], load.transcript or (), (), Recorded.read)
    workload = load.workload(names or (None,))
    utterances, warmup = workload.utterances(load.requests), workload.utterances(load.num_warmup(), "warm-up")

    async def drive() -> list[Outcome]:
        async with open_client(url, request.server.key) as client:
            target = HttpTarget(client, recorded, load.fresh_voice, load.policy)
            return await _warm_and_load(target, warmup, utterances, load.load(), bar)

    with progress(reporter, transient=True) as bar:
        outcomes = asyncio.run(drive())
    return Report({**client_keys(request.command), "url": url, **_load_keys(load)}, outcomes)


async def _warm_and_load(
    target: Target,
    warmup: Sequence[Utterance],
    utterances: Sequence[Utterance],
    load: Load,
    bar: Callable[[str, int, int, str], None],
    between: Callable[[], None] = lambda: None,
) -> list[Outcome]:
    """Run the warm-up, then the load; return the load's outcomes. bar: shows progress; between: runs between both."""
    from vivavoce_bench import run_load

    def show(ended: int) -> None:
        bar("speaking", ended, len(warmup) + len(utterances), "")

    await run_load(target, warmup, load, show)
    between()
    return await run_load(target, utterances, load, lambda ended: show(len(warmup) + ended))


def _voices(request: BenchRequest, tts: Vivavoce) -> Mapping[str, Voice | Recorded]:
    load = request.load
    if not load.voice:
        voice = tts.voice()
        return {voice.name or "default": voice}
    resolve: Callable[[Any, str], Any] = tts.voice
    if load.fresh_voice:
        from vivavoce_bench.targets import Recorded

        def resolve(name: str, transcript: str) -> Voice | Recorded:
            return Recorded.read(name, transcript) if Path(name).is_file() else tts.voice(name)

    return named_voices(load.voice, load.transcript or (), tts.voices(), resolve)


def _settings(request: BenchRequest, tts: Vivavoce) -> dict[str, Any]:
    from vivavoce_bench.hardware import run_keys

    load, engine, policy = request.load, request.engine, request.load.chunk_policy(tts.generation)
    return {
        **run_keys(request.command, tts.card, tts.dtype, tts.device),
        **_load_keys(load),
        "policy": None if policy is None else policy.schedule.value,
        **{name: getattr(policy, name, None) for name in ("first_hop", "max_hop", "lookahead")},
        **{name: getattr(engine, name) for name in ("admission", "kernels", "deterministic", "flow_steps")},
        **{name: getattr(request.backends, name) for name in ("lm_backend", "flow_backend")},
        **vars(request.spread),
        "memory_gb": engine.memory,
    }


def _load_keys(load: BenchLoad) -> dict[str, Any]:
    return {
        "concurrency": (load.concurrency or 1) if load.rate is None else None,
        **{name: getattr(load, name) for name in ("rate", "seed", "tokens", "words", "offline", "fresh_voice")},
        "warmup": load.num_warmup(),
        "texts": "built in" if load.text_file is None else str(load.text_file),
        "voices": len(load.voice or ()) or 1,
    }


def _deliver(report: Report, output: BenchOutput, reporter: Reporter) -> bool:
    from vivavoce_bench import Ending
    from vivavoce_bench.load import with_ending
    from vivavoce_bench.report import draw, figure_rows, latency_rows

    keys = report.to_json()
    print_figures(keys, output.json_file, latency_rows(keys), (None, figure_rows(keys)))
    if output.plot is not None:
        draw(report.outcomes, output.plot)
    failed = with_ending(report.outcomes, Ending.FAILED)
    if failed:
        first = failed[0].utterance.number
        reporter.report(f"{len(failed)} requests failed, the first one (number {first}) with {failed[0].problem}")
    return bool(failed)
