"""Choose one of several engines for a request: pure functions over the load that each engine reports.

A voice's requests prefer one engine, which then holds the voice's state and its recording's features. The preference is
a hash (rendezvous hashing, Thaler and Ravishankar 1998), so it needs neither memory nor shared state: when an engine is
away, only the voices that preferred it move, and they come back with it. A voice with many requests would overload its
engine. So an engine is preferred only up to `SPILL` times its fair share of all streams (Mirrokni et al. 2018,
"Consistent hashing with bounded loads"). Beyond that the engine with the most headroom is chosen. There the voice's
state costs a prefill, or a recording is extracted once more; both are cheaper than a late stream. An engine that is
almost idle keeps its voices, whatever its share is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from vivavoce.errors import EngineStopped, OutOfMemory, Overloaded, VivavoceError

SPILL = 1.1
"""An engine with at most this many times its fair share of all streams is preferred for its voices."""
IDLE = 0.05
"""An engine that uses at most this share of its capacity is always preferred for its voices."""
_TOLD_APART = 1 << 16
"""Bytes of a recording that are hashed: enough to distinguish recordings, which may have millions of bytes."""


@dataclass(frozen=True)
class EngineLoad:
    """One engine's state at one moment.

    name: unique, and constant while the fleet lives. ready: the engine accepts requests. streams: its current streams,
    including those just sent. capacity: streams that it can serve in time, as its admission estimates; 1 or more.
    """

    name: str
    ready: bool = True
    streams: int = 0
    capacity: int = 1

    @property
    def headroom(self) -> float:
        """Share of the engine's real time that is left: 1 if it is idle, 0 or less if it is overloaded.

        All idle engines have the same headroom, so each gets streams, and a capacity estimated too low is corrected.
        """
        return 1 - self.streams / self.capacity


class SentRecording(Protocol):
    """A recording that came with a request."""

    @property
    def content(self) -> bytes: ...


def voice_key(owner: str, voice: str | SentRecording | None) -> bytes | None:
    """Return the key that all requests in one voice share; None for the default voice, which every engine holds.

    The key depends on the owner, because two owners may have different voices of the same name.
    """
    if voice is None:
        return None
    if isinstance(voice, str):
        return f"{owner}\0{voice}".encode("utf-8", "surrogatepass")
    return b"%d " % len(voice.content) + bytes(voice.content[:_TOLD_APART])


def order(engines: Sequence[EngineLoad], key: bytes | None = None) -> list[EngineLoad]:
    """Return the ready engines, in the order in which to try them for one more stream; key: see `voice_key`.

    The voice's preferred engine is first while it has at most `SPILL` times its fair share, or is almost idle; the
    others follow by headroom, the largest first. Among equals the engine with the largest capacity is first.
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
    """Return whether another engine may accept the refused request, since the refusing engine is full or has stopped.

    Other refusals would be the same in every engine: bad input, or a voice that the shared store lacks.
    """
    return isinstance(refusal, (Overloaded, OutOfMemory, EngineStopped))


def shortest_wait(refusals: Sequence[VivavoceError]) -> VivavoceError:
    """Choose the refusal to report when all engines have refused: the one with the shortest wait.

    Refusals of full engines come before those of engines that have gone, because their waits are estimates.
    """
    return min(refusals, key=lambda one: (not isinstance(one, Overloaded), one.retry_after_s or math.inf))
