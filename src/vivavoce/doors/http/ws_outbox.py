"""What goes out over one WebSocket, each frame awaited until the transport has taken it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from vivavoce.doors.http.connections import drop
from vivavoce.doors.http.errors import body_of
from vivavoce.errors import ListenerStalled, VivavoceError

Reply = dict[str, Any]
"""A message of the server, with its "type"; audio as {"type": "audio", "audio": bytes}."""
Frame = str | bytes | None
"""A text frame, a binary one, or none at all."""

LEAVING_S = 2.0
"""How long a connection that is being closed may take for its last frames."""


class Outbox:
    """Of one WebSocket that was accepted. Several tasks may send; frames go out whole, in the order they were given."""

    def __init__(self, socket: WebSocket, render: Callable[[Reply], Frame], patience_s: float) -> None:
        self._socket, self._patience_s = socket, patience_s
        self._closed = False
        self.render = render
        """A reply as the client's dialect has it."""
        self.last_at = asyncio.get_running_loop().time()
        """When something was sent, in the loop's time."""

    async def send(self, reply: Reply) -> None:
        """One reply, if the dialect has a word for it.

        Raises:
            ListenerStalled: the listener has not read for too long.
            WebSocketDisconnect: it has left.
        """
        frame = self.render(reply)
        if frame is None:
            return
        try:
            await asyncio.wait_for(self._put(frame), self._patience_s)
        except (TimeoutError, asyncio.TimeoutError):
            raise ListenerStalled(
                f"listener: has not read its audio for {self._patience_s:g} s; read faster, or ask for less at a time"
            ) from None
        self.last_at = asyncio.get_running_loop().time()

    async def close(self, code: int, reason: str) -> None:
        """End the connection; one whose listener does not even read that is dropped. A second time: nothing happens."""
        if self._closed:
            return
        self._closed = True
        try:
            await asyncio.wait_for(self._socket.close(code, _short(reason)), LEAVING_S)
        except (TimeoutError, asyncio.TimeoutError):
            drop(self._socket.scope)
        except (WebSocketDisconnect, RuntimeError, OSError):
            pass  # it has left by itself

    async def _put(self, frame: str | bytes) -> None:
        if self._closed:
            raise WebSocketDisconnect(1006)
        try:
            await self._socket.send(
                {"type": "websocket.send", "bytes": frame}
                if isinstance(frame, bytes)
                else {"type": "websocket.send", "text": frame}
            )
        except (OSError, RuntimeError):
            raise WebSocketDisconnect(1006) from None  # as Starlette says it, and as it says it afterwards


def failure_of(error: VivavoceError) -> Reply:
    """An error as all doors word it; what HTTP's body calls input is called text here."""
    body = body_of(error)
    return {"type": "error", "error": {**body, "param": "text" if body["param"] == "input" else body["param"]}}


def compact(fields: dict[str, Any]) -> str:
    """JSON of one line."""
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"))


def _short(reason: str) -> str:
    """At most 123 bytes go into a closing frame."""
    return reason.encode()[:123].decode(errors="ignore")
