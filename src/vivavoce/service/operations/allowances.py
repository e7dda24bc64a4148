"""How much each caller may ask for: rates as token buckets, and requests at once. Of one event loop, without locks.

A bucket fills evenly and holds one minute's worth, so that a caller may ask for a minute's worth in one burst.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from vivavoce.errors import InvalidRequest, Overloaded
from vivavoce.service.operations.callers import Allowance, Caller

BUSY_RETRY_S = 1.0
"""Advice to who has too many requests at once: nobody knows when one of them ends."""
_MINUTE = 60.0
_ROUNDING = 1e-6
"""Of a token: who waits as long as was advised is let in."""


@dataclass
class _Bucket:
    """What may be taken now; rate: tokens per minute; level: at the moment `at`."""

    rate: float
    burst: float
    level: float
    at: float

    def fill(self, now: float, rate: float, burst: float) -> None:
        """Let time pass; rate and burst may have been changed by the operator."""
        self.level = min(burst, self.level + max(0.0, now - self.at) * self.rate / _MINUTE)
        self.rate, self.burst, self.at = rate, burst, now

    def wait_s(self, tokens: float) -> float:
        """Seconds until so many can be taken; 0: now."""
        lacking = tokens - self.level
        return lacking * _MINUTE / self.rate if lacking > _ROUNDING else 0.0

    def full_at(self) -> float:
        """The moment from which on it is full."""
        return self.at + (self.burst - self.level) * _MINUTE / self.rate


@dataclass
class _Account:
    """One caller's buckets by what they hold, and its requests that go on."""

    buckets: dict[str, _Bucket] = field(default_factory=dict)
    running: int = 0

    def idle(self, now: float) -> bool:
        """Whether it is as good as new."""
        return not self.running and all(bucket.full_at() <= now for bucket in self.buckets.values())


class Allowances:
    """The books of all callers, by their names. A caller without limits has none and costs nothing."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    def enter(self, caller: Caller, characters: int) -> Pass:
        """Let a request in; characters: of its text, 0 for one that arrives later (`Pass.charge`).

        What is refused costs nothing.

        Raises:
            InvalidRequest: the text is longer than a minute's worth of characters: waiting would not help.
            Overloaded: too many requests at once or in this minute, or too many characters; says when to try again.
        """
        allowance = caller.allowance
        if allowance == Allowance():
            return Pass(self, caller, None)
        account = self._account(caller.name)
        if allowance.concurrent is not None and account.running >= allowance.concurrent:
            raise Overloaded(
                f"requests: {account.running} of {caller.name!r} are running, which is its limit at once; "
                "wait for one to end",
                BUSY_RETRY_S,
            )
        prices = {"requests": 1, "characters": characters}
        self._take(caller, account, prices)
        account.running += 1
        return Pass(self, caller, account)

    def _account(self, name: str) -> _Account:
        if name not in self._accounts:
            now = self._clock()
            # Names come and go with the file of keys: what is as good as new is kept no longer.
            self._accounts = {name: kept for name, kept in self._accounts.items() if not kept.idle(now)}
            self._accounts[name] = _Account()
        return self._accounts[name]

    def _take(self, caller: Caller, account: _Account, prices: dict[str, int]) -> None:
        """Take all of it or, if anything lacks, nothing."""
        now = self._clock()
        rates = {
            "requests": caller.allowance.requests_per_minute,
            "characters": caller.allowance.characters_per_minute,
        }
        wanted = []
        for what, tokens in prices.items():
            if (rate := rates[what]) is None:
                account.buckets.pop(what, None)
                continue
            burst = max(1.0, rate)  # else who may ask less than once in a minute could never ask
            if tokens > burst:
                raise InvalidRequest(
                    f"text: {tokens} {what} are more than the {rate:g} in a minute that {caller.name!r} may ask for; "
                    "split it into several requests"
                )
            bucket = account.buckets.setdefault(what, _Bucket(rate, burst, burst, now))
            bucket.fill(now, rate, burst)
            if wait_s := bucket.wait_s(tokens):
                raise Overloaded(
                    f"{what}: {caller.name!r} may ask for {rate:g} in a minute; try again in {wait_s:.1f} s", wait_s
                )
            wanted.append((bucket, tokens))
        for bucket, tokens in wanted:
            bucket.level -= tokens


class Pass:
    """One request that was let in; it must be left at the end, once or more often."""

    def __init__(self, allowances: Allowances, caller: Caller, account: _Account | None) -> None:
        self._allowances = allowances
        self._caller = caller
        self._account = account

    def charge(self, characters: int) -> None:
        """Pay for more of a text that arrives piece by piece.

        Raises:
            InvalidRequest, Overloaded: see `Allowances.enter`; nothing is paid then.
        """
        if self._account is not None:
            self._allowances._take(self._caller, self._account, {"characters": characters})

    def leave(self) -> None:
        """The request has ended; further calls do nothing."""
        if self._account is not None:
            self._account.running -= 1
            self._account = None
