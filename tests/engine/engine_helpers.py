"""What the engine's tests share: requests, engines whose admission does not depend on the machine, faults."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.cost_model import CostModel, Stage, Work
from vivavoce.engine.engine import Engine
from vivavoce.engine.handle import Handle
from vivavoce.engine.request import Arrival, Conditioning, SamplingParams, SpeechRequest, SynthesisRequest
from vivavoce.engine.settings import EngineSettings
from vivavoce.models.build import Models

PATIENCE_S = 50.0
"""How long a test waits for what must come; only a failing one waits so long."""

LOW_LATENCY = ChunkPolicy.low_latency()


class FixedCosts(CostModel):
    """A machine of one speed: a test's batches do not depend on how busy the one it runs on is."""

    def __init__(self, seconds: float = 1e-6) -> None:
        self.seconds = seconds

    def predict(self, stage: Stage, work: Work) -> float:
        return self.seconds

    def observe(self, stage: Stage, work: Work, seconds: float) -> None:
        """Nothing is learnt."""


@contextmanager
def running(
    models: Models,
    *,
    settings: EngineSettings = EngineSettings(slots=8, state_bytes=64 << 20),
    costs: CostModel | None = None,
    **options: Any,
) -> Iterator[Engine]:
    """An engine with fixed costs, stopped at the end."""
    engine = Engine(models, settings, **options)
    set_costs(engine, costs or FixedCosts())
    try:
        yield engine
    finally:
        engine.close(drain=False)


def set_costs(engine: Engine, costs: CostModel) -> None:
    """Give all parts of an engine that has not begun this model of costs."""
    loop, scheduler = engine._loop, engine._loop._scheduler
    for part in (engine, engine._books, loop._language, loop._synthesis, scheduler, scheduler._batches):
        part._costs = costs  # type: ignore[attr-defined]


def voice(seed: int = 7, prompt: int = 30) -> Conditioning:
    """A voice of random features, with so many prompt tokens."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 6561, (prompt,), generator=generator)
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
) -> SynthesisRequest:
    """A text spoken in exactly so many tokens; None: as many as the model likes."""
    sampling = SamplingParams(exact_tokens=tokens, max_ratio=4.0)
    return SynthesisRequest(voice, text=text, sampling=sampling, seed=seed, speed=speed)


def given(count: int, seed: int = 3, speed: float = 1.0, voice: Conditioning = VOICE) -> SynthesisRequest:
    """Speech tokens that are to be spoken as they are."""
    tokens = torch.randint(0, 6561, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return SynthesisRequest(voice, speech_tokens=tuple(tokens), seed=seed, speed=speed)


def offline(*segments: SynthesisRequest) -> SpeechRequest:
    return SpeechRequest(segments)


def stream(*segments: SynthesisRequest, policy: ChunkPolicy = LOW_LATENCY) -> SpeechRequest:
    return SpeechRequest(segments, policy)


def arriving(first: SynthesisRequest | None, arrival: Arrival, policy: ChunkPolicy = LOW_LATENCY) -> SpeechRequest:
    return SpeechRequest(() if first is None else (first,), policy, arrival)


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
    loop, workshop = engine._loop, engine._workshop
    assert not loop._tickets
    assert not loop._waiting
    assert not loop._tracks
    assert not loop._language._tracks
    assert not loop._synthesis.busy
    assert workshop.lm.free_slots == workshop.lm.slots
    assert workshop.lm.in_flight == 0
    assert not workshop.flow._streams
    assert not workshop.flow._jobs
    assert workshop.flow.balanced()
    prompts = sum(len(state.pages) for state in workshop.flow._prompts)
    assert workshop.flow.statistics().pages_in_use == prompts
    load = engine._books.load()
    assert (load.streams, load.starting, load.offline, load.waiting) == (0, 0, 0, 0)
    statistics = engine.statistics
    assert statistics.slots.used == 0
    assert statistics.requests.unfinished == 0


class _Probe:
    """A message about a request that nobody knows: taken like any other, it changes nothing."""

    def __init__(self) -> None:
        self.taken = threading.Event()

    @property
    def id(self) -> int:
        self.taken.set()
        return -1


def catch_up(engine: Engine) -> None:
    """Wait until the loop has taken all messages that were posted."""
    probe = _Probe()
    engine._loop.post(probe)  # type: ignore[arg-type]
    assert probe.taken.wait(PATIENCE_S), "the loop does not take messages"


def at_rest(engine: Engine) -> None:
    """Wait until the loop has nothing to do."""
    loop = engine._loop
    for _ in range(1_000):
        catch_up(engine)
        if not (loop._tickets or loop._waiting or loop._synthesis.busy or loop._language.busy):
            return
    raise AssertionError("the engine does not come to rest")


def texts(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(range(65, 65 + size)) for size in sizes]
