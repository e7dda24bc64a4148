"""uvicorn's WebSocket with a small send buffer and a way to drop the connection."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request

from vivavoce.doors.http.connections import ABORT

SEND_BUFFER_BYTES = 8 * 1024
"""Above this a sender waits: 170 ms of 16-bit samples, so that little is on its way when a listener interrupts."""


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """What a server that serves `/v1/audio/stream` gives uvicorn as `ws`."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Bound what waits in this process; the operating system's own buffer is as it is."""
        super().connection_made(transport)
        assert isinstance(transport, asyncio.WriteTransport)
        transport.set_write_buffer_limits(high=SEND_BUFFER_BYTES)

    def handle_connect(self, event: Request) -> None:
        """Tell the app how to drop its connection: one that is closed waits for its listener to read what was sent."""
        super().handle_connect(event)
        if self.handshake_complete:
            return  # refused: no scope was made
        extensions: dict[str, Any] = self.scope.setdefault("extensions", {})
        extensions[ABORT] = self.transport.abort
