"""Serves an app on a port: uvicorn in a shared event loop, with limits that uvicorn lacks."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from websockets.frames import Close, CloseCode, Frame, Opcode

from vivavoce.errors import InvalidRequest
from vivavoce.server.http.errors import error_response
from vivavoce.server.settings import ServerSection

log = logging.getLogger(__name__)

BODIES_AT_ONCE = 16
"""Limit of all bodies in memory, as a multiple of `max_body_bytes`; WebSocket messages have the same limit."""
SMALL_BYTES = 1 << 16
"""A WebSocket message up to this size is always accepted."""
MARGIN = 64
"""Connections above the limit that are still answered, mostly with 503; further ones wait in the operating system."""
PATIENCE_S = 1.0
"""Seconds without data from a client, after which its connection may be closed to make room for another one."""
_BACKLOG = 1024
"""Size of the operating system's queue of new connections. A connection that finds the queue full waits a second."""
PAUSE_S = 0.1
"""Seconds between two attempts to accept a connection while the server is full."""
_UNSENT_BYTES = 32 * 1024
"""A request waits while its connection has more unsent bytes than this. The operating system would otherwise buffer
megabytes, which are minutes of speech that the client may never play."""
_WEBSOCKET_SEND_BYTES = 8 * 1024
"""Unsent bytes above which a WebSocket waits: 170 ms of 16-bit samples, so that a cancellation is heard soon."""
_WEBSOCKET_QUEUE = 32
_PING_S = 20.0


