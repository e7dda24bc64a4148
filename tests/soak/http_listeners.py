"""Listeners of a server over HTTP and WebSockets: patient ones, slow ones, and some who leave."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum

import httpx
from websockets.asyncio.client import ClientConnection, connect

BYTES_PER_S = 48_000
"""Of 16-bit mono audio at 24 kHz."""
SLOW_BYTES = 4096
PATIENCE_S = 600.0
"""For the next audio, which many others may be in front of."""


class Way(Enum):
    """How somebody listens."""

    WHOLE = "http, whole"
    SLOW = "http, read as slowly as it is played"
    LEAVES = "http, left after its first audio"
    UNHEARD = "http, left before there was any"
    SOCKET = "websocket, whole"
    INTERRUPTS = "websocket, interrupted"


WAYS = (Way.WHOLE, Way.SOCKET, Way.LEAVES, Way.SLOW, Way.UNHEARD, Way.INTERRUPTS, Way.WHOLE, Way.SOCKET)
"""They come in this order, again and again."""


@dataclass(frozen=True)
class Ask:
    """What is asked for: the same words of the same voice with the same seed sound the same."""

    text: str
    voice: str
    seed: int


@dataclass(frozen=True)
class Heard:
    """16-bit samples; whole: the server said that there is no more."""

    audio: bytes
    whole: bool


class WrongAnswer(Exception):
    """The server said something else than audio."""


class Listener:
    """Asks one server; sampling: the fields of that name in every request."""

    def __init__(self, url: str, sampling: Mapping[str, float]) -> None:
        self._socket_url, self._sampling = url.replace("http", "ws", 1) + "/v1/audio/stream", sampling
        unbounded = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        # A small buffer of the system, so that a slow reader is felt at the other end.
        small = httpx.AsyncHTTPTransport(
            limits=unbounded, socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, SLOW_BYTES)]
        )
        self._client = httpx.AsyncClient(base_url=url, limits=unbounded, timeout=PATIENCE_S)
        self._slow = httpx.AsyncClient(base_url=url, transport=small, timeout=PATIENCE_S)

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.aclose()
        await self._slow.aclose()

    async def page(self, path: str) -> httpx.Response:
        """What the server shows there."""
        return (await self._client.get(path)).raise_for_status()

    async def hear(self, ask: Ask, way: Way, chance: random.Random) -> Heard:
        """Ask, and listen in that way.

        Raises:
            WrongAnswer: an error, or an order of messages that there is none of. Other exceptions: the connection.
        """
        if way in (Way.SOCKET, Way.INTERRUPTS):
            return await asyncio.wait_for(self._through_socket(ask, interrupt=way is Way.INTERRUPTS), PATIENCE_S)
        if way is Way.UNHEARD:
            try:
                return await asyncio.wait_for(self._read(ask), chance.uniform(0.0, 0.5))
            except (TimeoutError, asyncio.TimeoutError):
                return Heard(b"", whole=False)
        return await self._read(ask, slowly=way is Way.SLOW, leaves=way is Way.LEAVES)

    async def _read(self, ask: Ask, slowly: bool = False, leaves: bool = False) -> Heard:
        heard, client, size = b"", self._slow if slowly else self._client, SLOW_BYTES if slowly else None
        async with aclosing(self._pieces(client, ask, size)) as pieces:
            async for piece in pieces:
                heard += piece
                if leaves:
                    return Heard(heard, whole=False)
                if slowly:
                    await asyncio.sleep(len(piece) / BYTES_PER_S)
        if leaves:
            raise WrongAnswer("no audio came")
        return Heard(heard, whole=True)

    async def _pieces(self, client: httpx.AsyncClient, ask: Ask, size: int | None) -> AsyncGenerator[bytes, None]:
        body = {"input": ask.text, "response_format": "pcm", **self._manner(ask)}
        async with client.stream("POST", "/v1/audio/speech", json=body) as answer:
            if answer.status_code != 200:
                raise WrongAnswer(f"status {answer.status_code}: {(await answer.aread())[:200]!r}")
            async for piece in answer.aiter_raw(size):
                yield piece

    async def _through_socket(self, ask: Ask, interrupt: bool) -> Heard:
        heard = b""
        async with connect(self._socket_url, max_size=None) as server:
            await _say(server, ask.text, self._manner(ask))
            async for frame in server:
                if isinstance(frame, bytes):
                    if interrupt and not heard:
                        await server.send(json.dumps({"type": "cancel"}))
                    heard += frame
                    continue
                message = json.loads(frame)
                if message["type"] == "done" and message["verdict"]["error"] is None:
                    return Heard(heard, whole=True)
                if message["type"] == "cancelled" and interrupt:
                    return Heard(heard, whole=False)
                if message["type"] in ("error", "done", "cancelled"):
                    raise WrongAnswer(f"message {frame[:200]!r}")
        raise WrongAnswer("the WebSocket was closed before its audio ended")

    def _manner(self, ask: Ask) -> dict[str, object]:
        return {"voice": ask.voice, "seed": ask.seed, "sampling": dict(self._sampling)}


async def _say(server: ClientConnection, text: str, manner: Mapping[str, object]) -> None:
    """The text word by word, as a language model writes it."""
    words = [{"type": "text", "text": word} for word in re.findall(r"^\S*| \S*", text)]
    for message in ({"type": "start", **manner}, *words, {"type": "end"}):
        await server.send(json.dumps(message))
