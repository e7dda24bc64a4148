"""What a server's end of the engine makes of a process that misbehaves; see `odd_worker`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.service.host import odd_worker
from vivavoce.errors import EngineStopped
from vivavoce.service.host.host import EngineHost
from vivavoce.service.host.order import Recording, SpeechOrder
from vivavoce.service.host.verdict import FinishReason
from vivavoce.service.operations.settings import ServerSettings

HOST = "vivavoce.service.host.host"
HELLO = SpeechOrder("Hello.", "anna")
LATE_S = 60.0


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{HOST}.LAST_WORDS_S", 0.2)
    monkeypatch.setattr(f"{HOST}.PAUSES_S", (0.0, 0.01, 0.02, 0.03))


def with_odd_host(mode: str, work: Callable[[EngineHost], Awaitable[None]]) -> None:
    async def run() -> None:
        host = EngineHost(ServerSettings(), command=(sys.executable, odd_worker.__file__, mode))
        try:
            await host.start()
            await work(host)
        finally:
            await host.close()

    asyncio.run(asyncio.wait_for(run(), LATE_S))


class Told(logging.Handler):
    """What the host logs that holds some words; `enough` is set when so many lines have come."""

    def __init__(self, words: str, count: int, then: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._words, self._count, self._then = words, count, then
        self.lines: list[str] = []
        self.enough = asyncio.Event()
        logging.getLogger(HOST).addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if self._words in line and len(self.lines) < self._count:
            self.lines.append(line)
            if len(self.lines) == self._count:
                self._then()
                self.enough.set()


@pytest.mark.parametrize(
    ("steady_s", "pauses"), [(60.0, ["0", "0.01", "0.02", "0.03", "0.03"]), (0.0, ["0", "0", "0"])]
)
def test_one_that_always_ends_is_started_more_and_more_seldom(
    monkeypatch: pytest.MonkeyPatch, steady_s: float, pauses: list[str]
) -> None:
    monkeypatch.setattr(f"{HOST}.STEADY_S", steady_s)

    async def work(host: EngineHost) -> None:
        told = Told("is started again", len(pauses))
        await told.enough.wait()
        assert [line.split()[-2] for line in told.lines] == pauses

    with_odd_host("ends", work)


def test_one_that_cannot_be_understood_is_replaced() -> None:
    async def work(host: EngineHost) -> None:
        victim = host.process_id
        with pytest.raises(EngineStopped, match="SIGKILL"):
            await host.speak(HELLO)
        await host.until_ready()
        assert host.process_id not in (None, victim)

    with_odd_host("babbles", work)


def test_a_stream_that_the_process_gives_up_has_failed() -> None:
    """It must not look like one whose listener has left, whose audio is complete as far as anybody cares."""

    async def work(host: EngineHost) -> None:
        stream = await host.speak(HELLO)
        with pytest.raises(EngineStopped, match="gave the request up"):
            await anext(aiter(stream))
        assert stream.verdict is not None
        assert (stream.verdict.reason, stream.verdict.error_code) == (FinishReason.ERROR, "engine_stopped")

    with_odd_host("gives up", work)


def test_one_that_does_not_get_ready_again_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setenv(odd_worker.MARK, str(mark))
    monkeypatch.setattr(f"{HOST}.RESTART_S", 0.3)
    monkeypatch.setattr(f"{HOST}.RESTART_FACTOR", 0.0)

    def recover() -> None:
        mark.unlink()
        monkeypatch.setattr(f"{HOST}.RESTART_S", LATE_S)

    async def work(host: EngineHost) -> None:
        mark.touch()
        told = Told("not got ready", 1, recover)
        with pytest.raises(EngineStopped):
            await host.speak(HELLO)
        await told.enough.wait()
        await host.until_ready()
        assert host.process_id is not None

    with_odd_host("stumbles", work)


def test_one_that_does_not_end_is_ended_with_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{HOST}.LAST_WORDS_S", LATE_S)

    async def work(host: EngineHost) -> None:
        victim = host.process_id
        assert victim is not None
        asking = asyncio.ensure_future(host.speak(HELLO))
        while host.ready:
            await asyncio.sleep(0.01)
        await host.close()  # while it waits for the process's last words
        with pytest.raises(ProcessLookupError):
            os.kill(victim, 0)
        with pytest.raises(EngineStopped):
            await asking

    with_odd_host("lingers", work)


def test_one_that_takes_nothing_is_sent_no_more_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{HOST}.MOST_UNSENT_BYTES", 1_000)
    monkeypatch.setattr(f"{HOST}.PULSE_S", 0.5)
    monkeypatch.setattr(f"{HOST}.STUCK_S", 0.5)

    async def work(host: EngineHost) -> None:
        large = asyncio.ensure_future(host.add_voice("", "anna", Recording(bytes(8_000_000))))
        await asyncio.sleep(0)
        with pytest.raises(EngineStopped, match="takes no requests just now"):
            await host.speak(HELLO)
        with pytest.raises(EngineStopped, match="SIGKILL"):
            await large

    with_odd_host("deaf", work)


def test_who_asks_after_the_end_is_told() -> None:
    async def work(host: EngineHost) -> None:
        await host.close()
        assert not host.ready
        with pytest.raises(EngineStopped):
            await host.voices("")

    with_odd_host("gives up", work)
