"""Ask an engine for thousands of things, and see that nothing of them is left."""

from __future__ import annotations

import ctypes
import gc
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engine.engine_helpers import Fault, FixedCosts, assert_clean, set_costs
from tests.soak.crowd import Crowd
from vivavoce.engine.engine import Engine
from vivavoce.engine.flow_stage import FlowJob, FlowStream
from vivavoce.engine.flow_stage.lane import PaddedLane
from vivavoce.engine.handle import Handle, Outbox
from vivavoce.engine.lm_stage import TextIn
from vivavoce.engine.settings import EngineSettings
from vivavoce.engine.stream import Segment, Stream
from vivavoce.engine.ticket import Ticket, Track
from vivavoce.engine.vocoder_stage import VocoderStream
from vivavoce.models.build import Models

SETTLED = 0.1
"""Share of the requests after which caches are filled: from then on nothing may grow."""
MOST_GROWTH_MB = 64.0
MOST_NEW_OBJECTS = 300
"""Of one type; interpreter and torch keep a few things of their own."""
GONE = (Handle, Outbox, Ticket, Track, Stream, Segment, FlowStream, FlowJob, VocoderStream, TextIn)
"""What must not be left when no request runs."""
MOST_LINGERING = 2
"""The loop's variables may still name the request that it looked at last, with its segments."""


@dataclass(frozen=True)
class Plan:
    """How much, by how many, and how troubled; faults: about one of so many calls fails, 0: none does."""

    requests: int = 10_000
    users: int = 64
    cancels: float = 0.3
    faults: int = 400
    slots: int = 32


@dataclass(frozen=True)
class Measure:
    """The process and the engine when no request runs; rss_mb: NaN where the system does not tell."""

    rss_mb: float
    threads: int
    slots_free: int
    pages_in_use: int
    prompts: int
    objects: Counter[str]


@dataclass(frozen=True)
class Report:
    """Before any request, after the first tenth, at the end; and what the bounds say of it."""

    measures: tuple[Measure, Measure, Measure]
    outcomes: Counter[str]
    faults: int
    seconds: float
    audio_s: float
    broken: tuple[str, ...]


def soak(models: Models, plan: Plan) -> Report:
    """Run a plan to its end; what other engines of the process hold is theirs."""
    others, held = len(_engine_threads()), _alive()
    engine = Engine(models, EngineSettings(slots=plan.slots, state_bytes=64 << 20, max_waiting=4 * plan.users))
    set_costs(engine, FixedCosts())
    crowd = Crowd(engine, plan.users, plan.cancels)
    first = int(plan.requests * SETTLED)
    silenced, log = logging.CRITICAL, logging.getLogger("vivavoce")
    before_level = log.level
    log.setLevel(silenced)
    began = time.perf_counter()
    try:
        with engine, _faults(engine, plan.faults) as faults:
            crowd.ask(range(1))
            measures = [_measure(engine)]
            for numbers in (range(1, first), range(first, plan.requests)):
                crowd.ask(numbers)
                measures.append(_measure(engine))
            seconds, audio_s = time.perf_counter() - began, engine.statistics.audio_s
            before, settled, after = measures
            broken = (*_lost(engine, held), *_grown(settled, after), *_unexpected(crowd, engine, plan))
    finally:
        log.setLevel(before_level)
    broken += () if len(_engine_threads()) <= others else ("threads: the engine's goes on after its end",)
    raised = sum(fault.raised for fault in faults)
    return Report((before, settled, after), crowd.outcomes, raised, seconds, audio_s, broken)


def _engine_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "vivavoce-engine"]


@contextmanager
def _faults(engine: Engine, one_of: int) -> Iterator[list[Fault]]:
    """Have each stage fail now and then."""
    chance, workshop = random.Random(0), engine._workshop

    def now_and_then(*_: Any, **__: Any) -> bool:
        return bool(one_of) and chance.randrange(one_of) == 0

    owners: tuple[tuple[Any, str, float], ...] = (
        (workshop.lm, "prefill", 1),
        (workshop.lm, "decode", 1),
        (workshop.flow, "start", 1),
        (PaddedLane, "step", 4),
        (PaddedLane, "commit", 1),
        (workshop.vocoder, "run", 1),
    )
    faults, undo = [], []
    for number, (owner, name, rarer) in enumerate(owners):
        error: Exception = MemoryError() if number % 2 else RuntimeError("injected")

        def when(*given: Any, rarer: float = rarer) -> bool:
            return now_and_then() and chance.random() < 1 / rarer

        fault = Fault(getattr(owner, name), error, when)
        undo.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, _as_method(fault) if isinstance(owner, type) else fault)
        faults.append(fault)
    try:
        yield faults
    finally:
        for owner, name, was in undo:
            delattr(owner, name) if was is None else setattr(owner, name, was)


def _as_method(fault: Fault) -> Any:
    return lambda *given: fault(*given)


def _measure(engine: Engine) -> Measure:
    for thread in threading.enumerate():
        if thread.name == "vivavoce-text":
            thread.join(30)
    gc.collect()  # handles whose listeners met an error: it knows the frames that know them
    assert_clean(engine)
    gc.collect()
    flow = engine._workshop.flow.statistics()
    return Measure(
        rss_mb=_rss_mb(),
        threads=threading.active_count(),
        slots_free=engine._workshop.lm.free_slots,
        pages_in_use=flow.pages_in_use,
        prompts=flow.prompts,
        objects=Counter(type(one).__name__ for one in gc.get_objects()),
    )


def _rss_mb() -> float:
    # What was freed and is kept for the next allocation is not lost.
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return float("nan")
    return pages * 4096 / 2**20


def _alive() -> Counter[type]:
    gc.collect()
    return Counter(type(one) for one in gc.get_objects() if type(one) in GONE)


def _lost(engine: Engine, before: Counter[type]) -> Iterator[str]:
    try:
        assert_clean(engine)
    except AssertionError as error:
        yield f"engine: something is left of its requests: {error}"
    alive = _alive()
    for kind in GONE:
        count = alive[kind] - before[kind]
        if count > MOST_LINGERING:
            yield f"objects: {count} of type {kind.__name__} are left"


def _grown(settled: Measure, after: Measure) -> Iterator[str]:
    growth = after.rss_mb - settled.rss_mb
    if growth > MOST_GROWTH_MB:
        yield f"memory: grew by {growth:.0f} MB after the first tenth, the bound is {MOST_GROWTH_MB:.0f} MB"
    if after.threads > settled.threads:
        yield f"threads: {settled.threads} became {after.threads}"
    for name, count in (after.objects - settled.objects).items():
        if count > MOST_NEW_OBJECTS:
            yield f"objects: {count} more of type {name}, the bound is {MOST_NEW_OBJECTS}"


def _unexpected(crowd: Crowd, engine: Engine, plan: Plan) -> Iterator[str]:
    for error in crowd.failures[:3]:
        yield f"users: one met {error!r}"
    if not engine.healthy:
        yield "engine: it has stopped"
    if crowd.outcomes.total() != plan.requests:
        yield f"requests: {crowd.outcomes.total()} of {plan.requests} ended"
    if crowd.outcomes["heard"] < plan.requests / 3:
        yield f"requests: only {crowd.outcomes['heard']} of {plan.requests} were heard to their end"
