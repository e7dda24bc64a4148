"""The work of `vivavoce bench`: a model, a load, a report."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vivavoce.bench.load import ClosedLoop, Load, run_load
from vivavoce.bench.outcome import Ending, Outcome, those
from vivavoce.bench.report import Report
from vivavoce.bench.table import figure_rows, latency_rows
from vivavoce.bench.target import Target, Utterance
from vivavoce.doors.cli.bench_engine import EngineTarget, Manner, Talker
from vivavoce.doors.cli.bench_machine import machine, reset_peaks, resources
from vivavoce.doors.cli.bench_quality import quality, ready_instruments
from vivavoce.doors.cli.bench_request import CheckedRequest
from vivavoce.doors.cli.console import Reporter, is_terminal, print_table
from vivavoce.doors.cli.evaluate_voices import Voices
from vivavoce.doors.cli.model import note_if_no_real_model
from vivavoce.doors.cli.output import STDOUT
from vivavoce.version import __version__

if TYPE_CHECKING:
    from vivavoce.evaluate.instruments import Instruments
    from vivavoce.service.voices.voice import Voice

_MOST_JOBS = 8
_REQUESTS_PER_JOB = 8
"""A recogniser of its own takes longer to start than to hear a few utterances."""


def load_engine(request: CheckedRequest) -> Talker:
    """The model in an engine of this process."""
    from vivavoce.doors.python import load
    from vivavoce.service.default_model import model_folder

    choice = request.asked.choice
    return load(
        model_folder(choice.model),
        device=choice.device,
        dtype=choice.dtype,
        variant=choice.variant,
        voices=choice.voices,
        settings=request.settings,
    )


def measure(
    request: CheckedRequest, reporter: Reporter, load: Callable[[CheckedRequest], Talker] = load_engine
) -> bool:
    """Put the load on and hand out the figures; whether any request failed. `load`: what is measured."""
    name = request.asked.choice.model or "the default model"
    with reporter.working(f"loading {name} …"):
        tts = load(request)
    try:
        report = measured(request, tts, reporter)
    finally:
        tts.close()
    _deliver(report, request, reporter)
    note_if_no_real_model(tts.card, reporter)
    return any(outcome.ending is Ending.FAILED for outcome in report.outcomes)


def measured(request: CheckedRequest, tts: Talker, reporter: Reporter) -> Report:
    """Put the load on a model that is loaded; it stays open."""
    asked = request.asked
    with reporter.working("preparing …"):
        voices = _voices(request, tts)
        utterances, warmup = _utterances(request, list(voices))
        instruments = _instruments(tts, utterances) if asked.quality else None
        if warmup:
            tts.warm_up()
    target = EngineTarget(tts, voices, Manner(request.policy, request.sampling, asked.quality))
    with progress(reporter, len(warmup) + len(utterances)) as show:
        outcomes = asyncio.run(_drive(target, warmup, utterances, request.load, lambda: reset_peaks(tts.device), show))
    settings = {**_settings(request, tts), **machine(tts.device)}
    report = Report(settings, outcomes, resources(tts.device))
    if instruments is None:
        return report
    with reporter.working("listening …") as say:
        return replace(report, quality=quality(those(outcomes, Ending.OK), voices, instruments, say))


def _instruments(tts: Talker, utterances: Sequence[Utterance]) -> Instruments:
    jobs = min(os.cpu_count() or 1, _MOST_JOBS, max(1, len(utterances) // _REQUESTS_PER_JOB))
    return ready_instruments(tts, list(dict.fromkeys(utterance.text for utterance in utterances)), jobs)


def _voices(request: CheckedRequest, tts: Talker) -> Mapping[str, Voice]:
    """The voices by the names that utterances use, extracted before anything is measured."""
    from vivavoce.service.default_model import model_folder

    asked = request.asked
    if not asked.voices:
        voice = tts.voice()
        return {voice.name or "default": voice}
    found = Voices(model_folder(asked.choice.model), tts.voices(), tts.voice)
    return found.named_or_recorded(asked.voices, asked.prompt_texts)


def _utterances(request: CheckedRequest, voices: Sequence[str]) -> tuple[list[Utterance], list[Utterance]]:
    """(the load, its warm-up)."""
    workload = replace(request.workload, voices=voices)
    return workload.utterances(request.asked.requests), workload.utterances(request.warmup, "warm-up")


async def _drive(
    target: Target,
    warmup: Sequence[Utterance],
    utterances: Sequence[Utterance],
    load: Load,
    warm: Callable[[], None],
    show: Callable[[int], None],
) -> list[Outcome]:
    """Outcomes of the load alone; `warm`: called between warm-up and load."""
    try:
        await run_load(target, warmup, load, show)
        warm()
        return await run_load(target, utterances, load, lambda ended: show(len(warmup) + ended))
    finally:
        await target.close()


def _settings(request: CheckedRequest, tts: Talker) -> dict[str, Any]:
    asked, policy = request.asked, request.policy
    closed = request.load.concurrency if isinstance(request.load, ClosedLoop) else None
    return {
        "vivavoce": __version__,
        "command": asked.command,
        "model": tts.card.name,
        "trained": tts.card.trained,
        "dtype": str(tts.dtype).removeprefix("torch."),
        "concurrency": closed,
        "rate": asked.rate,
        "warmup": request.warmup,
        "seed": asked.seed,
        "tokens": asked.tokens,
        "words": asked.words,
        "texts": "built in" if asked.text_file is None else str(asked.text_file),
        "voices": len(asked.voices) or 1,
        "offline": asked.offline,
        "policy": None if policy is None else policy.schedule.value,
        "first_hop": None if policy is None else policy.first_hop,
        "max_hop": None if policy is None else policy.max_hop,
        "lookahead": None if policy is None else policy.lookahead,
        "admission": asked.engine.admission,
        "memory_gb": asked.engine.memory_gb,
        "kernels": asked.engine.kernels,
        "deterministic": asked.engine.deterministic,
        "int8_lm": asked.engine.int8_lm,
        "fp8_flow": asked.engine.fp8_flow,
    }


def _deliver(report: Report, request: CheckedRequest, reporter: Reporter) -> None:
    asked = request.asked
    if asked.json_file == STDOUT:
        print(report.text())
    else:
        keys = report.to_json()
        header, rows = latency_rows(keys)
        print_table(rows, header)
        print()
        print_table(figure_rows(keys))
    if asked.json_file not in (None, STDOUT):
        report.save(Path(str(asked.json_file)))
    if asked.plot is not None:
        from vivavoce.bench.picture import draw

        draw(report.outcomes, asked.plot)
    failed = those(report.outcomes, Ending.FAILED)
    if failed:
        first = failed[0].utterance.number
        reporter.report(f"{len(failed)} requests failed, the first one (number {first}) by {failed[0].problem}")


@contextmanager
def progress(reporter: Reporter, total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar while the block runs, if stderr is a terminal; yields what takes the number of ended requests."""
    if reporter.quiet or not is_terminal(sys.stderr):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("speaking"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("speaking", total=total)
        yield lambda ended: bar.update(task, completed=ended)
