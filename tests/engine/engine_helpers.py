"""What the engine's tests share: requests, engines whose admission does not depend on the machine, faults."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tests.engine.flow_stage.flow_oracle import check_pages
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.cost_model import BatchSize, CostModel, Stage
from vivavoce.engine.engine import Engine
from vivavoce.engine.flow_stage import FlowStage
from vivavoce.engine.handle import ArrivingText, Handle
from vivavoce.engine.request import Conditioning, EngineRequest, InputMode, SamplingParams, SegmentRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import InvalidText
from vivavoce.models.build import Models

PATIENCE_S = 50.0
"""How long a test waits for what must come; only a failing one waits so long."""

BOTH = pytest.mark.parametrize("models", ["v2", "v3"], indirect=True)
"""A test runs with the models of each generation."""

LOW_LATENCY = ChunkPolicy.low_latency()


class FixedCosts(CostModel):
    """A machine of one speed: a test's batches do not depend on how busy the one it runs on is."""

    def __init__(self, seconds: float = 1e-6) -> None:
        self.seconds = seconds

    def predict(self, stage: Stage, size: BatchSize) -> float:
        return self.seconds

    def observe(self, stage: Stage, size: BatchSize, seconds: float) -> None:
        """Nothing is learnt."""


@contextmanager
def running(
    models: Models,
    *,
    settings: EngineSettings = EngineSettings(slots=8, state_bytes=64 << 20),
    costs: CostModel | None = None,
    **options: Any,
) -> Iterator[Engine]:
    """An engine with fixed costs; at the end nothing is left of the requests that were, and it is stopped."""
    engine = Engine(models, settings, costs=costs or FixedCosts(), **options)
    try:
        yield engine
        if engine.healthy and engine._loop.thread:
            assert_clean(engine)
    finally:
        engine.close(drain=False)


def voice(seed: int = 7, prompt: int = 30, ids: int = 6561) -> Conditioning:
    """A voice of random features, with so many prompt tokens of so many kinds."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, ids, (prompt,), generator=generator)
    return Conditioning(
        embedding=torch.randn(192, generator=generator),
        lm_prompt_text=(65, 66, 67) if prompt else (),
        lm_prompt_tokens=tuple(tokens.tolist()),
        flow_tokens=tokens,
        flow_mel=torch.randn(2 * prompt, 80, generator=generator),
    )


VOICE, MUTE = voice(), voice(8, prompt=0)
"""With a prompt of 30 tokens, and without any."""


def segment(
    tokens: int | None = 20,
    *,
    text: tuple[int, ...] = (65, 66, 67),
    seed: int = 0,
    speed: float = 1.0,
    voice: Conditioning = VOICE,
) -> SegmentRequest:
    """A text spoken in exactly so many tokens; None: as many as the model likes."""
    sampling = SamplingParams(exact_tokens=tokens, max_ratio=4.0)
    return SegmentRequest(voice, text=text, sampling=sampling, seed=seed, speed=speed)


def given(
    count: int, seed: int = 3, speed: float = 1.0, voice: Conditioning = VOICE, ids: int = 6561
) -> SegmentRequest:
    """Speech tokens that are to be spoken as they are, of so many kinds."""
    tokens = torch.randint(0, ids, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return SegmentRequest(voice, speech_tokens=tuple(tokens), seed=seed, speed=speed)


def offline(*segments: SegmentRequest) -> EngineRequest:
    return EngineRequest(segments)


def stream(*segments: SegmentRequest, policy: ChunkPolicy = LOW_LATENCY) -> EngineRequest:
    return EngineRequest(segments, policy)


def arriving(first: SegmentRequest | None, arrival: InputMode, policy: ChunkPolicy = LOW_LATENCY) -> EngineRequest:
    return EngineRequest(() if first is None else (first,), policy, arrival)


def joined(handle: Handle) -> NDArray[np.float32]:
    return handle.result().samples


COMPANY = 1e-2
"""How far neighbours may move a sample: the last bits of a mel move the pitch, and a long sum of it the phase."""


def same(one: NDArray[np.float32], other: NDArray[np.float32], atol: float = COMPANY) -> None:
    assert one.shape == other.shape
    np.testing.assert_allclose(one, other, atol=atol, rtol=0)


def relative_error(wave: NDArray[np.float32], whole: NDArray[np.float32]) -> float:
    assert wave.shape == whole.shape
    return float(np.sqrt(np.square(wave - whole).mean() / np.square(whole).mean()))


@dataclass
class Fault:
    """Stands in for a method: it raises when `when` says so of the call's number (from 1) and arguments.

    error: what is raised is like it.
    """

    method: Callable[..., Any]
    error: BaseException
    when: Callable[..., bool]
    calls: int = 0
    raised: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, *given: Any, **named: Any) -> Any:
        with self.lock:
            self.calls += 1
            fails = self.when(self.calls, *given)
            self.raised += fails
        if fails:
            # A new one each time: an error that is raised again keeps all frames it has ever passed.
            raise type(self.error)(*self.error.args)
        return self.method(*given, **named)


def first(number: int, *_: Any) -> bool:
    """The first call fails."""
    return number == 1


def inject(monkeypatch: Any, owner: Any, name: str, error: BaseException, when: Callable[..., bool] = first) -> Fault:
    """Have a method of an object, or of all objects of a class, fail."""
    fault = Fault(getattr(owner, name), error, when)
    # A function becomes a method where an object with __call__ would not.
    monkeypatch.setattr(owner, name, (lambda *given: fault(*given)) if isinstance(owner, type) else fault)
    return fault


def assert_clean(engine: Engine) -> None:
    """Nothing is left of the requests that were. The engine is idle."""
    at_rest(engine)
    lm, flow = engine.stages.lm, engine.stages.flow
    if lm is not None:
        assert lm.free_slots == lm.slots
        assert lm.in_flight == 0
    if isinstance(flow, FlowStage):
        assert not flow._streams
        assert not flow._batches
        check_pages(flow)
        assert flow.pool.total - len(flow.pool.free) == sum(len(state.pages) for state in flow.prompts.states.values())
    assert engine.idle
    statistics = engine.statistics
    assert (statistics.waiting, statistics.slots.used, statistics.requests.unfinished) == (0, 0, 0)


def catch_up(engine: Engine) -> None:
    """Wait until the loop has taken all messages that were posted."""
    taken = threading.Event()
    engine._loop.post(taken.set)
    assert taken.wait(PATIENCE_S), "the loop does not take messages"


def at_rest(engine: Engine) -> None:
    """Wait until the loop has nothing to do."""
    for _ in range(1_000):
        catch_up(engine)
        if engine.idle:
            return
    raise AssertionError("the engine does not come to rest")


def feed(text: ArrivingText, parts: Iterator[tuple[int, ...] | SegmentRequest]) -> None:
    """Have a thread bring the parts, each when speech waits for it; it ends with the request."""

    def work() -> None:
        try:
            while text.wait_until_wanted():
                part = next(parts, None)
                if part is None:
                    text.close()
                    return
                text.push(part)
        except BaseException as error:
            text.fail(error if isinstance(error, Exception) else InvalidText(f"text: {type(error).__name__}"))

    threading.Thread(target=work, name="vivavoce-text", daemon=True).start()
