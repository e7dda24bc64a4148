"""What routes share: the app's state, who asks, and which web pages may."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, cast
from urllib.parse import urlsplit

from fastapi import Depends
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from vivavoce.errors import Forbidden, InvalidRequest
from vivavoce.logs import note_principal
from vivavoce.server.dispatcher import RequestDispatcher
from vivavoce.server.keys import KeyRing, token_in
from vivavoce.server.rate_limiter import Principal
from vivavoce.server.settings import ServerSettings

REQUEST_ID_HEADER, TIMEOUT_HEADER = "x-request-id", "x-request-timeout"
ADMISSION_HEADER = "x-admission-seconds"
"""How long a request for speech took to be taken: its text, its voice, and the wait for room."""
SPEED_HEADER, WARNING_HEADER = "x-speed", "x-warning"
"""Of speech: its speed, and what is not as its caller wished."""
SPEECH_HEADERS = (REQUEST_ID_HEADER, ADMISSION_HEADER, SPEED_HEADER, WARNING_HEADER)
_SECONDS = {"type": "number", "exclusiveMinimum": 0, "maximum": 86_400}
TIMEOUT = {"name": TIMEOUT_HEADER, "in": "header", "schema": _SECONDS, "description": "Then the speech is given up."}
"""How the header is documented."""
PUBLIC_READER = Principal("*", concurrent=16)
"""All callers without a key together, where lists are open and the rest is not; no key has this name."""
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


@dataclass(frozen=True, eq=False)
class AppState:
    """One for all routes and ports of a server."""

    dispatcher: RequestDispatcher
    keys: KeyRing
    settings: ServerSettings


def request_id(connection: HTTPConnection) -> str:
    """The id of a request or WebSocket, which the middleware gave it."""
    return cast(str, connection.state.request_id)


def state_of(connection: HTTPConnection) -> AppState:
    """The state of the app that a request or WebSocket came to."""
    return cast(AppState, connection.app.state.vivavoce)


async def current_principal(connection: HTTPConnection) -> Principal:
    """The principal whose key the headers bring, as a dependency of routes; Unauthorized: it is missing or unknown."""
    principal = state_of(connection).keys.authenticate(token_in(connection.headers))
    note_principal(principal.name)
    return principal


KnownPrincipal = Annotated[Principal, Depends(current_principal)]
"""A route's parameter: who asks, or the answer 401."""


async def list_reader(connection: HTTPConnection) -> Principal:
    """The same for lists, which callers without a key may read where the settings say so: the public part of them."""
    state = state_of(connection)
    is_stranger = state.settings.auth.open_lists and token_in(connection.headers) is None
    return PUBLIC_READER if is_stranger and state.keys.required else await current_principal(connection)


ListReader = Annotated[Principal, Depends(list_reader)]


async def deadline_of(connection: HTTPConnection) -> float | None:
    """When a request that begins now is given up, by the dispatcher's clock; None: its client does not say.

    InvalidRequest: what it says is no number of seconds that can be waited.
    """
    if (given := connection.headers.get(TIMEOUT_HEADER)) is None:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise InvalidRequest(f"{TIMEOUT_HEADER}: {given[:40]!r} is no number of seconds above 0, up to 86400; send one")
    return state_of(connection).dispatcher.clock() + seconds


Deadline = Annotated[float | None, Depends(deadline_of)]
"""A route's parameter: until when its speech is waited for, the time for its body included."""


def refuse_foreign_page(headers: Headers, scheme: str, allowed: Sequence[str], what: str = "change voices") -> None:
    """Forbidden: a page of another origin sends a form or shows what it finds here, for which browsers ask nobody.

    They say where a page is from in `Sec-Fetch-Site`, but to servers with TLS and on this machine only; to others
    `Origin` tells, as for `is_own_page`, whose arguments these are; without that, as of an image, `Referer` does.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if origin is None and "referer" in headers:
        origin = "/".join(headers["referer"].split("/", 3)[:3])
        headers = Headers({**headers, "origin": origin})
    is_foreign = not is_own_page(headers, scheme, allowed) if site is None else site in ("cross-site", "same-site")
    if is_foreign and not {"*", origin} & set(allowed):
        raise Forbidden(f"origin: pages of {(origin or '')[:100]!r} may not {what}; allow it in cors_origins")


def is_own_page(headers: Headers, scheme: str, allowed: Sequence[str]) -> bool:
    """Whether a page asks that may: one of this server's own host and port, or of an allowed origin ("*": any).

    Browsers open WebSockets and send forms from any page, with the user's own cookies and network. scheme: "http",
    "ws", "https" or "wss". Clients other than browsers send no `Origin`, and may.
    """
    origin = headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed:
        return True
    try:
        page, own = urlsplit(origin), urlsplit(f"//{headers.get('host', '')}")
        if page.scheme not in _PORTS or page.hostname is None:
            return False  # "null": a sandboxed page, or a file
        # A proxy in front may have taken the encryption off, so that the scheme tells nothing but its usual port.
        usual = {None, _PORTS[page.scheme], _PORTS.get(scheme, 80)}
        same_port = page.port == own.port or {page.port, own.port} <= usual
        return page.hostname == own.hostname and same_port
    except ValueError:
        return False  # a malformed host or port