class BoundedConnection(asyncio.Protocol):
    """One connection, with the bounds that uvicorn's settings lack.

    For asyncio it is the protocol; for uvicorn's protocol it is the transport. It uses only documented methods of both,
    and overrides no method of uvicorn.
    """

    def __init__(self, listener: Listener) -> None:
        self._settings, self._connections = listener.settings, listener.connections
        self._protocol: asyncio.Protocol = H11Protocol(listener.config, listener.server_state, listener.lifespan.state)
        self.opening: asyncio.Task[None] | None = None
        """The task that opens the connection (with TLS: the handshake); None once it is open."""
        self.waits_since = asyncio.get_running_loop().time()
        """Time at which the server began to wait for the client; inf: it does not wait."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._head_begun, self._may_answer_late_head = False, True
        self._is_idle = False
        self._requests = 0
        self._held = bytearray()
        """Data that was received while uvicorn had paused reading."""
        self._is_paused = self._is_websocket = False
        self._has_left = False
        self.is_unread = False
        """Whether the client reads more slowly than the server writes."""
        self.waiting = 0
        """Bytes that a WebSocket has received since the app took the last message."""

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self.opening = cast(asyncio.Transport, transport), None
        self.write = self._transport.write
        self._protocol.connection_made(cast(asyncio.Transport, self))
        self._await_head()

    def data_received(self, data: bytes) -> None:
        if self._has_left:
            return
        if self._is_websocket:
            self.waiting += len(data)
            most = BODIES_AT_ONCE * self._settings.max_body_bytes
            if self.waiting > SMALL_BYTES and sum(connection.waiting for connection in self._connections) > most:
                self._turn_away()
                return
        elif not self._requests:
            if self._is_idle:
                self._is_idle = False
                self._stop_timer("head")
            self._head_begun = True
            self._await_head()
        if self._is_paused or self._held:
            self._held += data
            if len(self._held) > SMALL_BYTES:
                self._transport.pause_reading()
        else:
            self._forward(data)

    def eof_received(self) -> None:
        """Treat a client that closes its writing side as disconnected; asyncio calls this only after all was read."""
        self._leave(None)
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._stop_timer("head")
        self._stop_timer("unread")
        self._leave(None)

    def pause_writing(self) -> None:
        self.is_unread = True
        self._await_reader()
        if not self._has_left:
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self.is_unread = False
        if not self._has_left:
            if not self._transport.is_closing():
                self._stop_timer("unread")
            self._protocol.resume_writing()

    # uvicorn calls these; `write` is the transport's own method

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._transport, name)

    def set_protocol(self, protocol: asyncio.Protocol) -> None:
        self._protocol = protocol

    def pause_reading(self) -> None:
        """Stop forwarding data. Reading goes on for a while, because only a read shows that the client disconnects."""
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        if self._held:
            asyncio.get_running_loop().call_soon(self._forward_held)
        self._transport.resume_reading()

    def close(self) -> None:
        """Close after the client has read all data; drop a client that does not read in time."""
        self._stop_timer("head")
        self._await_reader()
        self._transport.close()

    # Called by the app's middleware

    @property
    def is_crowded(self) -> bool:
        most = self._settings.max_connections
        return len(self._connections) > most < sum(each.waits_since == math.inf for each in self._connections)

    def begin_request(self) -> None:
        self._requests += 1
        self._is_idle = False
        self.waits_since = math.inf
        self._stop_timer("head")

    def end_request(self, *, body_was_read: bool) -> None:
        """End a request. If its body was not read, the rest may still come; that rest is not answered with 408."""
        self._requests -= 1
        self._head_begun = False
        self._may_answer_late_head = body_was_read
        if self._requests or self._has_left:
            return
        # A client that still has data to read is not disconnected to make room for others.
        reading_s = self._settings.listener_timeout_s if self._transport.get_write_buffer_size() else 0.0
        self.waits_since = asyncio.get_running_loop().time() + reading_s
        if not self._is_websocket:
            self._is_idle = True
            # uvicorn closes idle connections, except if the next request's headers began before the answer ended.
            self._await_head(self._settings.keep_alive_s)

    def accept_websocket(self) -> None:
        """Limit the unsent data in this process; the operating system has a buffer of its own."""
        self._is_websocket = True
        self._transport.set_write_buffer_limits(high=_WEBSOCKET_SEND_BYTES)

    def message_taken(self) -> None:
        self.waiting = len(self._held)

    # Called by the listener

    def give_up(self) -> None:
        self._connections.discard(self)
        if self.opening is None:
            self._transport.abort()
        else:
            self.opening.cancel()

    def _forward(self, data: bytes) -> None:
        current_connection.set(self)  # uvicorn begins the app's task in this context
        try:
            self._protocol.data_received(data)
        except h11.LocalProtocolError:  # a malformed body whose request is being answered
            self._transport.abort()

    def _forward_held(self) -> None:
        if self._held and not self._is_paused and not self._has_left:
            data, self._held = bytes(self._held), bytearray()
            self._forward(data)

    def _leave(self, exc: Exception | None) -> None:
        """Report the end of the connection to uvicorn, once. If exc is None, uvicorn closes the transport, too."""
        if not self._has_left:
            self._has_left = True
            self._held.clear()
            self._protocol.connection_lost(exc)

    def _await_head(self, idle_s: float = 0.0) -> None:
        self._start_timer("head", idle_s + self._settings.request_timeout_s, self._give_up_head)

    def _await_reader(self) -> None:
        # A request for speech ends earlier, with the reason in its verdict.
        self._start_timer("unread", 2 * self._settings.listener_timeout_s, self._transport.abort)

    def _start_timer(self, name: str, seconds: float, act: Callable[[], None]) -> None:
        if name not in self._timers and self in self._connections:
            self._timers[name] = asyncio.get_running_loop().call_later(seconds, act)

    def _stop_timer(self, name: str) -> None:
        if name in self._timers:
            self._timers.pop(name).cancel()

    def _give_up_head(self) -> None:
        if not (self._head_begun and self._may_answer_late_head):
            self._transport.abort()
            return
        message = f"headers: they were not complete within {self._settings.request_timeout_s:g} s; send them at once"
        answer = error_response(408, message, "request_timeout", {"connection": "close"})
        headers = b"".join(b"%s: %s\r\n" % header for header in answer.raw_headers)
        self.write(b"HTTP/1.1 408 Request Timeout\r\n" + headers + b"\r\n" + bytes(answer.body))
        self.close()

    def _turn_away(self) -> None:
        """Close a WebSocket; data that still comes is read and dropped, so that the client sees the reason."""
        self.waiting = 0
        self._leave(ConnectionAbortedError())
        close = Close(CloseCode.TRY_AGAIN_LATER, "more is being sent to this server than it holds; try again in 2 s")
        self.write(Frame(Opcode.CLOSE, close.serialize()).serialize(mask=False))
        self._transport.resume_reading()
        self._await_reader()


current_connection: ContextVar[BoundedConnection] = ContextVar("current_connection")


def drop_connection() -> None:
    current_connection.get().abort()


def bind(host: str, port: int, field: str) -> socket.socket:
    """Open a listening socket; port 0: any free port. InvalidRequest: the port is taken, or the address not local."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # If the socket names its protocol, asyncio switches off Nagle's algorithm, which delays small pieces.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # accepted sockets inherit this option
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise InvalidRequest(
            f"{field}: cannot listen on port {port} of {host} ({error.strerror or error}); choose another one"
        ) from None
    listening.setblocking(False)
    return listening


