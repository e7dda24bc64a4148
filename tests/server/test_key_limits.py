"""Limits of keys that several servers share in a Redis, which may be away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from tests.fleet.redis_process import RedisProcess, running_redis
from vivavoce.errors import InvalidRequest, Overloaded
from vivavoce.server.key_limits import KeyLimits, KeyPermit, open_limits
from vivavoce.server.rate_limiter import ANONYMOUS, Principal
from vivavoce.server.settings import AuthSection, VoicesSection
from vivavoce_fleet import shared_counts
from vivavoce_fleet.shared_counts import SharedCounts

ANNA = Principal("anna", requests_per_minute=6, characters_per_minute=600, concurrent=4)
NOWHERE = "redis://:secret@127.0.0.1:1/0"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisProcess]:
    with running_redis(tmp_path / "redis") as process:
        yield process


@dataclass
class Clock:
    now: float = 1e6

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def servers(url: str, count: int = 2, clock: Clock | None = None) -> AsyncIterator[list[KeyLimits]]:
    """Servers as far as limits go; their clock stands still, so that only Redis' own lets buckets fill."""
    clock = clock or Clock()
    limits = [KeyLimits(SharedCounts(url, "the Redis", clock=clock), clock) for _ in range(count)]
    try:
        yield limits
    finally:
        for one in limits:
            await one.close()


async def taken(limits: list[KeyLimits], principal: Principal, characters: int = 0, tries: int = 20) -> list[KeyPermit]:
    """What is let in of so many requests at once, spread over the servers."""
    asked = (limits[number % len(limits)].enter(principal, characters) for number in range(tries))
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(one, (KeyPermit, Overloaded)) for one in answers), answers
    return [one for one in answers if isinstance(one, KeyPermit)]


@pytest.mark.process
async def test_requests_of_a_minute_are_those_of_all_servers(server: RedisProcess) -> None:
    async with servers(server.url, 3) as limits:
        assert len(await taken(limits, Principal("anna", requests_per_minute=5), tries=30)) == 5
        with pytest.raises(Overloaded, match="requests: 'anna' may ask for 5 in a minute") as refusal:
            await limits[0].enter(Principal("anna", requests_per_minute=5), 0)
        assert refusal.value.retry_after_s == pytest.approx(12.0, abs=2.0)
        assert len(await taken(limits, Principal("bert", requests_per_minute=5))) == 5, "a key's limits are its own"


@pytest.mark.process
async def test_characters_are_counted_and_a_refusal_costs_nothing(server: RedisProcess) -> None:
    limited = Principal("anna", requests_per_minute=4, characters_per_minute=100)
    async with servers(server.url) as (one, other):
        permit = await one.enter(limited, 60)
        for _ in range(5):
            with pytest.raises(Overloaded, match="characters"):
                await other.enter(limited, 60)
        await other.enter(limited, 30)
        await permit.charge(5)
        with pytest.raises(Overloaded, match="characters"):
            await permit.charge(60)
        await other.enter(limited, 1)
        await one.enter(limited, 1)
        with pytest.raises(Overloaded, match="requests"):
            await other.enter(limited, 1)


@pytest.mark.process
async def test_requests_at_once_are_those_of_all_servers(server: RedisProcess) -> None:
    limited = Principal("anna", concurrent=3)
    async with servers(server.url) as limits:
        running = await taken(limits, limited)
        assert len(running) == 3
        with pytest.raises(Overloaded, match=r"requests: 3 of 'anna' are running") as refusal:
            await limits[1].enter(limited, 0)
        assert refusal.value.retry_after_s == 1.0
        running[0].leave()
        running[0].leave()
        await settled(limits)
        again = await taken(limits, limited)
        assert len(again) == 1
        for permit in (*running, *again):
            permit.leave()
        await settled(limits)
        assert len(await taken(limits, limited)) == 3


async def settled(limits: list[KeyLimits]) -> None:
    """Wait until Redis knows who has left."""
    for one in limits:
        assert one._shared is not None
        await asyncio.gather(*one._shared._leaving)


