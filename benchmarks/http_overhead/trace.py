"""Records when a request passes each place of a server; joins the records of the server's processes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vivavoce_bench.load import Ending, Outcome
from vivavoce_bench.measure import percentile

FOLDER = "HTTP_OVERHEAD_TRACES"
"""Environment variable: the folder to which a traced server's processes write."""
SPANS = {
    "to_server": "the client's call to the server",
    "door": "the server reads and checks it, until it is sent to the engine's process",
    "to_engine": "on the way there",
    "front": "text and voice, until the engine has it",
    "engine": "the engine, to the first chunk",
    "to_door": "on the way back",
    "encode": "made into bytes",
    "to_client": "on the way to the client",
}
"""The parts of the time to the first byte, in order: each span begins where the span before it ends."""
Trace = Mapping[str, Any]


class TraceLog:
    """One process's times of running requests; a request is written when its last time is known."""

    def __init__(self, name: str) -> None:
        path = Path(os.environ[FOLDER]) / f"{name}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._open: dict[int, dict[str, Any]] = {}

    def begin(self, number: int, **values: Any) -> None:
        """A request begins; number: its number in messages between the processes."""
        self._open[number] = {"number": number, **values}

    def mark(self, number: int, place: str) -> None:
        """A request passes a place; only the first time counts."""
        if (trace := self._open.get(number)) is not None:
            trace.setdefault(place, time.monotonic())

    def end(self, number: int, place: str) -> None:
        """A request passes its last place; write its times."""
        self.mark(number, place)
        if (trace := self._open.pop(number, None)) is not None:
            os.write(self._file, json.dumps(trace).encode() + b"\n")


def read_traces(folder: Path) -> dict[str, Trace]:
    """Id of a request → its times in both processes."""
    engine = {trace["number"]: trace for trace in _lines(folder / "engine.jsonl")}
    return {
        trace["id"]: {**engine[trace["number"]], **trace}
        for trace in _lines(folder / "server.jsonl")
        if trace["number"] in engine
    }


def spans(outcome: Outcome, trace: Trace) -> dict[str, float]:
    """Seconds of each span in `SPANS`; their sum is the time to the first byte."""
    times = [
        outcome.start_s,
        *(trace[place] for place in ("accepted", "sent", "received", "submitted", "made", "came", "written")),
        outcome.arrivals[0].at_s,
    ]
    return {name: later - earlier for name, earlier, later in zip(SPANS, times, times[1:], strict=False)}


def mean_spans(outcomes: Sequence[Outcome], request_ids: Sequence[str], traces: Mapping[str, Trace]) -> dict[str, Any]:
    """Means and medians of the spans, in ms, over the requests that succeeded, and the number of these requests.

    request_ids: in the order of the outcomes.
    """
    found = [
        spans(outcome, traces[identity])
        for outcome, identity in zip(outcomes, request_ids, strict=True)
        if outcome.ending is Ending.OK and identity in traces
    ]
    if not found:
        raise SystemExit(f"no request was traced: {outcomes[0].ending.value} {outcomes[0].problem}")
    means = {f"{name}_ms": 1000 * sum(one[name] for one in found) / len(found) for name in SPANS}
    medians = {f"{name}_ms_p50": 1000 * percentile([one[name] for one in found], 50) for name in SPANS}
    return {"requests": len(found), **means, "ttfb_ms": sum(means.values()), **medians}


def _lines(path: Path) -> Iterator[Trace]:
    for line in path.read_text(encoding="utf-8").splitlines():
        yield json.loads(line)
