"""What hangs in the engine's process keeps nothing waiting but what is behind it; see `stuck_worker`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engine_process import stuck_worker
from tests.engine_process.stuck_worker import BUILT_IN
from tests.engine_process.test_engine_host import order, recording, settings_for, spoken, started
from vivavoce.engine_process.bounded_executor import BoundedExecutor
from vivavoce.engine_process.client import EngineClient
from vivavoce.errors import EngineStopped, Overloaded, VivavoceError, VoiceStoreAway

pytestmark = pytest.mark.process

Loop = asyncio.AbstractEventLoop
Hang = Callable[[str], Path]

SOON_S = 5.0
LONG_S = 60.0
FULL = 64
"""Requests that may be on their way to a small engine."""


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def causes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As long as a file is in this folder, what it is called hangs."""
    return tmp_path_factory.mktemp("causes")


@pytest.fixture(scope="module")
def host(loop: Loop, babble: Path, causes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineClient]:
    """One for all tests: each leaves it with nothing that hangs."""
    settings = settings_for(babble, tmp_path_factory.mktemp("voices"), None)
    starting = started(settings, sys.executable, stuck_worker.__file__, str(causes))
    yield loop.run_until_complete(starting.__aenter__())
    loop.run_until_complete(starting.__aexit__(None, None, None))


@pytest.fixture
def cause(causes: Path) -> Iterator[Hang]:
    """Makes something hang: until its file is removed, at the latest at the test's end."""

    def begin(what: str) -> Path:
        (causes / what).touch()
        return causes / what

    yield begin
    for file in causes.iterdir():
        file.unlink()


async def until(met: Callable[[], bool], within_s: float) -> None:
    async def wait() -> None:
        while not met():
            await asyncio.sleep(0.05)

    await asyncio.wait_for(wait(), within_s)


def asked(host: EngineClient, count: int, **fields: object) -> list[asyncio.Task[object]]:
    return [asyncio.ensure_future(host.speak(order(**fields))) for _ in range(count)]  # type: ignore[arg-type]


async def test_a_store_that_hangs_keeps_no_built_in_voice_from_speaking(
    loop: Loop, host: EngineClient, cause: Hang, caplog: pytest.LogCaptureFixture
) -> None:
    await host.add_voice("", "anna", recording())
    hangs = cause("store")
    lost: list[asyncio.Future[object]] = [
        *(asyncio.ensure_future(host.add_voice("", f"new{place}", recording())) for place in range(4)),
        *(asyncio.ensure_future(host.voices("")) for _ in range(4)),
        *asked(host, 30, voice="anna"),
    ]
    await asyncio.sleep(0)
    await asyncio.wait_for(spoken(host, order(voice=None)), LONG_S)
    await until(lambda: host.voice_store != "ok", SOON_S)
    assert host.ready, "most requests need no store"
    figures = await host.statistics()
    assert figures is not None
    assert figures.voice_store == host.voice_store
    for answer in await asyncio.wait_for(asyncio.gather(*lost, return_exceptions=True), LONG_S):
        assert isinstance(answer, VoiceStoreAway)
        assert answer.retry_after_s
    await asyncio.wait_for(spoken(host, order(voice=BUILT_IN)), LONG_S)
    for _ in range(3):  # more than all places of the store: what is asked then is refused at once
        answers = await asyncio.wait_for(asyncio.gather(*asked(host, 40, voice="anna"), return_exceptions=True), LONG_S)
        assert {type(answer) for answer in answers} == {VoiceStoreAway}
    hangs.unlink()
    await until(lambda: host.voice_store == "ok", LONG_S)
    told = [record.message for record in caplog.records if record.message.startswith("voice store")]
    assert "voice store: it does not answer" in told
    assert (told[-1], len(set(told))) == ("voice store: is in order again", len(told)), "each change is logged once"
    await spoken(host, order(voice="anna"))
    known = {voice.name for voice in await host.voices("") if voice.kind != "alias"}
    assert known == {BUILT_IN, "anna"}, "nothing was kept afterwards"


