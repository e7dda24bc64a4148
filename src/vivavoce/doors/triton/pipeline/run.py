"""The stages in their order: done ones are passed over, each leaves a note of what it made."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vivavoce.doors.triton.pipeline.clients import ask_over_http, client_inputs, measure_over_grpc
from vivavoce.doors.triton.pipeline.context import Context, Run, Say, run_command
from vivavoce.doors.triton.pipeline.conversion import conversion_inputs, convert
from vivavoce.doors.triton.pipeline.download import bring_model
from vivavoce.doors.triton.pipeline.offline_benchmark import benchmark, benchmark_inputs
from vivavoce.doors.triton.pipeline.repositories import create_repository
from vivavoce.doors.triton.pipeline.serving import Serving
from vivavoce.doors.triton.pipeline.settings import PipelineSettings
from vivavoce.doors.triton.pipeline.work_folder import STAGES, WorkFolder
from vivavoce.errors import StageFailed

_SERVER = 3


@dataclass(frozen=True)
class Stage:
    """What a stage does.

    work: does it and returns what it made, for its note; inputs: what the result depends on, None: the stage is run
    every time, as it finds out itself what is there.
    """

    title: str
    work: Callable[[Context], Mapping[str, Any]]
    inputs: Callable[[Context], Mapping[str, Any]] | None = None


def run_pipeline(settings: PipelineSettings, say: Say, run: Run = run_command) -> None:
    """Run the stages that are asked for; a server that was started in between is stopped at the end.

    Args:
        settings: which stages, of what.
        say: is told a line about everything that is done.
        run: runs a command line.

    Raises:
        VivavoceError: a stage failed, or needs an earlier one that was not done.
        OSError: a place cannot be written.
    """
    work = WorkFolder(settings.work.expanduser().absolute())
    context = Context(settings, work, say, run, Serving(settings, work, say))
    try:
        for number in range(settings.first, settings.last + 1):
            _run_stage(number, context)
    finally:
        context.serving.stop()


def _run_stage(number: int, context: Context) -> None:
    stage, work = _STAGES[number], context.work
    inputs = dict(stage.inputs(context)) if stage.inputs is not None else {}
    if stage.inputs is not None and not context.settings.force and _is_done(work.read(number), inputs):
        context.say(f"stage {number}: {stage.title}: done before, see {work.note(number)} (--force does it again)")
        return
    context.say(f"stage {number}: {stage.title}")
    # A note of an earlier run must not outlive what it tells of.
    work.note(number).unlink(missing_ok=True)
    started = time.perf_counter()
    made = stage.work(context)
    work.write(number, inputs, made, time.perf_counter() - started)


def _is_done(note: Mapping[str, Any] | None, inputs: Mapping[str, Any]) -> bool:
    """The same was made of the same, and is still there: what a stage makes, its note names by absolute paths."""
    if note is None or note["inputs"] != inputs:
        return False
    named = [value for value in note["made"].values() if isinstance(value, str) and value.startswith("/")]
    return all(Path(path).exists() for path in named)


def _serve(context: Context) -> dict[str, Any]:
    """The server: in the foreground where nothing follows, until somebody ends it."""
    context.work.made(2)
    last = context.settings.last == _SERVER
    server = context.serving.start(None if last else context.work.server_log)
    made = {
        "http": server.http_url,
        "grpc": server.grpc_url,
        "metrics": server.metrics_url,
        "mode": context.settings.mode.value,
        "models": server.models(),
    }
    if last:
        context.work.write(_SERVER, {}, made, 0.0)
        context.say("Ctrl-C stops it")
        code = server.wait()
        if code:
            raise StageFailed(f"server: it ended with {code}; see its words above")
    return made


_STAGES = (
    Stage("download the model", bring_model),
    Stage("convert the language model", convert, conversion_inputs),
    Stage("create the model repository", create_repository),
    Stage("start the server", _serve),
    Stage("ask for one utterance over HTTP", ask_over_http, client_inputs),
    Stage("measure a load over gRPC", measure_over_grpc, client_inputs),
    Stage("measure batches without a server", benchmark, benchmark_inputs),
)
assert len(_STAGES) == len(STAGES)
