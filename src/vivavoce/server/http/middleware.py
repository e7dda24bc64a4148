"""The middleware of all requests: ids, the access log, checks of connections and hosts, limits of bodies."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from vivavoce.errors import Forbidden, Overloaded, RequestCancelled, TooLarge, VivavoceError
from vivavoce.logs import current_scope, log_event, request_scope
from vivavoce.server.http.app_state import REQUEST_ID_HEADER, WARNING_HEADER, AppState
from vivavoce.server.http.errors import error_response, response_of
from vivavoce.server.http.listener import BODIES_AT_ONCE, current_connection
from vivavoce.server.setting_kinds import is_loopback

access_log = logging.getLogger("vivavoce.access")

LINGER_S = 10.0
"""Seconds for reading and dropping the rest of a refused body; some clients read the answer only after sending all."""
PAUSE_S = 1.0
"""Seconds without data after which the rest of a refused body is not read any more."""
BODY_BYTES_PER_S = 16 * 1024
"""The time limit of a body is `listener_timeout_s` plus the time of its bytes at this rate."""
CALLERS_SHARE = 4
"""The limit for the bodies of one caller is the limit for all bodies, divided by this number."""
_HEALTH = "/health"
"""Prefix of paths that are answered even with too many connections; otherwise an orchestrator restarts the server."""
_QUIET = (_HEALTH, "/metrics", "/web/")
_MAX_LOGGED_PATH = 200
_VERSIONS = ("1.0", "1.1")
_CLOSE = {"connection": "close"}


class RequestMiddleware:
    """Adds `x-request-id` to answers, writes the access log, and refuses requests that break a bound.

    A body has at most `max_body_bytes`, and at most `listener_timeout_s` between two parts; it may take this time plus
    the time of its bytes at `BODY_BYTES_PER_S`. All bodies that are being read have at most 16 times `max_body_bytes`
    together, and the bodies of one caller a quarter of that.
    """

    def __init__(self, app: ASGIApp, *, state: AppState, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._clock = app, clock
        self._request_log = state.dispatcher.request_log
        self._hosts = allowed_hosts(state)
        self.settings = state.settings.server
        self.body_bytes: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, connection = Headers(scope=scope), current_connection.get()
        identity = self._request_log.accept_request_id(headers.get(REQUEST_ID_HEADER))
        is_head = scope.get("method") == "HEAD"
        scope.setdefault("state", {}).update(request_id=identity, is_head=is_head)
        exchange = _Exchange(self, scope, headers, receive, send)
        connection.begin_request()
        began = self._clock()
        parent, states = headers.get("traceparent", ""), headers.get("tracestate", "")
        with request_scope(identity, traceparent=parent, tracestate=states):
            try:
                refusal = self._refusal(scope, headers, connection.is_crowded)
                if refusal is None:
                    # Routes handle HEAD like GET, and the server does not send the body.
                    seen = {**scope, "method": "GET"} if is_head else scope
                    await self._app(seen, exchange.receive, exchange.send)
                elif scope["type"] == "websocket":
                    await WebSocket(scope, receive, exchange.send).send_denial_response(refusal)
                else:
                    await refusal(scope, receive, exchange.send)
            except Exception:
                exchange.fail()
                raise
            finally:
                exchange.release_body()
                connection.end_request(body_was_read=exchange.body_was_read)
                exchange.log(self._clock() - began)

    def _refusal(self, scope: Scope, headers: Headers, is_crowded: bool) -> Response | None:
        if is_crowded and not scope["path"].startswith(_HEALTH):
            message = "connections: their number has reached the server's limit; try again in some seconds"
            return error_response(503, message, "overloaded", {**_CLOSE, "retry-after": "2"})
        version = scope.get("http_version", "1.1")
        if scope["type"] == "http" and version not in _VERSIONS:
            return error_response(505, "request: wrong HTTP version; use 1.1 or 1.0", "invalid_request", _CLOSE)
        # uvicorn limits only incomplete headers; headers that come in one piece may be longer.
        line = len(scope.get("raw_path", b"")) + len(scope["query_string"])
        limit = self.settings.max_header_bytes
        if line + sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > limit:
            message = f"headers: with the path they are longer than the limit of {limit} bytes; send shorter ones"
            return error_response(431, message, "invalid_request", _CLOSE)
        # Of two such headers, a proxy may obey the other one, and read a part of the body as a request (smuggling).
        if "transfer-encoding" in headers and ("content-length" in headers or version == "1.0"):
            message = "headers: transfer-encoding goes neither with content-length nor with HTTP/1.0; leave it out"
            return error_response(400, message, "invalid_request", _CLOSE)
        host = headers.get("host")  # browsers always send this header
        if self._hosts is not None and host is not None and not _is_known(host, self._hosts):
            message = f"host: {host[:100]!r} is not an allowed name of this server; add it with --allowed-host"
            return response_of(Forbidden(message))
        return None


class BodyStalled(VivavoceError):
    code = "request_timeout"
    http_status = 408


class _Exchange:
    def __init__(self, bounds: RequestMiddleware, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        self._bounds, self._scope = bounds, scope
        self._receive, self._send = receive, send
        self._is_websocket = scope["type"] == "websocket"
        promised = headers.get("content-length", "0")
        self._promised = int(promised) if promised.isdigit() else 0
        self.body_was_read = self._is_websocket or not (self._promised or "transfer-encoding" in headers)
        self._size, self._caller = 0, ""
        self._began = asyncio.get_running_loop().time()
        self._closes = scope.get("http_version") == "1.0" or "close" in headers.get("connection", "").lower()
        self._status: int | None = None
        """The HTTP status, or the close code of a WebSocket."""
        self._sent = 0
        self._is_whole = False

    async def receive(self) -> Message:
        """Receive a message; after the body, wait for the client's disconnection, which may take any time."""
        if self._is_websocket:
            message = await self._receive()
            current_connection.get().message_taken()
            return message
        if self.body_was_read:
            return await self._receive()
        self._take(0)  # refuse a promised size before the client sends the body
        connection, now = current_connection.get(), asyncio.get_running_loop().time()
        seconds = self._bounds.settings.listener_timeout_s
        # At BODY_BYTES_PER_S, the bytes so far take until this time. For a slower client, this time is in the past.
        connection.waits_since = self._began + self._size / BODY_BYTES_PER_S
        try:
            message = await asyncio.wait_for(self._receive(), min(seconds, connection.waits_since + seconds - now))
        except (TimeoutError, asyncio.TimeoutError):
            self._closes = True
            slower = f"it came slower than {BODY_BYTES_PER_S} bytes a second"
            raise BodyStalled(f"body: nothing of it came for {seconds:g} s, or {slower}; send it at once") from None
        if message["type"] == "http.disconnect":
            raise RequestCancelled("request: its client left before all of its body had come")
        self.body_was_read = not message.get("more_body", False)
        if self.body_was_read:
            connection.waits_since = math.inf
        self._take(len(message.get("body", b"")))
        return message

    def _take(self, added: int) -> None:
        self._size += added
        if not self._caller:
            request, client = current_scope(), self._scope.get("client")
            name = request.principal_name if request else ""
            self._caller = f"key {name}" if name else f"address {client and client[0]}"
        bodies = self._bounds.body_bytes
        bodies[self._caller] += added
        size, limit = max(self._size, self._promised), self._bounds.settings.max_body_bytes
        if size > limit:
            self._closes = True
            raise TooLarge(f"body: {size} bytes are more than the limit of {limit}; send a shorter recording")
        together = BODIES_AT_ONCE * limit
        bounds = ((bodies[self._caller], together // CALLERS_SHARE, " of yours"), (bodies.total(), together, ""))
        for got, most, whose in bounds:
            if got > most:
                self._closes = True
                problem = f"uploads: {got} bytes{whose} are being read, the limit is {most}"
                raise Overloaded(f"{problem}; try again when they have come", 2.0)

    def release_body(self) -> None:
        bodies = self._bounds.body_bytes
        bodies[self._caller] -= self._size
        self._size = 0
        if not bodies[self._caller]:
            del bodies[self._caller]

    async def send(self, message: Message) -> None:
        """Send a message. Closing with unread data would destroy the answer, so the rest of the body is read first."""
        self.release_body()  # the app has read the body; the answer may take minutes
        kind = message["type"].removeprefix("websocket.")  # a WebSocket may be denied with an HTTP answer
        if kind in ("http.response.start", "accept"):
            headers = MutableHeaders(scope=message)
            headers[REQUEST_ID_HEADER] = self._scope["state"]["request_id"]
            if ignored := self._scope["state"].get("ignored"):
                headers[WARNING_HEADER] = "; ".join(filter(None, (headers.get(WARNING_HEADER), ignored)))
        if kind == "http.response.start":
            self._status = message["status"]
            self._closes = self._closes or headers.get("connection") == "close"
            if self._closes:
                headers["connection"] = "close"
        elif kind == "http.response.body":
            self._sent += len(message.get("body", b""))
            self._is_whole = not message.get("more_body", False)
            if self._is_whole and self._closes and not self.body_was_read:
                await self._send({**message, "more_body": True})
                with suppress(TimeoutError, asyncio.TimeoutError):
                    await asyncio.wait_for(self._discard(), LINGER_S)
                message = {"type": message["type"], "body": b"", "more_body": False}
        elif kind == "accept":
            current_connection.get().accept_websocket()
        elif kind == "send":
            self._sent += len(message.get("bytes") or message.get("text") or b"")
        elif kind == "close":
            self._status, self._is_whole = message.get("code", 1000), True
        await self._send(message)

    async def _discard(self) -> None:
        current_connection.get().waits_since = asyncio.get_running_loop().time()
        while (await asyncio.wait_for(self._receive(), PAUSE_S)).get("more_body", False):
            pass

    def fail(self) -> None:
        if self._status is None:
            self._status, self._is_whole = 500, True

    def log(self, seconds: float) -> None:
        """Write a line to the access log, without the query, which may hold a key."""
        path, client = self._scope["path"], self._scope.get("client")
        log_event(
            access_log,
            logging.DEBUG if path.startswith(_QUIET) else logging.INFO,
            self._scope["type"],
            method=self._scope.get("method"),
            path=path if len(path) <= _MAX_LOGGED_PATH else f"{path[:_MAX_LOGGED_PATH]}…",
            status=self._status,
            sent=self._sent,
            whole=self._is_whole,
            seconds=seconds,
            client=client[0] if client else None,
        )


def allowed_hosts(state: AppState) -> frozenset[str] | None:
    """Return the host names that requests may use besides localhost and IP addresses; None: any name.

    The owner of a name can make it point at 127.0.0.1 (DNS rebinding). Browsers then let the owner's pages read this
    server's answers; only the host name in the request shows this. Any name is allowed if other machines reach the
    server, or if keys are required: such a page then reads nothing more than any client, and a proxy may use any name.
    """
    server = state.settings.server
    if "*" in server.allowed_hosts:
        return None
    if not server.allowed_hosts and (state.keys.required or not is_loopback(server.host)):
        return None
    return frozenset(server.allowed_hosts)


def _is_known(host: str, names: frozenset[str]) -> bool:
    try:
        name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        return False  # an unclosed bracket
    if name == "localhost" or name.endswith(".localhost") or name in names:
        return True
    try:
        ip_address(name)  # an address cannot be made to point elsewhere
    except ValueError:
        return False
    return True
