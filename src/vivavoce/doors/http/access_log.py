"""A line in the log at the end of each HTTP request and WebSocket, and the scope that lines in between belong to."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vivavoce.service.operations.logs import tell
from vivavoce.service.operations.scope import request_scope

log = logging.getLogger("vivavoce.access")

_QUIET = ("/health/", "/metrics", "/web/")
"""What is asked for all the time, by machines; logged for debugging only."""
_MAX_PATH = 200


class AccessLog:
    """Around an app, inside of what gives requests their ids (`identity.Identified`).

    A line tells the path without its query, which may hold a key; what was spoken is told by the request's own line.
    """

    def __init__(self, app: ASGIApp, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._app, self._clock = app, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request or WebSocket."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        answer = _Answer()

        async def watched(message: Message) -> None:
            answer.note(message)
            await send(message)

        began = self._clock()
        with request_scope(
            scope.get("state", {}).get("request_id", ""),
            traceparent=headers.get("traceparent", ""),
            tracestate=headers.get("tracestate", ""),
        ):
            try:
                await self._app(scope, receive, watched)
            except Exception:
                answer.failed()
                raise
            finally:
                _write(scope, answer, self._clock() - began)


class _Answer:
    """What was answered so far; status: of HTTP, or the code that closed a WebSocket."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.sent = 0
        self.whole = False

    def note(self, message: Message) -> None:
        kind = message["type"]
        if kind in ("http.response.start", "websocket.http.response.start"):
            self.status = message["status"]
        elif kind in ("http.response.body", "websocket.http.response.body"):
            self.sent += len(message.get("body", b""))
            self.whole = not message.get("more_body", False)
        elif kind == "websocket.send":
            self.sent += len(message.get("bytes") or message.get("text") or b"")
        elif kind == "websocket.close":
            self.status, self.whole = message.get("code", 1000), True

    def failed(self) -> None:
        """A defect: the answer of 500 is given further out, if none was begun."""
        if self.status is None:
            self.status, self.whole = 500, True


def _write(scope: Scope, answer: _Answer, seconds: float) -> None:
    path = scope["path"]
    client = scope.get("client")
    tell(
        log,
        logging.DEBUG if path.startswith(_QUIET) else logging.INFO,
        scope["type"],
        method=scope.get("method"),
        path=path if len(path) <= _MAX_PATH else f"{path[:_MAX_PATH]}…",
        status=answer.status,
        sent=answer.sent,
        whole=answer.whole,
        seconds=seconds,
        client=client[0] if client else None,
    )
