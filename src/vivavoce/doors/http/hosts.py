"""Under which names a server is asked.

Whoever owns a name can make it point at 127.0.0.1 (DNS rebinding): browsers then take that server for one with the
page's own, and let the page read its answers. Only the name in the request tells.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from vivavoce.doors.http.desk import Desk
from vivavoce.doors.http.errors import response_of
from vivavoce.errors import Forbidden
from vivavoce.service.operations.settings_forms import is_loopback


def names_of(desk: Desk) -> frozenset[str] | None:
    """What the server may be called beside localhost and addresses; None: anything.

    Where other machines reach it, or keys are wanted, a page gains nothing by a name, and a proxy in front may use any.
    """
    server = desk.settings.server
    if "*" in server.allowed_hosts:
        return None
    if not server.allowed_hosts and (desk.keys.required or not is_loopback(server.host)):
        return None
    return frozenset(server.allowed_hosts)


class AllowedHosts:
    """Around an app: answers 403 to what asks under another name."""

    def __init__(self, app: ASGIApp, *, names: Collection[str]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request or WebSocket."""
        host = Headers(scope=scope).get("host") if scope["type"] in ("http", "websocket") else None
        if host is None or _allowed(host, self._names):  # browsers always name one
            await self._app(scope, receive, send)
            return
        message = f"host: {host[:100]!r} is no name that this server is known by; add it with --allowed-host"
        answer = response_of(Forbidden(message))
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(answer)
        else:
            await answer(scope, receive, send)


def _allowed(host: str, names: Collection[str]) -> bool:
    try:
        name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
    except ValueError:
        return False  # a bracket without its other one
    return name == "localhost" or name.endswith(".localhost") or name in names or _is_address(name)


def _is_address(name: str) -> bool:
    """Whether it is an address, which nobody can make point elsewhere."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
