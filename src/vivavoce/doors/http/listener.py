"""An app on a port: uvicorn with this server's bounds, in an event loop that it shares with others."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from vivavoce.doors.http.bodies import BODIES_AT_ONCE
from vivavoce.doors.http.connections import ConnectionBounds, bounded_protocol
from vivavoce.doors.http.ws_protocol import bounded_websocket
from vivavoce.errors import InvalidRequest
from vivavoce.service.operations.settings import ServerSection

_BACKLOG = 2048
_UNSENT_BYTES = 32 * 1024
"""Above this, what a client does not take waits in the engine and not in the operating system, which would take
megabytes: minutes of speech that nobody may ever hear."""
_WEBSOCKET_QUEUE = 32
_PING_S = 20.0
_SPARE_BYTES = 1 << 16
"""A WebSocket message that is too large by less is told so; a larger one is not read at all."""


def bind(host: str, port: int, field: str) -> socket.socket:
    """A socket that listens there; 0: at a free port.

    Raises:
        InvalidRequest: the port is taken, or the address is none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Of a socket that names its protocol asyncio switches Nagle's algorithm off, which would hold small pieces back.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # connections have what the socket has that takes them
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise InvalidRequest(
            f"{field}: {port} at {host} cannot be listened at ({error.strerror or error}); choose another one"
        ) from None
    listening.setblocking(False)
    return listening


class Listener:
    """One port. Signals are whoever's who runs it."""

    def __init__(self, app: ASGIApp, listening: socket.socket, settings: ServerSection) -> None:
        self._socket = listening
        bounds = ConnectionBounds(
            settings.request_timeout_s,
            settings.max_connections,
            settings.max_header_bytes,
            unread_s=2 * settings.listener_timeout_s,
        )
        config = uvicorn.Config(
            app,
            http=bounded_protocol(bounds),
            ws=bounded_websocket(BODIES_AT_ONCE * settings.max_body_bytes),
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            proxy_headers=True,
            h11_max_incomplete_event_size=settings.max_header_bytes,
            timeout_keep_alive=settings.keep_alive_s,
            timeout_graceful_shutdown=5,
            ws_max_size=settings.max_body_bytes + _SPARE_BYTES,
            ws_per_message_deflate=False,  # audio does not shrink
            ws_max_queue=_WEBSOCKET_QUEUE,
            ws_ping_interval=_PING_S,
            ws_ping_timeout=_PING_S,
            ssl_certfile=settings.tls_certificate,
            ssl_keyfile=None if settings.tls_key is None else str(settings.tls_key),
            ssl_ca_certs=None if settings.tls_client_ca is None else str(settings.tls_client_ca),
            ssl_cert_reqs=ssl.CERT_NONE if settings.tls_client_ca is None else ssl.CERT_REQUIRED,
        )
        self._server = _Server(config)
        self._serving: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """Where it listens."""
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        """Connections that are open, WebSockets among them."""
        return len(self._server.server_state.connections)

    async def start(self) -> None:
        """Answer from now on; raises what uvicorn cannot begin for."""
        self._serving = asyncio.ensure_future(self._server.serve([self._socket]))
        beginning = asyncio.ensure_future(self._server.begun.wait())
        await asyncio.wait((self._serving, beginning), return_when=asyncio.FIRST_COMPLETED)
        beginning.cancel()
        if self._serving.done():
            self._serving.result()

    async def stop(self) -> None:
        """Take no more connections, and close those that are open."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.begun = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.begun.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Another one has them."""
        yield
