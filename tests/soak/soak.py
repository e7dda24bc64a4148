"""`python -m tests.soak`: users ask an engine for thousands of things, leave when they like, and meet faults.

Prints what came of it, and that nothing of it is left; exit 1 if a bound is broken.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import logging
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from tests.engine.engine_helpers import MUTE, Fault, FixedCosts, arriving, assert_clean, feed, given, offline, segment
from tests.engine.engine_helpers import stream as streamed
from tests.engine.engine_helpers import voice as some_voice
from vivavoce.checkpoint.config import Generation
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.engine import Engine
from vivavoce.engine.flow_stage import FlowBatch, FlowStage, FlowStream
from vivavoce.engine.flow_stage.padded import PaddedSolver
from vivavoce.engine.handle import Handle, Outbox
from vivavoce.engine.lm_stage import StreamingPrompt
from vivavoce.engine.request import EngineRequest, InputMode, SamplingParams, SegmentRequest
from vivavoce.engine.request_state import RequestState, SequenceState
from vivavoce.engine.settings import EngineSettings
from vivavoce.engine.vocoder_stage import VocoderStream
from vivavoce.errors import VivavoceError
from vivavoce.models.build import Models, build_models
from vivavoce_bench.random_checkpoint import make_babble_checkpoint
from vivavoce_v1.flow_stage import FlowStageV1, FlowStreamV1, SolverV1

SETTLED = 0.3
"""Share of the requests after which caches are filled and slots used to their end: from then on nothing may grow."""
MOST_GROWTH_MB = 64.0
MOST_NEW_OBJECTS = 300
"""Of one type; interpreter and torch keep a few things of their own."""
GONE = (
    Handle,
    Outbox,
    RequestState,
    SequenceState,
    FlowStream,
    FlowBatch,
    VocoderStream,
    StreamingPrompt,
    FlowStreamV1,
)
"""What must not be left when no request runs."""
MOST_LINGERING = 2
"""The loop's variables may still name the request that it looked at last, with its segments."""
POLICIES = (
    ChunkPolicy.low_latency(first_hop=4, lookahead=1),
    ChunkPolicy.equal(hop=4, lookahead=2),
    ChunkPolicy.exponential(first_hop=4),
    ChunkPolicy.time_based(first_hop=4),
    ChunkPolicy.official(first_hop=4),
)
VOICES = (MUTE, MUTE, some_voice(1, prompt=3), some_voice(2, prompt=6))
IDS_OF_V1 = 4096
VOICES_OF_V1 = (MUTE, some_voice(1, prompt=3, ids=IDS_OF_V1), some_voice(2, prompt=6, ids=IDS_OF_V1))
MOST_TOKENS = 7
SURE_TO_FAIL = (("start", 3), ("start", 13))
"""Calls that fail in any case, each of one request: how many calls there are depends on the batches."""


@dataclass(frozen=True)
class Plan:
    """How much, by how many, and how troubled.

    faults: about one of so many calls fails, 0: none does; growth_mb: of memory once it has settled, at most: fewer
    requests have met fewer of the shapes that kernels are compiled for by then.
    """

    requests: int = 10_000
    users: int = 64
    cancels: float = 0.3
    faults: int = 400
    slots: int = 32
    growth_mb: float = MOST_GROWTH_MB


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
    """measures: after the first request, once all has settled, at the end; broken: bounds that were not kept."""

    measures: list[Measure]
    outcomes: Counter[str]
    faults: int
    seconds: float
    audio_s: float
    broken: list[str]

    def __str__(self) -> str:
        rows = {
            "memory, MB": [one.rss_mb for one in self.measures],
            "threads": [one.threads for one in self.measures],
            "free slots": [one.slots_free for one in self.measures],
            "pages in use": [one.pages_in_use for one in self.measures],
            "voices kept": [one.prompts for one in self.measures],
            "objects": [one.objects.total() for one in self.measures],
        }
        total = self.outcomes.total()
        lines = [f"{'':<22}{'start':>10}{'settled':>10}{'end':>10}"]
        lines += [f"{title:<22}" + "".join(f"{value:>10.0f}" for value in row) for title, row in rows.items()]
        made = f"{self.audio_s:.0f} s of audio; {self.faults} faults"
        lines.append(f"{total} requests in {self.seconds:.0f} s: {total / self.seconds:.1f} a second; {made}")
        lines += [f"  {name:<20}{count:>8}" for name, count in self.outcomes.most_common()]
        lines += [f"broken: {one}" for one in self.broken] or ["every bound was kept"]
        return "\n".join(lines)


