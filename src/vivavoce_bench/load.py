"""Load tests of a streaming backend: requests, simulated users, and the outcome of each request.

Only the event loop reads time and waits (`loop.time()`, `asyncio.sleep`), so a simulated loop can replace it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import InvalidRequest
from vivavoce_bench.measure import Arrival, PlaybackTrace, read_lines
from vivavoce_bench.texts import SENTENCES

MAX_CONCURRENCY = 4096
MAX_RATE = 10_000.0
AUDIBLE, SOUND_SAMPLES = 10 ** (-50 / 20), 240
"""Level of a sound, and the samples over which it is measured: 10 ms at 24 kHz."""


@dataclass(frozen=True)
class Utterance:
    """One request. voice: None means the target's default voice."""

    number: int
    text: str
    voice: str | None = None
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Piece:
    """A piece of audio.

    samples: [num_samples] float32 in ±1, or None if the target does not keep them; sound_at: as in `Arrival`.
    """

    num_samples: int
    samples: NDArray[np.float32] | None = None
    sound_at: int | None = 0


def first_sound(samples: NDArray[np.float32]) -> int | None:
    """Return the place of the first 10 ms whose level (RMS) is above −50 dBFS, or None; samples: [n] in ±1.

    A single sample above it is no sound: a vocoder begins with one.
    """
    starts = np.arange(0, len(samples), SOUND_SAMPLES)
    levels = np.add.reduceat(samples**2, starts) / SOUND_SAMPLES if len(samples) else starts
    found = np.flatnonzero(levels > AUDIBLE**2)
    return int(starts[found[0]]) if len(found) else None


class Refused(Exception):
    """The target rejects the request for now; try again after `retry_after_s` seconds."""

    def __init__(self, retry_after_s: float = 1.0) -> None:
        super().__init__(f"refused; try again after {retry_after_s:g} s")
        self.retry_after_s = retry_after_s


class Target(Protocol):
    """A system under test, which is used in one event loop."""

    @property
    def sample_rate(self) -> int: ...

    def speak(self, utterance: Utterance) -> AsyncIterator[Piece]:
        """Yield the audio in pieces as they arrive. The iterator may raise `Refused` or any other error."""


class Ending(str, Enum):
    OK = "ok"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, eq=False, kw_only=True)
class Outcome(PlaybackTrace):
    """The result of one request. In an open loop, start_s is the request's planned time, even if it was sent later.

    utterance: the request, in the target's own type; problem: the error of a failed request, else ""; retry_after_s:
    the wait that a refusal asks for; file: where the audio was saved, or None.
    """

    utterance: Any
    ending: Ending = Ending.OK
    problem: str = ""
    retry_after_s: float = 0.0
    file: Path | None = None

    @property
    def ok(self) -> bool:
        return self.ending is Ending.OK

    def without_samples(self) -> Outcome:
        return replace(self, arrivals=tuple(replace(one, samples=None) for one in self.arrivals))


def with_ending(outcomes: Sequence[Outcome], ending: Ending) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.ending is ending]


@dataclass(frozen=True)
class ClosedLoop:
    """`concurrency` users, each with one request at a time. So a slower target gets fewer requests per second."""

    concurrency: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise InvalidRequest(
                f"concurrency: {self.concurrency} is outside of 1 … {MAX_CONCURRENCY}; choose one inside"
            )


@dataclass(frozen=True)
class OpenLoop:
    """Users who arrive at random and independently, `rate` per second, even if the target is slower."""

    rate: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.rate <= MAX_RATE:
            raise InvalidRequest(f"rate: {self.rate} is outside of 0 … {MAX_RATE:g} per second; choose one inside")

    def arrivals(self, count: int) -> list[float]:
        """Return arrival times in seconds after the start: a Poisson process, but the first user arrives at 0."""
        drawn = random.Random(self.seed)
        times = [0.0]
        while len(times) < count:
            times.append(times[-1] + drawn.expovariate(self.rate))
        return times[:count]


Load = ClosedLoop | OpenLoop


