"""Spares requests the wait for a server that does not answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

REST_S = 3.0
"""Seconds between two attempts to reach a server that is away."""


@dataclass(frozen=True)
class Absence:
    """since: seconds since the epoch when a server was first missed; reason: what the last attempt came to."""

    since: float
    reason: str


class Breaker:
    """Open while a server is away: then one caller in `rest_s` seconds tries it, and the others go on without.

    Safe between threads. clock: seconds of a monotonic clock.
    """

    def __init__(self, rest_s: float = REST_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._rest_s, self._clock = rest_s, clock
        self._lock = Lock()
        self._absence: Absence | None = None
        self._next_try = 0.0

    @property
    def absence(self) -> Absence | None:
        """Since when the server is away, and why; None: it answered last time."""
        return self._absence

    def admits(self) -> bool:
        """Whether this caller may try the server. While it is away, only the first one after each rest may."""
        with self._lock:
            if self._absence is None:
                return True
            now = self._clock()
            if now < self._next_try:
                return False
            self._next_try = now + self._rest_s
            return True

    def succeeded(self) -> bool:
        """The server has answered. Tells whether it was away until now."""
        with self._lock:
            was_away, self._absence = self._absence is not None, None
            return was_away

    def failed(self, reason: str) -> Absence:
        """The server has not answered."""
        with self._lock:
            since = time.time() if self._absence is None else self._absence.since
            self._absence = Absence(since, reason)
            self._next_try = self._clock() + self._rest_s
            return self._absence
