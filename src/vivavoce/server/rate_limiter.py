"""The senders of requests, and their limits of rates and of concurrent requests. Used in one event loop.

A rate is a token bucket that fills evenly and holds a minute's worth, which a principal may use in one burst.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from vivavoce.errors import Forbidden, InvalidRequest, Overloaded

_BUSY_RETRY_S = 1.0
"""Advised seconds until a retry while too many requests run; it is not known when one of them will end."""
_ROUNDING_S = 1e-6
"""Tolerance in seconds, so that a request after the advised wait is accepted."""


@dataclass(frozen=True)
class Principal:
    """The sender of a request. None means no limit.

    name: the API key's name, "" on a server without keys. owner: the namespace of its voices, "" for public ones only.
    may_publish: it may change public voices. Rates are averages, with bursts of up to one minute's amount. concurrent:
    limit of requests that run or wait at once. priority: "batch" makes all its requests batch requests. jobs: limit of
    jobs that are kept at once. job_characters: limit of characters in its unfinished jobs.
    """

    name: str = ""
    owner: str = ""
    may_publish: bool = True
    requests_per_minute: float | None = None
    characters_per_minute: float | None = None
    concurrent: int | None = None
    priority: str = "live"
    jobs: int | None = None
    job_characters: int | None = None


ANONYMOUS = Principal()


def voice_owner(principal: Principal, public: bool) -> str:
    """Return the owner of the voices to change, "" for public voices. Forbidden: the key may not change these."""
    if not public and principal.owner:
        return principal.owner
    if principal.may_publish:
        return ""
    raise Forbidden(f"public: the key {principal.name!r} may not change voices that everybody sees; leave public out")


@dataclass
class _Account:
    """The state of one principal: the time at which each bucket is full again, and the number of running requests."""

    full_at: dict[str, float] = field(default_factory=dict)
    running: int = 0


class RateLimiter:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[str, _Account] = {}

    def __len__(self) -> int:
        return len(self._accounts)

    def enter(self, principal: Principal, characters: int) -> Permit:
        """Admit a request; characters: length of its text, 0 for a streamed text, which `Permit.charge` counts.

        A refused request is not counted. InvalidRequest: more characters than a minute allows. Overloaded: too many
        requests at once, or too much in this minute; the error's `retry_after_s` says when to try again.
        """
        name, most = principal.name, principal.concurrent
        if principal.requests_per_minute is principal.characters_per_minute is most is None:
            return Permit(self, principal, None)
        if name not in self._accounts:  # drop idle accounts, since names change with the file of keys
            now, accounts = self._clock(), self._accounts.items()
            self._accounts = {
                other: kept for other, kept in accounts if kept.running or max(kept.full_at.values(), default=now) > now
            }
        account = self._accounts.setdefault(name, _Account())
        if most is not None and account.running >= most:
            raise busy(principal, account.running)
        self.take(principal, account, {"requests": 1, "characters": characters})
        account.running += 1
        return Permit(self, principal, account)

    def take(self, principal: Principal, account: _Account, prices: dict[str, int]) -> None:
        """Take tokens from the buckets. If a bucket has too few, take none and raise an error of `enter`.

        prices: number of tokens for each bucket, "requests" and "characters".
        """
        now, paid = self._clock(), {}
        rates = {"requests": principal.requests_per_minute, "characters": principal.characters_per_minute}
        for what, tokens in prices.items():
            if (rate := rates[what]) is None:
                account.full_at.pop(what, None)
                continue
            burst = max(1.0, rate)  # with a rate below one a minute, a single request must still fit
            if tokens > burst:
                raise InvalidRequest(
                    f"text: {tokens} {what} are more than the {rate:g} in a minute that {principal.name!r} may ask "
                    "for; split it into several requests"
                )
            paid[what] = max(now, account.full_at.get(what, now)) + tokens * 60 / rate
            wait_s = paid[what] - now - burst * 60 / rate
            if wait_s > _ROUNDING_S:
                raise over_rate(principal, what, rate, wait_s)
        account.full_at.update(paid)

    def give_back(self, principal: Principal, account: _Account, prices: dict[str, int]) -> None:
        """Undo a `take` with the same arguments."""
        rates = {"requests": principal.requests_per_minute, "characters": principal.characters_per_minute}
        for what, tokens in prices.items():
            if (rate := rates[what]) is not None:
                account.full_at[what] -= tokens * 60 / rate


def busy(principal: Principal, running: int) -> Overloaded:
    problem = f"requests: {running} of {principal.name!r} are running, which is its limit at once"
    return Overloaded(f"{problem}; wait for one to end", _BUSY_RETRY_S)


def over_rate(principal: Principal, what: str, rate: float, wait_s: float) -> Overloaded:
    problem = f"{what}: {principal.name!r} may ask for {rate:g} in a minute"
    return Overloaded(f"{problem}; try again in {wait_s:.1f} s", wait_s)


class Permit:
    """One admitted request; call `leave` at its end, once or more often."""

    def __init__(self, limiter: RateLimiter, principal: Principal, account: _Account | None) -> None:
        self._limiter, self._principal, self._account = limiter, principal, account

    @property
    def counted(self) -> bool:
        """Whether the principal has a limit."""
        return self._account is not None

    def charge(self, characters: int) -> None:
        """Count more characters of a streamed text, or raise an error of `RateLimiter.enter` and count nothing."""
        if self._account is not None:
            self._limiter.take(self._principal, self._account, {"characters": characters})

    def give_back(self, prices: dict[str, int]) -> None:
        """Undo a count. prices: the counted numbers of "requests" and "characters"."""
        if self._account is not None:
            self._limiter.give_back(self._principal, self._account, prices)

    def leave(self) -> None:
        if self._account is not None:
            self._account.running -= 1
            self._account = None
