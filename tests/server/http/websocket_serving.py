"""A WebSocket door on a real uvicorn server, in the test's own event loop, and a client's frames in a list."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError

from tests.server.fake_backend import FakeBackend
from vivavoce.errors import Unauthorized
from vivavoce.server.dispatcher import RequestDispatcher
from vivavoce.server.http.app import build_app
from vivavoce.server.http.app_state import AppState
from vivavoce.server.http.listener import Listener, bind
from vivavoce.server.rate_limiter import ANONYMOUS, Principal
from vivavoce.server.request_log import RequestRecord
from vivavoce.server.settings import ServerSection, ServerSettings
from vivavoce_dialects.table import DIALECTS

LATE_S = 20.0
"""Nothing here takes so long; it ends a test that would hang."""
STREAM = "/v1/audio/stream"
FLUSH, END, CANCEL, PING = ({"type": kind} for kind in ("flush", "end", "cancel", "ping"))


def start(**fields: Any) -> dict[str, Any]:
    return {"type": "start", **fields}


def text(piece: str) -> dict[str, Any]:
    return {"type": "text", "text": piece}


@dataclass
class FakeKeys:
    """The key "secret" of a caller that may ask for so much. Not known: it was taken back."""

    required: bool = True
    known: bool = True
    concurrent: int | None = None

    def authenticate(self, token: str | None) -> Principal:
        if not self.required:
            return ANONYMOUS
        if token != "secret" or not self.known:
            raise Unauthorized("API key: none was sent, and this server wants one")
        return Principal("tester", "tester", concurrent=self.concurrent)


@dataclass
class Served:
    port: int
    listener: Listener
    dispatcher: RequestDispatcher
    speaker: FakeBackend

    def record(self, request_id: str) -> RequestRecord:
        return self.dispatcher.request_log.get(request_id, ANONYMOUS)

    def connect(self, path: str = STREAM, **options: Any) -> connect:
        return connect(f"ws://127.0.0.1:{self.port}{path}", **options)


@asynccontextmanager
async def serving(
    speaker: FakeBackend | None = None, *, keys: FakeKeys | None = None, **server: Any
) -> AsyncIterator[Served]:
    speaker = speaker or FakeBackend()
    settings = ServerSettings(server=ServerSection(**server))
    dispatcher = RequestDispatcher(speaker, flow_steps=settings.model.flow_steps)
    known: Any = keys or FakeKeys(required=False)
    state = AppState(dispatcher, known, settings, dialects=DIALECTS)
    listener = Listener(build_app(state), bind("127.0.0.1", 0, "port"), state.settings.server)
    await listener.start()
    try:
        yield Served(listener.port, listener, dispatcher, speaker)
    finally:
        await listener.stop()


@asynccontextmanager
async def connected(
    speaker: FakeBackend | None = None,
    path: str = STREAM,
    *,
    keys: FakeKeys | None = None,
    headers: Mapping[str, str] | None = None,
    **server: Any,
) -> AsyncIterator[tuple[ClientConnection, Served]]:
    """One client of a server of its own."""
    async with (
        serving(speaker, keys=keys, **server) as served,
        served.connect(path, additional_headers=headers) as client,
    ):
        yield client, served


async def send(client: ClientConnection, *messages: dict[str, Any]) -> None:
    for message in messages:
        await client.send(json.dumps(message))


async def next_reply(client: ClientConnection) -> dict[str, Any]:
    """The next message; binary audio as {"type": "binary", "data": …}."""
    frame = await asyncio.wait_for(client.recv(), LATE_S)
    return {"type": "binary", "data": frame} if isinstance(frame, bytes) else json.loads(frame)


async def replies_until(client: ClientConnection, *kinds: str) -> list[dict[str, Any]]:
    """All up to the first of these types, it included."""
    found = [await next_reply(client)]
    while found[-1].get("type") not in kinds:
        found.append(await next_reply(client))
    return found


async def answered(client: ClientConnection, *messages: dict[str, Any], until: str = "done") -> list[dict[str, Any]]:
    """Send these, and take all replies until the speech is done, or another type."""
    await send(client, *messages)
    return await replies_until(client, until)


def of_type(replies: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [reply for reply in replies if reply.get("type") == kind]


def errors_of(replies: list[dict[str, Any]], key: str = "code") -> list[str]:
    """The codes of the errors among them, or other fields."""
    return [reply["error"][key] for reply in of_type(replies, "error")]


def audio_of(replies: list[dict[str, Any]]) -> bytes:
    return b"".join(reply["data"] for reply in of_type(replies, "binary"))


async def ending_of(client: ClientConnection) -> tuple[int, str]:
    """How the server closes, whatever it still sends before."""
    with suppress(ConnectionClosedError):
        async for _ in client:
            pass
    return client.close_code or 0, client.close_reason or ""
