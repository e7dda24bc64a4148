"""Putting a load on a target: a number of users, or arrivals at a rate.

Time is the running event loop's: `loop.time()` and `asyncio.sleep`, nothing else.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from vivavoce.bench.outcome import Arrival, Ending, Outcome
from vivavoce.bench.target import Refused, Target, Utterance
from vivavoce.errors import InvalidRequest

MAX_CONCURRENCY = 4096
MAX_RATE = 10_000.0


@dataclass(frozen=True)
class ClosedLoop:
    """`concurrency` users, each of whom asks anew when the last answer is whole. A slow target slows them down."""

    concurrency: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= MAX_CONCURRENCY:
            raise InvalidRequest(
                f"concurrency: {self.concurrency} is outside of 1 … {MAX_CONCURRENCY}; choose one inside"
            )


@dataclass(frozen=True)
class OpenLoop:
    """Users who come at random and independently, `rate` of them per second, however the target fares."""

    rate: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.rate <= MAX_RATE:
            raise InvalidRequest(f"rate: {self.rate} is outside of 0 … {MAX_RATE:g} per second; choose one inside")

    def arrivals(self, count: int) -> list[float]:
        """Seconds after the start at which the users come: a Poisson process, whose first one comes at 0."""
        drawn = random.Random(self.seed)
        times = [0.0]
        while len(times) < count:
            times.append(times[-1] + drawn.expovariate(self.rate))
        return times[:count]


Load = ClosedLoop | OpenLoop


async def run_load(
    target: Target,
    utterances: Sequence[Utterance],
    load: Load,
    show: Callable[[int], None] = lambda _: None,
) -> list[Outcome]:
    """Ask the target for every utterance.

    Args:
        target: what is asked; it stays open.
        utterances: the requests, in the order in which they are asked for.
        load: by whom.
        show: called with the number of requests that have ended.

    Returns:
        What became of each, in the order of `utterances`.
    """
    outcomes: dict[int, Outcome] = {}

    async def ask(place: int, start_s: float) -> Outcome:
        outcomes[place] = await _ask(target, utterances[place], start_s)
        show(len(outcomes))
        return outcomes[place]

    places = iter(range(len(utterances)))
    if isinstance(load, ClosedLoop):
        await asyncio.gather(*(_user(places, ask) for _ in range(min(load.concurrency, len(utterances)))))
    else:
        start_s = asyncio.get_running_loop().time()
        times = [start_s + after_s for after_s in load.arrivals(len(utterances))]
        await asyncio.gather(*(_arrive(place, at_s, ask) for place, at_s in zip(places, times, strict=True)))
    return [outcomes[place] for place in range(len(utterances))]


_Ask = Callable[[int, float], Awaitable[Outcome]]
"""(place, when its user asked) → what became of it."""


async def _user(places: Iterator[int], ask: _Ask) -> None:
    loop = asyncio.get_running_loop()
    wait_s = 0.0
    for place in places:
        # Who was refused obeys: asking again at once would only count how fast the target can refuse.
        await asyncio.sleep(wait_s)
        wait_s = (await ask(place, loop.time())).retry_after_s


async def _arrive(place: int, at_s: float, ask: _Ask) -> None:
    await asyncio.sleep(at_s - asyncio.get_running_loop().time())
    await ask(place, at_s)


async def _ask(target: Target, utterance: Utterance, start_s: float) -> Outcome:
    loop = asyncio.get_running_loop()
    arrivals: list[Arrival] = []
    ending, problem, retry_after_s = Ending.OK, "", 0.0
    try:
        async for piece in target.speak(utterance):
            if piece.num_samples:
                arrivals.append(Arrival(loop.time(), piece.num_samples, piece.samples))
    except Refused as refusal:
        ending, retry_after_s = Ending.REFUSED, refusal.retry_after_s
    except Exception as error:  # whatever a target breaks with is a figure of this request, and ends no other
        ending, problem = Ending.FAILED, f"{type(error).__name__}: {error}"
    if ending is Ending.OK and not arrivals:
        ending, problem = Ending.FAILED, "no audio came"
    return Outcome(utterance, target.sample_rate, start_s, loop.time(), tuple(arrivals), ending, problem, retry_after_s)
