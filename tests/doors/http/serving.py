"""A real server on a free port, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

from tests.doors.fake_speaker import FakeSpeaker
from vivavoce.doors.http.desk import Desk
from vivavoce.doors.http.listener import Listener, bind
from vivavoce.service.host.speaker import Speaker
from vivavoce.service.operations.allowances import Allowances
from vivavoce.service.operations.keys import KeyRing
from vivavoce.service.operations.ledger import Ledger
from vivavoce.service.operations.meters import Meters
from vivavoce.service.operations.reception import Reception
from vivavoce.service.operations.settings import ServerSettings


def make_desk(
    speaker: Speaker | None = None, settings: ServerSettings | None = None, keys: KeyRing | None = None
) -> Desk:
    """A desk for a speaker; to be called in the event loop that serves it."""
    reception = Reception(speaker or FakeSpeaker(), ledger=Ledger(), meters=Meters(), allowances=Allowances())
    return Desk(reception, keys or KeyRing.none(), settings or ServerSettings())


@dataclass(frozen=True)
class Served:
    """A server that answers."""

    url: str
    listener: Listener
    desk: Desk
    loop: asyncio.AbstractEventLoop

    @property
    def port(self) -> int:
        return self.listener.port

    def call(self, work: Callable[[], Any]) -> Any:
        """Run something in the server's event loop, a function or what it returns as a coroutine."""

        async def run() -> Any:
            made = work()
            return await made if isinstance(made, Awaitable) else made

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(timeout=60)


@contextmanager
def serving(build: Callable[[Desk], ASGIApp], make: Callable[[], Desk] = make_desk) -> Iterator[Served]:
    """Serve what `build` makes of the desk that `make` makes, both called in the server's thread."""
    ready: threading.Event = threading.Event()
    made: list[Any] = []

    async def run() -> None:
        stop = asyncio.Event()
        try:
            desk = make()
            listener = Listener(build(desk), bind("127.0.0.1", 0, "port"), desk.settings.server)
            await listener.start()
            made[:] = [
                Served(f"http://127.0.0.1:{listener.port}", listener, desk, asyncio.get_running_loop()),
                stop,
            ]
        except BaseException as error:
            made[:] = [error]
            raise
        finally:
            ready.set()
        await stop.wait()
        await listener.stop()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    ready.wait(timeout=60)
    if isinstance(made[0], BaseException):
        raise made[0]
    served, stop = made
    try:
        yield served
    finally:
        served.loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=60)
