"""Time that stands still while nobody waits, and targets whose every piece comes when it should."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from vivavoce_bench.load import Outcome, Piece, Utterance
from vivavoce_bench.measure import Arrival

T = TypeVar("T")

RATE = 1000
"""Samples per second: one is a millisecond."""


class _Selector(selectors.DefaultSelector):
    """Waits for nothing: the time that an event loop would wait has passed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everyone waits for something that never comes"
        self.now += timeout
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next moment at which something happens."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run in virtual time."""
    loop = VirtualTimeLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


Script = Sequence[tuple[float, int]]
"""Of each piece: seconds after the piece before it, and samples."""


@dataclass
class Scripted:
    """A target that follows a script for each utterance; an exception in its place is raised."""

    script: Callable[[Utterance], Script | Exception]
    sample_rate: int = RATE
    calls: list[tuple[float, Utterance]] = field(default_factory=list)
    most: int = 0
    """Requests at the same time, at most."""
    _now: int = 0

    async def speak(self, utterance: Utterance) -> AsyncIterator[Piece]:
        self.calls.append((asyncio.get_running_loop().time(), utterance))
        self._now += 1
        self.most = max(self.most, self._now)
        try:
            script = self.script(utterance)
            if isinstance(script, Exception):
                raise script
            for wait_s, num_samples in script:
                await asyncio.sleep(wait_s)
                yield Piece(num_samples)
        finally:
            self._now -= 1


def outcome(*arrivals: tuple[float, int], start_s: float = 0.0, end_s: float | None = None, **settings: Any) -> Outcome:
    """One whose audio came at these times, with these numbers of samples."""
    came = tuple(Arrival(at_s, num_samples) for at_s, num_samples in arrivals)
    settings.setdefault("utterance", Utterance(0, "Hi."))
    return Outcome(start_s, came[-1].at_s if end_s is None else end_s, RATE, came, **settings)
