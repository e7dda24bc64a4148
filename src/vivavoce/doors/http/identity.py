"""Every request has an id, its own or a new one, and its answer says which."""

from __future__ import annotations

from typing import cast

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vivavoce.service.operations.ledger import Ledger

HEADER = "x-request-id"


class Identified:
    """Around an app: `request_id` finds the id, and answers carry it in `x-request-id`."""

    def __init__(self, app: ASGIApp, *, ledger: Ledger) -> None:
        self._app, self._ledger = app, ledger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request or WebSocket."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        identity = self._ledger.accept_request_id(Headers(scope=scope).get(HEADER))
        scope.setdefault("state", {})["request_id"] = identity

        async def marked(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
                MutableHeaders(scope=message)[HEADER] = identity
            await send(message)

        await self._app(scope, receive, marked)


def request_id(connection: HTTPConnection) -> str:
    """The id of a request or WebSocket."""
    return cast(str, connection.state.request_id)
