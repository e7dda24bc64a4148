"""The two ends of the engine's socket, when the other one misbehaves; see `odd_worker`."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engine_process import odd_worker
from tests.engine_process.odd_worker import receive
from tests.engine_process.test_engine_host import started, until_ready
from vivavoce.engine_process.client import EngineClient
from vivavoce.engine_process.messages import Answer, End, EngineProcessSettings, Opening, Ping, Speak, framed
from vivavoce.engine_process.process import ENGINE_FAILED
from vivavoce.errors import EngineStopped
from vivavoce.frontend.speech import FinishReason, Recording, SpeechRequest

pytestmark = pytest.mark.process

HOST = "vivavoce.engine_process.client"
HELLO = SpeechRequest("Hello.", "anna")
LATE_S = 60.0


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{HOST}.ENDING_S", 0.2)
    monkeypatch.setattr(f"{HOST}.PAUSES_S", (0.0, 0.01, 0.02, 0.03))


def odd(mode: str) -> AbstractAsyncContextManager[EngineClient]:
    return started(EngineProcessSettings(), sys.executable, odd_worker.__file__, mode)


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
async def test_one_that_always_ends_is_started_more_and_more_seldom(
    monkeypatch: pytest.MonkeyPatch, steady_s: float, pauses: list[str]
) -> None:
    monkeypatch.setattr(f"{HOST}.STEADY_S", steady_s)
    async with odd("ends"):
        told = Told("is started again", len(pauses))
        await told.enough.wait()
        assert [line.split()[-2] for line in told.lines] == pauses


async def test_one_that_cannot_be_understood_is_replaced() -> None:
    async with odd("babbles") as host:
        victim = host.process_id
        with pytest.raises(EngineStopped, match="SIGKILL"):
            await host.speak(HELLO)
        await until_ready(host)
        assert host.process_id not in (None, victim)


async def test_a_stream_that_the_process_gives_up_has_failed() -> None:
    """It must not look like one whose listener has left, whose audio is complete as far as anybody cares."""
    async with odd("gives up") as host:
        stream = await host.speak(HELLO)
        with pytest.raises(EngineStopped, match="gave the request up"):
            await anext(aiter(stream))
        assert stream.verdict is not None
        assert (stream.verdict.reason, stream.verdict.error_code) == (FinishReason.ERROR, "engine_stopped")


async def test_one_that_does_not_get_ready_again_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setenv(odd_worker.MARK, str(mark))
    monkeypatch.setattr(f"{HOST}.RESTART_S", 0.3)
    monkeypatch.setattr(f"{HOST}.RESTART_FACTOR", 0.0)

    def recover() -> None:
        mark.unlink()
        monkeypatch.setattr(f"{HOST}.RESTART_S", LATE_S)

    async with odd("stumbles") as host:
        mark.touch()
        told = Told("not got ready", 1, recover)
        with pytest.raises(EngineStopped):
            await host.speak(HELLO)
        await told.enough.wait()
        await until_ready(host)
        assert host.process_id is not None


async def test_one_that_does_not_end_is_ended_with_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{HOST}.ENDING_S", LATE_S)
    async with odd("lingers") as host:
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


async def test_one_that_takes_nothing_is_sent_no_more_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{HOST}.MOST_UNSENT_BYTES", 1_000)
    monkeypatch.setattr(f"{HOST}.PULSE_S", 0.5)
    monkeypatch.setattr(f"{HOST}.STUCK_S", 0.5)
    async with odd("deaf") as host:
        large = asyncio.ensure_future(host.add_voice("", "anna", Recording(bytes(8_000_000))))
        await asyncio.sleep(0)
        with pytest.raises(EngineStopped, match="takes no requests just now"):
            await host.speak(HELLO)
        with pytest.raises(EngineStopped, match="SIGKILL"):
            await large


STAND_INS = """
import asyncio, os, time
from types import SimpleNamespace
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import EngineStopped
from vivavoce.engine_process import process
from vivavoce.frontend.speech_backend import ModelInfo

