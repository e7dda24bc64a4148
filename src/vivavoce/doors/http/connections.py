"""Connections that cannot be held for nothing: uvicorn's protocol, bounded in time, number and size of headers."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import h11
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from vivavoce.doors.http.errors import refusal

ABORT = "vivavoce.abort"
"""In a scope's extensions: a function that drops the connection at once, whatever was still to be sent."""
MARGIN = 64
"""Connections above the most that are still answered, with 503; what is above them is dropped unread."""
_PROBES = "/health/"
"""Asked even of a server that is full: who restarts servers must not take that for broken."""
_VERSIONS = ("1.0", "1.1")
_CLOSE = {"connection": "close"}


@dataclass(frozen=True)
class ConnectionBounds:
    """Of one port.

    request_timeout_s: for a request's headers; connections: at once; header_bytes: of a request; unread_s: how long
    what was sent may wait for its reader, longer than speech waits, whose verdict tells of it.
    """

    request_timeout_s: float
    connections: int
    header_bytes: int
    unread_s: float


def bounded_protocol(bounds: ConnectionBounds) -> type[H11Protocol]:
    """HTTP/1.1 in which a request has so many seconds to arrive with all of its headers.

    The time counts from the connection's beginning, then from the first byte of each further request; how long a
    connection may idle before that is uvicorn's own setting. What is refused here, before there is a request, is
    answered in the shape of all errors, and ends the connection. A client that closes its writing side has left, and
    one that does not read what was sent is dropped: closing alone would wait for it.
    """

    class BoundedProtocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None
        _unread: asyncio.TimerHandle | None = None
        _crowded = False

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            above = len(self.connections) - bounds.connections
            if above > MARGIN:
                transport.abort()
                return
            self._crowded = above > 0
            self.app = _checked(self.app, bounds.header_bytes, self._crowded)
            self._await_request()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            self._was_read()
            self._unset_keepalive_if_required()
            super().connection_lost(exc)

        def eof_received(self) -> None:
            super().eof_received()
            # asyncio tells of the connection's end only when what was written is read, which may never be.
            self._tell_disconnected()
            self._await_reader()

        def data_received(self, data: bytes) -> None:
            if self._deadline is None and self.cycle is not None and self.cycle.response_complete:
                self._await_request()
            super().data_received(data)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._await_reader()

        def resume_writing(self) -> None:
            super().resume_writing()
            if not self.transport.is_closing():
                self._was_read()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.transport.is_closing():
                self._await_reader()

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()
            self._await_reader()

        def handle_events(self) -> None:
            before = self.scope
            super().handle_events()
            waiting = self.flow.read_paused and self.conn.their_state is h11.DONE  # a further request, for its turn
            if waiting and len(self.conn.trailing_data[0]) <= bounds.header_bytes:
                self.flow.resume_reading()  # who does not read does not notice either that the client leaves
            if self.scope is not before:
                self._stop_waiting()
                extensions: dict[str, Any] = self.scope.setdefault("extensions", {})
                extensions[ABORT] = self.transport.abort

        def handle_websocket_upgrade(self, event: h11.Request) -> None:
            self._stop_waiting()  # another protocol takes over, with clocks of its own
            if self._crowded:
                self._refuse(_full())
                return
            super().handle_websocket_upgrade(event)
            if not getattr(self.transport.get_protocol(), "handshake_initiated", True):
                # It has a body, say, or too many headers; uvicorn's other protocol would wait for ever.
                self._refuse(_malformed(400, bounds.header_bytes))

        def send_400_response(self, msg: str) -> None:
            # uvicorn calls this where it catches h11's error, and does not hand over what that knows of the reason.
            self._refuse(_malformed(getattr(sys.exc_info()[1], "error_status_hint", 400), bounds.header_bytes))

        def _await_request(self) -> None:
            self._deadline = self.loop.call_later(bounds.request_timeout_s, self._give_up)

        def _stop_waiting(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _await_reader(self) -> None:
            if self._unread is None:
                self._unread = self.loop.call_later(bounds.unread_s, self.transport.abort)

        def _was_read(self) -> None:
            if self._unread is not None:
                self._unread.cancel()
                self._unread = None

        def _give_up(self) -> None:
            if self.conn.trailing_data[0] and self.conn.our_state is h11.IDLE:
                self._refuse(_late(bounds.request_timeout_s))
            else:
                self.transport.abort()

        def _tell_disconnected(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                self.cycle.disconnected = True
                self.cycle.message_event.set()

        def _refuse(self, answer: Response) -> None:
            """Answer in place of the app if nothing was answered yet, and end the connection."""
            self._stop_waiting()
            self._tell_disconnected()  # an app that waits for more of the body learns that none will come
            if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
                self.transport.abort()
                return
            phrase = HTTPStatus(answer.status_code).phrase.encode()
            head = h11.Response(status_code=answer.status_code, headers=answer.raw_headers, reason=phrase)
            for event in (head, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.close()
            self._await_reader()

    return BoundedProtocol


def drop(scope: Scope) -> None:
    """End the connection of a request or WebSocket at once, where its listener offers that."""
    abort = scope.get("extensions", {}).get(ABORT)
    if abort is not None:
        abort()


def _checked(app: ASGIApp, header_bytes: int, crowded: bool) -> ASGIApp:
    """The app, for requests whose headers can be taken."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        problem = _problem(scope, header_bytes, crowded) if scope["type"] == "http" else None
        await (problem or app)(scope, receive, send)

    return checked


def _problem(scope: Scope, header_bytes: int, crowded: bool) -> Response | None:
    if crowded and not scope["path"].startswith(_PROBES):
        return _full()
    if scope["http_version"] not in _VERSIONS:
        return refusal(505, "request: HTTP/1.1 is spoken here, and HTTP/1.0", "invalid_request", _CLOSE)
    # h11 bounds what is not complete; what comes in one piece may be longer.
    line = len(scope["raw_path"]) + len(scope["query_string"])
    if line + sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > header_bytes:
        return _malformed(431, header_bytes)
    headers = Headers(scope=scope)
    # A proxy in front may take the other one of the two, and what follows for the next request.
    if "transfer-encoding" in headers and ("content-length" in headers or scope["http_version"] == "1.0"):
        message = "headers: transfer-encoding goes neither with content-length nor with HTTP/1.0; leave it out"
        return refusal(400, message, "invalid_request", _CLOSE)
    return None


def _full() -> Response:
    message = "connections: there are as many as this server takes; try again in some seconds"
    return refusal(503, message, "overloaded", {**_CLOSE, "retry-after": "2"})


def _late(seconds: float) -> Response:
    message = f"headers: they were not complete within {seconds:g} s; send them at once"
    return refusal(408, message, "request_timeout", _CLOSE)


def _malformed(status: int, header_bytes: int) -> Response:
    message = {
        431: f"headers: with the path they are longer than the limit of {header_bytes} bytes; send shorter ones",
        501: "transfer-encoding: only chunked is known here; send a content-length, or chunks",
    }.get(status, "request: it is no HTTP/1.1, or malformed; see RFC 9112")
    return refusal(status, message, "invalid_request", _CLOSE)