async def run_load(
    target: Target, utterances: Sequence[Utterance], load: Load, show: Callable[[int], None] = lambda _: None
) -> list[Outcome]:
    """Send the load to a target and return the outcomes in the order of `utterances`; the target stays open.

    show: called with the number of requests that have ended.
    """
    loop = asyncio.get_running_loop()
    outcomes: dict[int, Outcome] = {}

    async def ask(index: int, start_s: float) -> float:
        outcomes[index] = await _ask(target, utterances[index], start_s)
        show(len(outcomes))
        return outcomes[index].retry_after_s

    async def user(indices: Iterator[int]) -> None:
        wait_s = 0.0
        for index in indices:
            # A refused user waits as the refusal asks. Otherwise the load would measure how fast the target refuses.
            await asyncio.sleep(wait_s)
            wait_s = await ask(index, loop.time())

    async def arrive(index: int, at_s: float) -> None:
        await asyncio.sleep(at_s - loop.time())
        await ask(index, at_s)

    indices = iter(range(len(utterances)))
    if isinstance(load, ClosedLoop):
        await asyncio.gather(*(user(indices) for _ in range(min(load.concurrency, len(utterances)))))
    else:
        start_s = loop.time()
        times = load.arrivals(len(utterances))
        await asyncio.gather(*(arrive(index, start_s + after_s) for index, after_s in enumerate(times)))
    return [outcomes[index] for index in range(len(utterances))]


async def _ask(target: Target, utterance: Utterance, start_s: float) -> Outcome:
    loop = asyncio.get_running_loop()
    arrivals: list[Arrival] = []
    ending, problem, retry_after_s = Ending.OK, "", 0.0
    try:
        async for piece in target.speak(utterance):
            if piece.num_samples:
                arrivals.append(Arrival(loop.time(), piece.num_samples, piece.samples, piece.sound_at))
    except Refused as refusal:
        ending, retry_after_s = Ending.REFUSED, refusal.retry_after_s
    except Exception as error:  # an error ends only this request
        ending, problem = Ending.FAILED, f"{type(error).__name__}: {error}"
    if ending is Ending.OK and not arrivals:
        ending, problem = Ending.FAILED, "no audio came"
    came = (start_s, loop.time(), target.sample_rate, tuple(arrivals))
    return Outcome(*came, utterance=utterance, ending=ending, problem=problem, retry_after_s=retry_after_s)


@dataclass(frozen=True)
class Workload:
    """Texts and voices from which requests are drawn; the same seed draws the same requests."""

    texts: Sequence[str] = SENTENCES
    voices: Sequence[str | None] = (None,)
    """The requests use these voices in turn; None is the target's default voice."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.texts:
            raise InvalidRequest("texts: the list is empty; give at least one")

    def utterances(self, count: int, purpose: str = "load") -> list[Utterance]:
        """Draw `count` requests. Requests for different purposes (such as a warm-up) are drawn independently.

        All texts are used once, in random order, before a text is used again, so loads have similar mixes of lengths.
        """
        drawn = random.Random(f"{purpose} {self.seed}")
        texts: list[str] = []
        while len(texts) < count:
            texts += drawn.sample(self.texts, len(self.texts))
        return [
            Utterance(number, text, self.voices[number % len(self.voices)], self.seed + number)
            for number, text in enumerate(texts[:count])
        ]


def read_texts(path: Path) -> list[str]:
    """Read a UTF-8 file with one text per line; skip empty lines. `InvalidRequest`: the file is unreadable or empty."""
    texts = [line.strip() for line in read_lines(path, "text_file") if line.strip()]
    if not texts:
        raise InvalidRequest(f"text_file: {str(path)!r} holds no text; write one per line")
    return texts


def with_words(texts: Sequence[str], fewest: int, most: int) -> list[str]:
    kept = [text for text in texts if fewest <= len(text.split()) <= most]
    if not kept:
        counts = sorted(len(text.split()) for text in texts)
        raise InvalidRequest(
            f"words: no text has {fewest} to {most} words, they have {counts[0]} to {counts[-1]}; widen the range"
        )
    return kept