def soak(models: Models, plan: Plan) -> Report:
    """Run a plan to its end; what other engines of the process hold is theirs."""
    others, held = _engine_threads(), _alive()
    settings = EngineSettings(slots=plan.slots, state_bytes=64 << 20, max_waiting=4 * plan.users)
    engine = Engine(models, settings, costs=FixedCosts())
    crowd, measures, first = Crowd(engine, plan.users, plan.cancels), [], int(plan.requests * SETTLED)
    logging.disable()  # the faults are meant
    began = time.perf_counter()
    try:
        with engine, _faults(engine, plan.faults) as faults:
            for numbers in (range(1), range(1, first), range(first, plan.requests)):
                crowd.ask(numbers)
                measures.append(_measure(engine))
            seconds, audio_s = time.perf_counter() - began, engine.statistics.audio_s
            broken = [*_lost(engine, held), *_grown(*measures[1:], plan.growth_mb), *_unexpected(crowd, engine, plan)]
    finally:
        logging.disable(logging.NOTSET)
    if _engine_threads() > others:
        broken.append("threads: the engine's goes on after its end")
    return Report(measures, crowd.outcomes, sum(fault.raised for fault in faults), seconds, audio_s, broken)


@dataclass
class Crowd:
    """`users` threads that share the numbers of requests; what a request is depends on its number alone.

    outcomes: how many ended how; failures: what a user met that no request should end with.
    """

    engine: Engine
    users: int
    cancels: float
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[BaseException] = field(default_factory=list)

    def ask(self, numbers: range) -> None:
        """All requests of these numbers; returns when the last one has ended."""
        with ThreadPoolExecutor(self.users, thread_name_prefix="user") as users:
            self.outcomes.update(users.map(self._one, numbers))

    def _one(self, number: int) -> str:
        chance = random.Random(number)
        try:
            return self._listen(chance, _submit(chance, number, self.engine))
        except (VivavoceError, ConnectionError) as error:
            return type(error).__name__
        except BaseException as error:
            self.failures.append(error)
            return "unexpected"

    def _listen(self, chance: random.Random, handle: Handle) -> str:
        if chance.random() >= self.cancels:
            handle.result()
            return "heard"
        way = chance.randrange(4)
        if way == 0:
            return "dropped at once"
        if way == 1:
            threading.Thread(target=handle.cancel).start()
            handle.result()
            return "heard"
        patience = chance.randint(1, 2)
        for heard, _ in enumerate(handle, 1):
            if heard == patience:
                if way == 2:
                    handle.cancel()
                break
        return "left"


def _submit(chance: random.Random, number: int, engine: Engine) -> Handle:
    policy, voice, ids = chance.choice(POLICIES), chance.choice(VOICES), 6561
    whole = isinstance(engine.stages.flow, FlowStageV1)
    if whole:
        policy, voice, ids = ChunkPolicy.official(), chance.choice(VOICES_OF_V1), IDS_OF_V1

    def part(most: int = MOST_TOKENS) -> Any:
        return segment(chance.randint(1, most), seed=number, speed=chance.choice((1.0, 1.0, 0.7, 1.6)), voice=voice)

    short = SegmentRequest(voice, text=(65,), sampling=SamplingParams(max_ratio=2.0), seed=number)
    kinds: tuple[Callable[[], EngineRequest], ...] = (
        lambda: offline(part()),
        lambda: offline(part(3), part(3)),
        lambda: streamed(part(), policy=policy),
        lambda: streamed(part(3), part(3), policy=policy),
        lambda: streamed(
            given(
                chance.randint(1, 121 if whole and number % 4 == 0 else MOST_TOKENS), seed=number, voice=voice, ids=ids
            ),
            policy=policy,
        ),
        lambda: arriving(short, InputMode.TOKENS, policy),
        lambda: arriving(part(3), InputMode.SEGMENTS, policy),
    )
    request = chance.choice(kinds[:5] + kinds[6:] if whole else kinds)()
    handle = engine.submit(request)
    if request.arrival is not InputMode.WHOLE:
        more = part(3) if request.arrival is InputMode.SEGMENTS else (67,)
        feed(handle.text, _parts([more] * chance.randint(0, 2), fails=chance.random() < 0.1))
    return handle


def _parts(parts: list[Any], fails: bool) -> Iterator[Any]:
    yield from parts
    if fails:
        raise ConnectionError("the text's source hung up")


