"""Counts of requests and characters that several servers share in one Redis, which may be away."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from vivavoce.errors import InvalidRequest, MissingDependency
from vivavoce.server.rate_limiter import Principal, busy, over_rate

log = logging.getLogger("vivavoce.limits")

KEY = "vivavoce:limits:"
"""Prefix of Redis keys. An API key's name follows in braces, so that a cluster keeps its two Redis keys in one slot."""
TIMEOUT_S = 0.5
"""Seconds for connecting and for an answer, after which Redis counts as away."""
REST_S = 3.0
"""Seconds between two attempts to reach a Redis that is away; other requests do not wait for it."""
LEASE_S, RENEWAL_S = 60.0, 20.0
"""Seconds for which a running request counts without a renewal, so that requests of a dead server are forgotten; and
seconds between two renewals."""

TAKE = """
local rates, running, id, most, lease = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
if most >= 0 then
  redis.call('ZREMRANGEBYSCORE', running, '-inf', now)
  local count = redis.call('ZCARD', running)
  if count >= most then return {'busy', tostring(count)} end
end
local paid, longest = {}, 0
for place = 4, #ARGV, 3 do
  local what, rate, tokens = ARGV[place], tonumber(ARGV[place + 1]), tonumber(ARGV[place + 2])
  local full_at = math.max(now, tonumber(redis.call('HGET', rates, what) or now)) + tokens * 60 / rate
  local wait = full_at - now - math.max(1, rate) * 60 / rate
  if wait > 0.000001 then return {what, string.format('%.6f', wait)} end
  paid[what] = full_at
  longest = math.max(longest, full_at - now)
end
for what, full_at in pairs(paid) do redis.call('HSET', rates, what, string.format('%.6f', full_at)) end
if longest > 0 then redis.call('EXPIRE', rates, math.ceil(longest) + 1) end
if most >= 0 then
  redis.call('ZADD', running, now + lease, id)
  redis.call('EXPIRE', running, math.ceil(lease) + 1)
end
return {'taken'}
"""
"""KEYS: a hash with the time at which each rate's bucket is full again, and the set of running requests, sorted by the
end of their lease. ARGV: the request's id, most requests at once (−1: any number, nothing is counted), the lease in
seconds, and for each rate its name, tokens in a minute and tokens to take.

The answer is {"taken"}, {"busy", number of running requests}, or {name of a rate, seconds to wait}.
"""
RENEW = """
local clock = redis.call('TIME')
for _, id in ipairs(ARGV) do redis.call('ZADD', KEYS[1], clock[1] + clock[2] / 1000000 + LEASE, id) end
redis.call('EXPIRE', KEYS[1], LEASE + 1)
""".replace("LEASE", f"{LEASE_S:g}")


class SharedCounts:
    """The counts of all servers in one Redis; used in one event loop. It connects with the first request."""

    def __init__(self, url: str, label: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        """label: the URL without secrets, for the log; MissingDependency: the package redis is not installed."""
        try:
            from redis.asyncio import Redis
            from redis.asyncio.retry import Retry
            from redis.backoff import NoBackoff
            from redis.exceptions import ConnectionError as Lost
        except ImportError:
            raise MissingDependency(
                "auth.limits_place: needs the package redis; type `pip install 'vivavoce[redis]'`"
            ) from None
        # One retry at once, as an idle connection may have been closed; a timeout is not retried.
        once = Retry(NoBackoff(), 1, supported_errors=(Lost,))
        try:
            self._redis: Any = Redis.from_url(
                url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, retry=once
            )
        except (ValueError, TypeError):  # their messages may hold a password
            raise InvalidRequest(
                f"auth.limits_place: the options of {label} cannot be read; write redis://HOST:PORT/DATABASE"
            ) from None
        self._label, self._clock = label, clock
        self._away, self._next_try = False, 0.0
        self._running: dict[str, str] = {}
        """The Redis key of each running request, by the request's id."""
        self._renewing: asyncio.Task[None] | None = None
        self._leaving = set[asyncio.Task[Any]]()

    async def take(self, principal: Principal, identity: str | None, prices: dict[str, int]) -> None:
        """Count a request, or only more text if identity is None. Overloaded: a limit of all servers is reached.

        prices: tokens to take from the buckets "requests" and "characters".
        """
        rates = {"requests": principal.requests_per_minute, "characters": principal.characters_per_minute}
        paid = [(what, rate, tokens) for what, tokens in prices.items() if (rate := rates[what]) is not None]
        most = -1 if identity is None or principal.concurrent is None else principal.concurrent
        keys = [f"{KEY}{{{principal.name}}}:{part}" for part in ("rates", "running")]
        if most >= 0 and identity is not None:
            self._running[identity] = keys[1]  # Redis may have counted it even if no answer comes
            if self._renewing is None:
                self._renewing = asyncio.ensure_future(self._keep_renewing())
        arguments = [identity or "", most, LEASE_S, *(part for one in paid for part in one)]
        answer = await self._ask(partial(self._redis.eval, TAKE, 2, *keys, *arguments))
        if answer is None or answer[0] == b"taken":
            return
        what, count = answer[0].decode(), float(answer[1])
        if identity is not None:
            self._running.pop(identity, None)
        if what == "busy":
            raise busy(principal, int(count))
        raise over_rate(principal, what, rates[what] or 0.0, count)

    def leave(self, identity: str) -> None:
        if (key := self._running.pop(identity, None)) is not None:
            task = asyncio.ensure_future(self._ask(partial(self._redis.zrem, key, identity)))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        if self._renewing is not None:
            self._renewing.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)
        with suppress(Exception):
            await self._redis.aclose()

    async def renew(self) -> None:
        for key in set(self._running.values()):
            own = [identity for identity, one in self._running.items() if one == key]
            if own:
                await self._ask(partial(self._redis.eval, RENEW, 1, key, *own))

    async def _keep_renewing(self) -> None:
        while True:
            await asyncio.sleep(RENEWAL_S)
            await self.renew()

    async def _ask(self, command: Callable[[], Any]) -> Any:
        """Return Redis' answer, or None if Redis is away, which is logged once."""
        if self._away and self._clock() < self._next_try:
            return None
        self._next_try = self._clock() + REST_S
        try:
            answer = await asyncio.wait_for(command(), 2 * TIMEOUT_S)
        except Exception as error:  # errors of the package, the network or a malformed answer
            if not self._away:
                reason = type(error).__name__  # its text may hold a password
                fields = {"place": self._label, "reason": reason}
                log.warning("limits alone: %(place)s is away (%(reason)s); this server counts for itself", fields)
            self._away, self._next_try = True, self._clock() + REST_S
            return None
        if self._away:
            log.warning("limits shared: %(place)s answers again", {"place": self._label})
        self._away = False
        return 0 if answer is None else answer
