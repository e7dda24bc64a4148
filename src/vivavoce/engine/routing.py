"""Choose one of several engines for a request: pure functions over the load that each engine reports.

A voice's requests prefer one engine, which then holds the voice's state and its recording's features. The preference
is a hash (rendezvous hashing, Thaler and Ravishankar 1998), so nothing is remembered and nothing has to be shared: when
an engine is away, only the voices that preferred it move, and they come back with it. A voice that many ask for would
make a hot spot. So an engine is preferred only up to `SPILL` times its fair share of all streams (Mirrokni et al. 2018,
"Consistent hashing with bounded loads"). Beyond that the engine with the most headroom is asked: to make the state of
one more voice costs a prefill, or once the extraction of a recording, which is cheaper than a late stream. While an
engine has next to nothing to do, shares say nothing yet, and its voices stay.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from vivavoce.errors import EngineStopped, OutOfMemory, Overloaded, VivavoceError

SPILL = 1.1
"""An engine with up to this many times its fair share of all streams is still asked for its voices first."""
IDLE = 0.05
"""An engine that uses at most this share of its capacity is also still asked for its voices first."""
_TOLD_APART = 1 << 16
"""Bytes of a recording that are hashed: enough to distinguish recordings, which may have millions of bytes."""


@dataclass(frozen=True)
class EngineLoad:
    """One engine's state at one moment.

    name: unlike the others', and the same for as long as the fleet lives; ready: it takes requests; streams: that it
    has, those sent a moment ago included; capacity: streams that it keeps up with as its admission reckons, 1 or more.
    """

    name: str
    ready: bool = True
    streams: int = 0
    capacity: int = 1

    @property
    def headroom(self) -> float:
        """Share of its real time that is left: 1 where it has nothing to do, and 0 or less where it has too much.

        So each engine that is idle gets its turn, and an estimate of its capacity that was too low does not stay so.
        """
        return 1 - self.streams / self.capacity


class SentRecording(Protocol):
    """A recording that came with a request."""

    @property
    def content(self) -> bytes: ...


def voice_key(owner: str, voice: str | SentRecording | None) -> bytes | None:
    """The key that requests in one voice share; None for the model's default voice, which every engine holds.

    The owner is part of it, as two owners' voices of one name are two voices.
    """
    if voice is None:
        return None
    if isinstance(voice, str):
        return f"{owner}\0{voice}".encode("utf-8", "surrogatepass")
    return b"%d " % len(voice.content) + bytes(voice.content[:_TOLD_APART])


def order(engines: Sequence[EngineLoad], key: bytes | None = None) -> list[EngineLoad]:
    """The engines that are ready, in the order in which they are asked for one more stream; key: as `voice_key`.

    The one that the voice prefers is first while it has at most `SPILL` times its fair share, or is as good as idle;
    the others follow by their headroom, the most first. Of equals the one of the largest capacity is first.
    """
    ready = sorted((one for one in engines if one.ready), key=lambda one: (-one.headroom, -one.capacity))
    if key is not None and len(ready) > 1:
        digest = hashlib.blake2b(key, digest_size=16).digest()
        preferred = max(ready, key=lambda one: hashlib.blake2b(digest + one.name.encode()).digest())
        mean = sum(one.streams for one in ready) / sum(one.capacity for one in ready)
        if preferred.streams <= max(SPILL * mean, IDLE) * preferred.capacity:
            ready.sort(key=lambda one: one is not preferred)
    return ready


def is_retryable(refusal: VivavoceError) -> bool:
    """Whether another engine may take what one has refused so: it is full, or has gone.

    Bad input is bad everywhere, and the store of voices is one for all.
    """
    return isinstance(refusal, (Overloaded, OutOfMemory, EngineStopped))


def shortest_wait(refusals: Sequence[VivavoceError]) -> VivavoceError:
    """Choose the refusal to report when all engines have refused: the one that asks for the shortest wait.

    Full engines come before those that have gone: their wait is reckoned.
    """
    return min(refusals, key=lambda one: (not isinstance(one, Overloaded), one.retry_after_s or math.inf))
