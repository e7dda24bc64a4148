"""uvicorn's WebSocket with a small send buffer, bounded memory for what comes in, and a way to drop the connection."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode
from websockets.http11 import Request
from websockets.protocol import State

from vivavoce.doors.http.connections import ABORT

SEND_BUFFER_BYTES = 8 * 1024
"""Above this a sender waits: 170 ms of 16-bit samples, so that little is on its way when a listener interrupts."""
SMALL_BYTES = 1 << 16
"""What is no longer has a place whatever others send."""
LINGER_S = 10.0
"""A client that has left, or is turned away, may read what it was sent for so long."""

_FULL = "more is being sent to this server than it holds; try again in 2 s"


def bounded_websocket(together: int) -> type[WebSocketsSansIOProtocol]:
    """What a server that serves `/v1/audio/stream` gives uvicorn as `ws`.

    together: bytes of messages that may wait on all connections, whole or not; who brings a long one above that is
    closed with 1013. Anyone may connect, so that this holds before there is a key, too.
    """
    held = 0

    class BoundedWebSocket(WebSocketsSansIOProtocol):
        _waiting = 0
        """Bytes that came since the app last took a message."""
        _dropping: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            """Bound what waits in this process; the operating system's own buffer is as it is."""
            super().connection_made(transport)
            cast(asyncio.WriteTransport, transport).set_write_buffer_limits(high=SEND_BUFFER_BYTES)

        def connection_lost(self, exc: Exception | None) -> None:
            self._taken()
            if self._dropping is not None:
                self._dropping.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            nonlocal held
            self._waiting += len(data)
            held += len(data)
            if held > together and self._waiting > SMALL_BYTES:
                self._turn_away(CloseCode.TRY_AGAIN_LATER, _FULL)
            else:
                super().data_received(data)

        def eof_received(self) -> None:
            super().eof_received()
            # asyncio tells of the connection's end only when what was written is read, which may never be.
            self.queue.put_nowait({"type": "websocket.disconnect", "code": CloseCode.ABNORMAL_CLOSURE})
            self._drop_later()

        async def receive(self) -> Any:
            """The next message, for which there is room again."""
            message = await super().receive()
            self._taken()
            return message

        def handle_connect(self, event: Request) -> None:
            """Tell the app how to drop its connection: one that is closed waits for its listener to read."""
            super().handle_connect(event)
            if self.handshake_complete:
                return  # refused: no scope was made
            extensions: dict[str, Any] = self.scope.setdefault("extensions", {})
            extensions[ABORT] = self.transport.abort

        def _taken(self) -> None:
            nonlocal held
            held -= self._waiting
            self._waiting = 0

        def send_receive_event_to_app(self) -> None:
            """Text that is none is a client's mistake, which uvicorn would log with a traceback."""
            if self.curr_msg_data_type == "text" and not _is_utf8(b"".join(self.frames)):
                self.frames = []
                self._turn_away(CloseCode.INVALID_DATA, "message: it is no UTF-8; send JSON in text frames")
            else:
                super().send_receive_event_to_app()

        def _turn_away(self, code: CloseCode, reason: str) -> None:
            if self.conn.state is not State.OPEN:
                self.transport.abort()
                return
            self.conn.fail(code, reason)
            self.handle_parser_exception()  # what uvicorn does with a connection that breaks the protocol
            self._drop_later()

        def _drop_later(self) -> None:
            if self._dropping is None:
                self._dropping = self.loop.call_later(LINGER_S, self.transport.abort)

    return BoundedWebSocket


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
