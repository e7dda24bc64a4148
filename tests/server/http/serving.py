"""A real server on a free port, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from starlette.types import ASGIApp

from tests.server.fake_backend import FakeBackend
from vivavoce.frontend.speech_backend import SpeechBackend
from vivavoce.server.dispatcher import RequestDispatcher
from vivavoce.server.http.app_state import AppState
from vivavoce.server.http.listener import Listener, bind
from vivavoce.server.keys import KeyRing
from vivavoce.server.settings import ServerSettings
from vivavoce_dialects.table import DIALECTS


def make_state(
    speaker: SpeechBackend | None = None, settings: ServerSettings | None = None, keys: KeyRing | None = None
) -> AppState:
    """A state for a speaker; to be called in the event loop that serves it."""
    settings = settings or ServerSettings()
    dispatcher = RequestDispatcher(
        speaker or FakeBackend(),
        rules=settings.requests,
        provenance=settings.provenance,
        flow_steps=settings.model.flow_steps,
    )
    return AppState(dispatcher, keys or KeyRing(), settings, dialects=DIALECTS)


async def ask(app: ASGIApp, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    """An app's answer without a port; underscores in headers' names stand for hyphens."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        return await client.send(httpx.Request(method, f"http://test{path}", headers=sent))


@dataclass(frozen=True)
class Served:
    """A server that answers."""

    url: str
    listener: Listener
    state: AppState
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
def serving(
    build: Callable[[AppState], ASGIApp],
    make: Callable[[], AppState] = make_state,
    listening: socket.socket | None = None,
) -> Iterator[Served]:
    """Serve what `build` makes of the state that `make` makes, both called in the server's thread."""
    ready: Future[tuple[Served, asyncio.Event]] = Future()

    async def run() -> None:
        try:
            stop, state = asyncio.Event(), make()
            at = listening or bind("127.0.0.1", 0, "port")
            listener = Listener(build(state), at, state.settings.server)
            await listener.start()
        except BaseException as error:
            ready.set_exception(error)
            return
        url = f"http://127.0.0.1:{listener.port}"
        ready.set_result((Served(url, listener, state, asyncio.get_running_loop()), stop))
        await stop.wait()
        await listener.stop()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    served, stop = ready.result(timeout=60)
    try:
        yield served
    finally:
        served.loop.call_soon_threadsafe(stop.set)
        thread.join(timeout=60)