@contextmanager
def _faults(engine: Engine, one_of: int) -> Iterator[list[Fault]]:
    """Have each stage fail now and then."""
    chance, stages, faults = random.Random(0), engine.stages, []
    solver = SolverV1 if isinstance(stages.flow, FlowStageV1) else PaddedSolver
    owners: tuple[tuple[Any, str, int], ...] = (
        (stages.lm, "prefill", 1),
        (stages.lm, "decode", 1),
        (stages.flow, "start", 1),
        (solver, "step", 4),
        (solver, "finish", 1),
        (stages.vocoder, "run", 1),
    )
    with ExitStack() as undo:
        for number, (owner, name, rarer) in enumerate(owners):

            def when(call: int, *_: Any, name: str = name, odds: int = one_of * rarer) -> bool:
                return odds > 0 and ((name, call) in SURE_TO_FAIL or chance.randrange(odds) == 0)

            def method(*arguments: Any, place: int = number) -> Any:
                return faults[place](*arguments)

            error: Exception = MemoryError() if number % 2 else RuntimeError("injected")
            faults.append(Fault(getattr(owner, name), error, when))
            undo.enter_context(patch.object(owner, name, method))
        yield faults


def _engine_threads() -> int:
    return sum(thread.name == "vivavoce-engine" for thread in threading.enumerate())


def _measure(engine: Engine) -> Measure:
    for thread in threading.enumerate():
        if thread.name == "vivavoce-text":
            thread.join(30)
    gc.collect()  # handles whose listeners met an error: it knows the frames that know them
    assert_clean(engine)
    gc.collect()
    flow, kept = engine.stages.flow, isinstance(engine.stages.flow, FlowStage)
    return Measure(
        rss_mb=_rss_mb(),
        threads=threading.active_count(),
        slots_free=engine.stages.lm.free_slots,
        pages_in_use=flow.pool.total - len(flow.pool.free) if kept else 0,
        prompts=len(flow.prompts.states) if kept else 0,
        objects=Counter(type(one).__name__ for one in gc.get_objects()),
    )


def _rss_mb() -> float:
    # What was freed and is kept for the next allocation is not lost.
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
    return float("nan")


def _alive() -> Counter[type]:
    gc.collect()
    return Counter(type(one) for one in gc.get_objects() if type(one) in GONE)


def _lost(engine: Engine, before: Counter[type]) -> Iterator[str]:
    try:
        assert_clean(engine)
    except AssertionError as error:
        yield f"engine: something is left of its requests: {error}"
    for kind, count in (_alive() - before).items():
        if count > MOST_LINGERING:
            yield f"objects: {count} of type {kind.__name__} are left"


def _grown(settled: Measure, after: Measure, most_mb: float = MOST_GROWTH_MB) -> Iterator[str]:
    growth = after.rss_mb - settled.rss_mb
    if growth > most_mb:
        yield f"memory: grew by {growth:.0f} MB after it had settled, the bound is {most_mb:.0f} MB"
    if after.threads > settled.threads:
        yield f"threads: {settled.threads} became {after.threads}"
    for name, count in (after.objects - settled.objects).items():
        if count > MOST_NEW_OBJECTS:
            yield f"objects: {count} more of type {name}, the bound is {MOST_NEW_OBJECTS}"


def _unexpected(crowd: Crowd, engine: Engine, plan: Plan) -> Iterator[str]:
    yield from (f"users: one met {error!r}" for error in crowd.failures[:3])
    if not engine.healthy:
        yield "engine: it has stopped"
    if crowd.outcomes.total() != plan.requests:
        yield f"requests: {crowd.outcomes.total()} of {plan.requests} ended"
    if crowd.outcomes["heard"] < plan.requests / 3:
        yield f"requests: only {crowd.outcomes['heard']} of {plan.requests} were heard to their end"


def main() -> int:
    """Parse, run, print."""
    default = Plan()
    parser = argparse.ArgumentParser("python -m tests.soak", description=__doc__)
    parser.add_argument("--generation", type=Generation, default=Generation.V2, help="of the models: v1, v2 or v3")
    parser.add_argument("--requests", type=int, default=default.requests)
    parser.add_argument("--users", type=int, default=default.users, help="threads that ask at the same time")
    parser.add_argument("--cancels", type=float, default=default.cancels, help="share of the users who leave")
    parser.add_argument("--faults", type=int, default=default.faults, help="one of so many calls fails; 0: none does")
    options = vars(parser.parse_args())
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = make_babble_checkpoint(Path(folder) / "babble", options.pop("generation"))
        models = build_models(checkpoint, torch.device("cpu"))
    report = soak(models, Plan(**options))
    print(report)
    return 1 if report.broken else 0