async def test_texts_that_hang_make_it_unready_and_refuse_new_ones_at_once(
    loop: Loop, host: EngineClient, cause: Hang
) -> None:
    hangs = cause("text")
    hanging = asked(host, 8, voice=None)
    await until(lambda: host.stuck, 2 * SOON_S)
    assert not host.ready
    with pytest.raises(EngineStopped, match="does not answer") as refusal:
        await asyncio.wait_for(host.speak(order(voice=None)), SOON_S)
    assert refusal.value.retry_after_s
    before = host.process_id
    hangs.unlink()
    await until(lambda: host.ready, LONG_S)
    for stream in await asyncio.gather(*hanging):
        stream.cancel()  # type: ignore[attr-defined]
    await spoken(host, order(voice=None))
    assert host.process_id == before


async def test_long_texts_that_take_long_keep_no_short_one_waiting(loop: Loop, host: EngineClient, cause: Hang) -> None:
    hangs = cause("long text")
    reading = asked(host, 12, text="The lazy dog slept. " * 50, voice=None)
    await asyncio.sleep(0)
    for _ in range(3):
        await asyncio.wait_for(spoken(host, order(voice=None)), SOON_S)
    assert not any(one.done() for one in reading)
    assert host.ready
    for one in reading:
        one.cancel()
    hangs.unlink()


async def test_recordings_that_hang_keep_nobody_else_waiting(loop: Loop, host: EngineClient, cause: Hang) -> None:
    known = recording(99)
    (await host.speak(order(voice=known))).cancel()
    hangs = cause("extraction")
    adding = [asyncio.ensure_future(host.add_voice("", f"v{seed}", recording(seed))) for seed in range(1, 12)]
    (refused,), waiting = await asyncio.wait(adding, timeout=SOON_S, return_when=asyncio.FIRST_COMPLETED)
    refusal = refused.exception()
    assert isinstance(refusal, Overloaded)
    assert (refusal.retry_after_s, "reference audio" in str(refusal)) == (5.0, True)
    await asyncio.wait_for(spoken(host, order(voice=known)), LONG_S)
    await asyncio.wait_for(spoken(host, order(voice=None)), LONG_S)
    assert host.ready
    hangs.unlink()
    assert len({voice.name for voice in await asyncio.gather(*waiting)}) == 10


async def test_requests_on_their_way_are_bounded_in_all_and_for_each_owner(loop: Loop, host: EngineClient) -> None:
    threads = Path(f"/proc/{host.process_id}/task")
    before = len(list(threads.iterdir()))
    answers = await asyncio.gather(*asked(host, 300, text=None, voice=None), return_exceptions=True)
    assert Counter(map(type, answers))[Overloaded] == 300 - FULL
    assert len(list(threads.iterdir())) <= before + FULL + 8
    await spoken(host, order(voice=None))  # texts that are there do not wait for texts that are not
    for answer in answers:
        if not isinstance(answer, VivavoceError):
            answer.cancel()  # type: ignore[union-attr]
    answers = await asyncio.gather(*asked(host, 30, text=None, voice=None, owner="me"), return_exceptions=True)
    assert Counter(map(type, answers))[Overloaded] == 30 - FULL // 4
    (await host.speak(order(None, voice=None, owner="other"))).cancel()


async def test_a_stopped_process_is_unready_until_it_goes_on(loop: Loop, host: EngineClient) -> None:
    victim = host.process_id
    assert victim is not None
    os.kill(victim, signal.SIGSTOP)
    try:
        await until(lambda: host.stuck and not host.ready, 2 * SOON_S)
        with pytest.raises(EngineStopped, match="does not answer"):
            await asyncio.wait_for(host.voices(""), SOON_S)
    finally:
        os.kill(victim, signal.SIGCONT)
    await until(lambda: host.ready, LONG_S)
    await spoken(host, order(voice=None))
    assert host.process_id == victim


async def test_work_that_nobody_waits_for_is_not_begun_and_holds_its_place_until_it_could() -> None:
    pool, go, done = BoundedExecutor("work", 1, 1, 0.2, VoiceStoreAway), threading.Event(), []
    with pytest.raises(VoiceStoreAway, match=r"work: not done within 0.2 s"):
        await pool.run(go.wait)
    assert pool.longest_s > 0.1
    assert not pool.moved_since(time.monotonic())
    assert await pool.run(lambda: done.append("late") or "late", instead="instead") == "instead"
    with pytest.raises(VoiceStoreAway, match="2 others run or wait"):
        await pool.run(lambda: done.append("refused"))
    go.set()
    await until(lambda: pool.moved_since(time.monotonic()), LONG_S)
    await until(lambda: pool._taken == 0, LONG_S)
    assert await pool.run(lambda: "now") == "now"
    assert not done