class ModelService:
    about = ModelInfo("stand-in", "nothing", 24_000, demo=True)
    healthy, max_coming = False, 4
    engine = SimpleNamespace(check_load=lambda streaming: None, settings=EngineSettings(), places=8)
    front_end = None
    async def voice(self, owner, voice):
        return SimpleNamespace(adapter="")
    async def read(self, text, work):
        return work()
    async def check_store(self):
        return "ok"
    def lexicon(self, owner, voice):
        return {}
    def moved_since(self, moment):
        return True

class RequestSession:
    def __init__(self, engine, front_end):
        pass
    def start(self, text, voice, options):
        self.text = text
    async def events(self):
        if self.text == "fail":
            raise EngineStopped("engine: it broke")
        await asyncio.Event().wait()
        yield
    def close(self):
        pass

def open_model_service(settings):
    if LOADS:
        os.write(1, b"loading")
        time.sleep(600)
    return ModelService()

process.RequestSession, process.open_model_service = RequestSession, open_model_service
process.main()
"""


@contextmanager
def stand_in(loads: bool) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """The process, which was told its settings; loads: for ever."""
    ours, theirs = socket.socketpair()
    code = STAND_INS.replace("LOADS", str(loads))
    home = str(Path(__file__).parents[2] / "src")
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": home},
        )
    try:
        ours.settimeout(LATE_S)
        ours.sendall(framed(EngineProcessSettings()))
        yield process, ours
    finally:
        ours.close()
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def all_of(connection: socket.socket) -> list[Any]:
    """What it says until it ends."""
    messages = []
    while (message := receive(connection)) is not None:
        messages.append(message)
    return messages


def test_it_ends_with_its_server_while_it_loads() -> None:
    with stand_in(loads=True) as (process, connection):
        assert process.stdout is not None
        assert process.stdout.read(7) == b"loading"
        connection.close()
        assert process.wait(LATE_S) == 0


def test_a_failed_engine_ends_it_and_other_streams_are_not_told_they_were_cancelled() -> None:
    with stand_in(loads=False) as (process, connection):
        assert isinstance(receive(connection), Opening)
        for number, text in ((1, "wait"), (2, "fail")):
            connection.sendall(framed(Speak(number, SpeechRequest(text))))
        messages = all_of(connection)
        assert process.wait(LATE_S) == ENGINE_FAILED
    assert {message.number for message in messages if isinstance(message, Answer)} == {1, 2}
    ends = {message.number: message.outcome for message in messages if isinstance(message, End)}
    assert (list(ends), type(ends[2])) == ([2], EngineStopped)


def test_a_failed_engine_is_found_though_nobody_speaks() -> None:
    with stand_in(loads=False) as (process, connection):
        assert isinstance(receive(connection), Opening)
        connection.sendall(framed(Ping(7)))
        assert process.wait(LATE_S) == ENGINE_FAILED


SERVER = """
import asyncio, sys
from vivavoce.engine_process.client import EngineClient
from vivavoce.engine_process.messages import EngineProcessSettings

async def serve():
    host = EngineClient(EngineProcessSettings(), (sys.executable, "-c", sys.argv[1]))
    await host.start()
    print(host.process_id, flush=True)
    await asyncio.Event().wait()

asyncio.run(serve())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone ends a stopped process")
def test_a_stopped_process_ends_with_its_server() -> None:
    engine = STAND_INS.replace("LOADS", "False").replace("healthy, max_coming = False", "healthy, max_coming = True")
    server = subprocess.Popen([sys.executable, "-c", SERVER, engine], stdout=subprocess.PIPE)
    assert server.stdout is not None
    with server.stdout:
        state = Path(f"/proc/{int(server.stdout.readline())}/stat")
        os.kill(int(state.parent.name), signal.SIGSTOP)
        server.kill()
        server.wait()
        until = time.monotonic() + LATE_S
        while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < until, "it outlives its server"
            time.sleep(0.05)
