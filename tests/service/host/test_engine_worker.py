"""The engine's process, from its socket's other end; the model in it is a stand-in."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.service.host.odd_worker import receive
from vivavoce.service.host.messages import Answer, Ended, Ping, Ready, Speak, framed
from vivavoce.service.host.order import SpeechOrder
from vivavoce.service.host.verdict import FinishReason
from vivavoce.service.host.worker import ENGINE_FAILED
from vivavoce.service.operations.settings import ServerSettings

LATE_S = 60.0
STAND_INS = """
import asyncio, os, time
from vivavoce.errors import EngineStopped
from vivavoce.service.host import worker
from vivavoce.service.host.speaker import ModelAbout

class Studio:
    about = ModelAbout("stand-in", "nothing", 24_000, demo=True)
    healthy = False

class Talk:
    def __init__(self, studio, order):
        self.order = order
    async def begin(self, in_thread):
        pass
    async def events(self):
        if self.order.text == "fail":
            raise EngineStopped("engine: it broke")
        await asyncio.Event().wait()
        yield
    def close(self):
        pass

def open_studio(settings):
    if LOADS:
        os.write(1, b"loading")
        time.sleep(600)
    return Studio()

worker.Talk, worker.open_studio = Talk, open_studio
worker.main()
"""


@contextmanager
def started(loads: bool) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """The process, which was told its settings; loads: for ever."""
    ours, theirs = socket.socketpair()
    code = STAND_INS.replace("LOADS", str(loads))
    home = str(Path(__file__).parents[3] / "src")
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": home},
        )
    try:
        ours.settimeout(LATE_S)
        ours.sendall(framed(ServerSettings()))
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
    with started(loads=True) as (process, connection):
        assert process.stdout is not None
        assert process.stdout.read(7) == b"loading"
        connection.close()
        assert process.wait(LATE_S) == 0


def test_a_failed_engine_ends_it_and_other_streams_are_not_told_they_were_cancelled() -> None:
    with started(loads=False) as (process, connection):
        assert isinstance(receive(connection), Ready)
        for number, text in ((1, "wait"), (2, "fail")):
            connection.sendall(framed(Speak(number, SpeechOrder(text))))
        messages = all_of(connection)
        assert process.wait(LATE_S) == ENGINE_FAILED
    assert {message.number for message in messages if isinstance(message, Answer)} == {1, 2}
    told = {message.number: message.verdict.reason for message in messages if isinstance(message, Ended)}
    assert told == {2: FinishReason.ERROR}


def test_a_failed_engine_is_found_though_nobody_speaks() -> None:
    with started(loads=False) as (process, connection):
        assert isinstance(receive(connection), Ready)
        connection.sendall(framed(Ping(7)))
        assert process.wait(LATE_S) == ENGINE_FAILED