@pytest.mark.process
async def test_requests_of_a_server_that_died_are_forgotten_and_others_renewed(
    server: RedisProcess,
) -> None:
    limited, running = Principal("anna", concurrent=2), "vivavoce:limits:{anna}:running"
    async with servers(server.url, 3) as (dead, alive, other):
        await dead.enter(limited, 0)
        await alive.enter(limited, 0)
        with redis.Redis.from_url(server.url) as client:
            assert len(await taken([other], limited)) == 0
            for member in client.zrange(running, 0, -1):
                client.zadd(running, {member: 1.0})  # as if a minute had gone by
            assert alive._shared is not None
            await alive._shared.renew()
            assert len(await taken([other], limited)) == 1
            client.flushall()  # a Redis that keeps nothing was started again
            await alive._shared.renew()
            assert client.zcard(running) == 1
            assert 0 < client.ttl(running) <= shared_counts.LEASE_S + 1


@pytest.mark.process
async def test_while_redis_is_away_each_server_limits_by_itself_and_says_so_once(
    server: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    clock = Clock()
    async with servers(server.url, 2, clock) as limits:
        running = await taken(limits, ANNA)
        assert len(running) == 4, "at once"
        here = sum(permit._shared is limits[0]._shared for permit in running)
        server.kill()
        other = Principal("bert", requests_per_minute=3)
        assert len(await taken(limits, other)) == 6, "three of each"
        assert len(await taken([limits[0]], ANNA)) == 4 - here, "it counts what it had let in before"
        told = [line for line in caplog.messages if line.startswith("limits alone: ")]
        assert told == ["limits alone: the Redis is away (ConnectionError); this server counts for itself"] * 2
        server.start()
        clock.now += shared_counts.REST_S
        for one in limits:
            await one.enter(Principal("dora", requests_per_minute=9), 0)  # finds it there
        shared = Principal("carl", requests_per_minute=3)
        assert len(await taken(limits, shared)) == 3
        assert [line for line in caplog.messages if line.startswith("limits shared: ")] == [
            "limits shared: the Redis answers again"
        ] * 2


@pytest.mark.process
async def test_a_redis_that_hangs_holds_a_request_up_for_a_moment_only(server: RedisProcess) -> None:
    async with servers(server.url, 1) as limits:
        await limits[0].enter(Principal("anna", requests_per_minute=100), 0)
        server.freeze()
        try:
            let_in = await asyncio.wait_for(taken(limits, Principal("anna", requests_per_minute=100)), 5.0)
        finally:
            server.go_on()
        assert len(let_in) == 20


@pytest.mark.process
async def test_nothing_is_left_in_redis_after_its_time(server: RedisProcess) -> None:
    async with servers(server.url, 1) as (limits,):
        permit = await limits.enter(ANNA, 10)
        await limits.enter(ANONYMOUS, 10**9)
        with redis.Redis.from_url(server.url) as client:
            keys = sorted(client.scan_iter())
            assert keys == [b"vivavoce:limits:{anna}:rates", b"vivavoce:limits:{anna}:running"]
            assert all(0 < client.ttl(key) <= 61 for key in keys)
            permit.leave()
            await settled([limits])
            assert client.zcard(keys[1]) == 0


async def test_a_redis_that_was_never_there_leaves_the_server_its_own_limits(caplog: pytest.LogCaptureFixture) -> None:
    limits = open_limits(AuthSection(keys_file=Path("keys.toml"), limits_place=NOWHERE), VoicesSection())
    assert len(await taken([limits], ANNA)) == 4
    (told,) = [line for line in caplog.messages if line.startswith("limits alone: ")]
    assert "127.0.0.1:1" in told
    assert "secret" not in told
    await limits.close()


async def test_which_redis_it_is() -> None:
    keys, voices = Path("keys.toml"), VoicesSection(place="redis://voices:1/0")
    cases = {
        "redis at voices": (AuthSection(keys_file=keys), voices),
        "": (AuthSection(keys_file=keys), VoicesSection(place="/srv/voices")),
        " ": (AuthSection(), voices),
        "redis at own": (AuthSection(keys_file=keys, limits_place="redis://own:1/0"), voices),
    }
    for wanted, (auth, section) in cases.items():
        shared = open_limits(auth, section)._shared
        assert (shared is not None) is bool(wanted.strip()), wanted
        if shared is not None:
            assert wanted.split()[-1] in shared._label
    with pytest.raises(InvalidRequest, match=r"auth.limits_place: the options of redis://own:1"):
        open_limits(AuthSection(keys_file=keys, limits_place="redis://own:1/0?socket_timeout=x"), voices)
