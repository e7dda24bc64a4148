"""Limits of API keys, for one server, or for all servers that share a Redis.

Each server counts its requests with `rate_limiter`. With a Redis, it also counts the accepted requests there, by the
same rules and in one atomic step. While Redis cannot be reached, each server continues with its own counts.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Protocol

from vivavoce.server.rate_limiter import Permit, Principal, RateLimiter
from vivavoce.server.setting_kinds import is_address
from vivavoce.server.settings import AuthSection, VoicesSection
from vivavoce.server.settings_sources import masked


class Counts(Protocol):
    """Counts that several servers share."""

    async def take(self, principal: Principal, identity: str | None, prices: dict[str, int]) -> None:
        """Count a new request, or more text if identity is None. Overloaded: a limit for all servers is reached."""

    def leave(self, identity: str) -> None:
        """Note that a counted request has ended."""

    async def close(self) -> None: ...


class KeyLimits:
    """Admits requests within the limits of their keys, in one event loop. shared: several servers' counts, if any."""

    def __init__(self, shared: Counts | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._own, self._shared = RateLimiter(clock), shared

    async def enter(self, principal: Principal, characters: int) -> KeyPermit:
        """See `RateLimiter.enter`."""
        permit = KeyPermit(principal, self._own.enter(principal, characters), self._shared)
        await permit.pay({"requests": 1, "characters": characters}, begins=True)
        return permit

    async def close(self) -> None:
        if self._shared is not None:
            await self._shared.close()


def open_limits(auth: AuthSection, voices: VoicesSection) -> KeyLimits:
    """Make the limits that the settings ask for. Raises the errors of `SharedCounts`."""
    place = auth.limits_place or voices.place
    if auth.keys_file is None or place is None or not is_address(place):
        return KeyLimits()
    from vivavoce_fleet.shared_counts import SharedCounts

    return KeyLimits(SharedCounts(place, masked(place)))


class KeyPermit:
    """One admitted request; call `leave` at its end, once or more often."""

    def __init__(self, principal: Principal, own: Permit, shared: Counts | None) -> None:
        self._principal, self._own, self._shared = principal, own, shared if own.counted else None
        self._identity = uuid.uuid4().hex

    async def charge(self, characters: int) -> None:
        """See `Permit.charge`."""
        self._own.charge(characters)
        await self.pay({"characters": characters})

    async def pay(self, prices: dict[str, int], begins: bool = False) -> None:
        """Count in the shared store what this server has counted; if the store refuses, undo the server's count."""
        if self._shared is None:
            return
        try:
            await self._shared.take(self._principal, self._identity if begins else None, prices)
        except BaseException:
            self._own.give_back(prices)
            if begins:
                self.leave()
            raise

    def leave(self) -> None:
        self._own.leave()
        if self._shared is not None:
            self._shared.leave(self._identity)
