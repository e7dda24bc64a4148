"""A WebSocket door on a real uvicorn server, in the test's own event loop, and a client's frames in a list."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosedError

from tests.doors.fake_speaker import FakeSpeaker
from vivavoce.doors.http import websocket
from vivavoce.doors.http.desk import Desk
from vivavoce.doors.http.identity import Identified
from vivavoce.doors.http.listener import Listener, bind
from vivavoce.errors import Unauthorized
from vivavoce.service.operations.allowances import Allowances
from vivavoce.service.operations.callers import ANYBODY, Allowance, Caller
from vivavoce.service.operations.ledger import Ledger
from vivavoce.service.operations.meters import Meters
from vivavoce.service.operations.reception import Reception
from vivavoce.service.operations.settings import ServerSection, ServerSettings

LATE_S = 20.0
"""Nothing here takes so long; it ends a test that would hang."""


@dataclass
class FakeKeys:
    """The key "secret" of a caller that may ask for so much; no key: everyone may ask. Not known: it was taken back."""

    required: bool = False
    known: bool = True
    allowance: Allowance = field(default_factory=Allowance)

    def caller(self, token: str | None) -> Caller:
        if not self.required:
            return ANYBODY
        if token != "secret" or not self.known:
            raise Unauthorized("API key: none was sent, and this server wants one")
        return Caller("tester", "tester", allowance=self.allowance)


@dataclass
class Served:
    port: int
    listener: Listener
    reception: Reception
    speaker: FakeSpeaker

    @property
    def address(self) -> str:
        return f"ws://127.0.0.1:{self.port}"


@asynccontextmanager
async def serving(
    speaker: FakeSpeaker | None = None, *, keys: FakeKeys | None = None, **server: Any
) -> AsyncIterator[Served]:
    speaker = speaker or FakeSpeaker()
    reception = Reception(speaker, ledger=Ledger(), meters=Meters(), allowances=Allowances())
    desk = Desk(reception, keys or FakeKeys(), ServerSettings(server=ServerSection(**server)))  # type: ignore[arg-type]
    app = FastAPI()
    app.state.desk = desk
    app.include_router(websocket.router(desk))
    app.add_middleware(Identified, ledger=reception.ledger)
    listener = Listener(app, bind("127.0.0.1", 0, "port"), desk.settings.server)
    await listener.start()
    try:
        yield Served(listener.port, listener, reception, speaker)
    finally:
        await listener.stop()


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


def of_type(replies: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [reply for reply in replies if reply.get("type") == kind]


def audio_of(replies: list[dict[str, Any]]) -> bytes:
    return b"".join(reply["data"] for reply in of_type(replies, "binary"))


async def ending_of(client: ClientConnection) -> tuple[int, str]:
    """How the server closes, whatever it still sends before."""
    with suppress(ConnectionClosedError):
        async for _ in client:
            pass
    return client.close_code or 0, client.close_reason or ""