class Listener(uvicorn.Server):
    def __init__(self, app: ASGIApp, listening: socket.socket, settings: ServerSection) -> None:
        self._socket, self.settings = listening, settings
        self.port: int = listening.getsockname()[1]
        self.connections: set[BoundedConnection] = set()
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                ws="websockets-sansio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=True,
                proxy_headers=True,
                h11_max_incomplete_event_size=settings.max_header_bytes,
                timeout_keep_alive=settings.keep_alive_s,
                timeout_graceful_shutdown=5,
                # A message slightly above the limit gets an error with a reason; a larger one is not read.
                ws_max_size=settings.max_body_bytes + SMALL_BYTES,
                ws_per_message_deflate=False,  # audio hardly compresses
                ws_max_queue=_WEBSOCKET_QUEUE,
                ws_ping_interval=_PING_S,
                ws_ping_timeout=_PING_S,
                ssl_certfile=settings.tls_certificate,
                ssl_keyfile=None if settings.tls_key is None else str(settings.tls_key),
                ssl_ca_certs=None if settings.tls_client_ca is None else str(settings.tls_client_ca),
                ssl_cert_reqs=ssl.CERT_NONE if settings.tls_client_ca is None else ssl.CERT_REQUIRED,
            )
        )
        logging.getLogger("uvicorn.error").addFilter(_is_defect)

    async def start(self) -> None:
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        await self.startup([])  # no sockets, since `_take_all` accepts connections
        self._serving = asyncio.create_task(self.main_loop())
        self._taking = asyncio.create_task(self._take_all())

    def read_certificate(self) -> None:
        """Read certificate and key again, for new connections; `tls_problems` has checked them."""
        if isinstance(self.config.ssl, ssl.SSLContext) and self.settings.tls_certificate is not None:
            self.config.ssl.load_cert_chain(self.settings.tls_certificate, self.settings.tls_key)

    async def stop(self) -> None:
        self._taking.cancel()
        for connection in list(self.connections):
            if connection.opening is not None:
                connection.give_up()
        self.should_exit = True
        await self._serving
        await self.shutdown([self._socket])

    async def _take_all(self) -> None:
        """Accept connections. asyncio's own servers have no bounds, and log each connection that they cannot accept."""
        loop, logged_at = asyncio.get_running_loop(), -math.inf
        while True:
            most = self.settings.max_connections
            if len(self.connections) >= most + MARGIN and not self._make_room():
                await asyncio.sleep(PAUSE_S)
                continue
            try:
                client, _ = await loop.sock_accept(self._socket)
                if len(self.connections) >= most:
                    self._make_room()
                connection = BoundedConnection(self)
                self.connections.add(connection)
                connection.opening = asyncio.create_task(self._open(connection, client))
                await asyncio.sleep(0)  # lets open connections continue even if many more wait to be accepted
            except Exception as error:
                if loop.time() - logged_at >= 1.0:
                    logged_at = loop.time()
                    log.warning(
                        "connections: none can be accepted now (%(error)s); allow more open files (ulimit -n)",
                        {"error": error},
                    )
                self._make_room()
                await asyncio.sleep(PAUSE_S)

    async def _open(self, connection: BoundedConnection, client: socket.socket) -> None:
        patience_s = self.settings.request_timeout_s if self.config.ssl else None
        try:
            with suppress(OSError):  # the handshake failed or took too long
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: connection, client, ssl=self.config.ssl, ssl_handshake_timeout=patience_s
                )
        finally:
            if connection.opening is not None:
                self.connections.discard(connection)

    def _make_room(self) -> bool:
        """Drop the connection whose client was silent for longest; return False if none was silent for `PATIENCE_S`."""
        oldest = min(self.connections, key=lambda connection: connection.waits_since, default=None)
        if oldest is None or asyncio.get_running_loop().time() - oldest.waits_since < PATIENCE_S:
            return False
        oldest.give_up()
        return True


def _is_defect(record: logging.LogRecord) -> bool:
    """Return False for mistakes of clients that uvicorn logs as errors: malformed UTF-8 and refused WebSockets."""
    return not str(record.msg).startswith(
        ("Invalid UTF-8 sequence", "ASGI callable returned without completing handshake")
    )
