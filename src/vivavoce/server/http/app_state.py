"""The state and the dependencies that routes share: principals, deadlines and checks of web origins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, cast
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, Query
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection

from vivavoce.errors import Forbidden, InvalidRequest, Unauthorized
from vivavoce.frontend.speech_backend import SpeechBackend, backend_of
from vivavoce.logs import note_principal
from vivavoce.server.dialect import Dialect
from vivavoce.server.dispatcher import RequestDispatcher
from vivavoce.server.keys import KeyRing, token_in
from vivavoce.server.rate_limiter import Principal
from vivavoce.server.served_models import served_model
from vivavoce.server.settings import ServerSettings

REQUEST_ID_HEADER, TIMEOUT_HEADER = "x-request-id", "x-request-timeout"
ADMISSION_HEADER = "x-admission-seconds"
"""Seconds until a request for speech was accepted: the time to read its text and voice, and to wait for room."""
SPEED_HEADER, FLOW_STEPS_HEADER, WARNING_HEADER = "x-speed", "x-flow-steps", "x-warning"
"""The speed of the speech, the steps of its flow, and warnings about deviations from the request."""
SPEECH_HEADERS = (REQUEST_ID_HEADER, ADMISSION_HEADER, SPEED_HEADER, FLOW_STEPS_HEADER, WARNING_HEADER)
_SECONDS = {"type": "number", "exclusiveMinimum": 0, "maximum": 86_400}
TIMEOUT = {
    "name": TIMEOUT_HEADER,
    "in": "header",
    "schema": _SECONDS,
    "description": "Seconds after which the request ends, even if its speech is incomplete.",
}
PUBLIC_READER = Principal("*", concurrent=16)
"""The principal of callers without a key, if they may read lists (auth.open_lists); no key can have this name."""
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


class JobService(Protocol):
    """Runs the jobs of the jobs API in the background (`vivavoce_books`)."""

    def router(self, state: AppState) -> APIRouter: ...

    async def close(self) -> None: ...


@dataclass(eq=False)
class AppState:
    """settings: a reload replaces them, so routes read changeable settings here at each request. jobs: None if the
    server takes no jobs. dialects: interfaces of other products that the server also offers.
    """

    dispatcher: RequestDispatcher
    keys: KeyRing
    settings: ServerSettings
    jobs: JobService | None = None
    dialects: Sequence[Dialect] = ()


def state_of(connection: HTTPConnection) -> AppState:
    return cast(AppState, connection.app.state.vivavoce)


async def current_principal(connection: HTTPConnection) -> Principal:
    """Return the principal of the key in the headers. Unauthorized: the key is missing or unknown."""
    principal = state_of(connection).keys.authenticate(token_in(connection.headers))
    note_principal(principal.name)
    return principal


KnownPrincipal = Annotated[Principal, Depends(current_principal)]


async def list_reader(connection: HTTPConnection) -> Principal:
    """Return the principal who reads a list. With auth.open_lists, callers without a key may read its public part."""
    state = state_of(connection)
    is_anonymous = state.settings.auth.open_lists and token_in(connection.headers) is None
    return PUBLIC_READER if is_anonymous and state.keys.required else await current_principal(connection)


ListReader = Annotated[Principal, Depends(list_reader)]


MODEL_QUERY = Query("", max_length=200, description="A served model's name. Default: the server's default model.")


async def backend_for(state: AppState, model: str, principal: Principal) -> SpeechBackend:
    """Return the backend of the model that a client named ("": the default model); load the model if necessary.

    ModelNotFound: the name is unknown. Unauthorized: the model has to be loaded, and the caller has no key.
    """
    dispatcher = state.dispatcher
    about = dispatcher.backend.about
    name = served_model(model, about, dispatcher.rules) if model else ""
    if principal is PUBLIC_READER and not about.of(name).loaded:
        raise Unauthorized("model: it is not loaded, and only a request with an API key may have it loaded; send one")
    return await backend_of(dispatcher.backend, name)


async def deadline_of(connection: HTTPConnection) -> float | None:
    """Return the deadline on the dispatcher's clock, counted from now; None if the client sent no timeout."""
    if (given := connection.headers.get(TIMEOUT_HEADER)) is None:
        return None
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise InvalidRequest(
            f"{TIMEOUT_HEADER}: {given[:40]!r} is not a number of seconds above 0, up to 86400; send one"
        )
    return state_of(connection).dispatcher.clock() + seconds


Deadline = Annotated[float | None, Depends(deadline_of)]
"""Parameter of a route: the deadline of the request, counted from the arrival of its headers."""


def refuse_foreign_page(headers: Headers, scheme: str, allowed: Sequence[str], what: str = "change voices") -> None:
    """Raise Forbidden if a page of another origin sends a form to this server or shows its content, as browsers allow.

    Browsers send `Sec-Fetch-Site` only to servers with TLS or on this machine. Without it, `is_own_page` checks
    `Origin`, or `Referer` if `Origin` is missing, as in a request for an image. what: the act, for the message.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if origin is None and "referer" in headers:
        origin = "/".join(headers["referer"].split("/", 3)[:3])
        headers = Headers({**headers, "origin": origin})
    is_foreign = not is_own_page(headers, scheme, allowed) if site is None else site in ("cross-site", "same-site")
    if is_foreign and not {"*", origin} & set(allowed):
        raise Forbidden(f"origin: pages of {(origin or '')[:100]!r} may not {what}; allow it in cors_origins")


def is_own_page(headers: Headers, scheme: str, allowed: Sequence[str]) -> bool:
    """Return whether the sender is a page of this host and port or of an allowed origin ("*": any), or no browser.

    Browsers open WebSockets and send forms from any page, with the user's cookies and network. scheme: "http", "ws",
    "https" or "wss". Clients other than browsers send no `Origin`.
    """
    origin = headers.get("origin")
    if origin is None or "*" in allowed or origin in allowed:
        return True
    try:
        page, own = urlsplit(origin), urlsplit(f"//{headers.get('host', '')}")
        if page.scheme not in _PORTS or page.hostname is None:
            return False  # such as "null", the origin of a sandboxed page or a file
        # A proxy may have removed TLS, so the usual ports of both schemes count as the same port.
        usual = {None, _PORTS[page.scheme], _PORTS.get(scheme, 80)}
        same_port = page.port == own.port or {page.port, own.port} <= usual
        return page.hostname == own.hostname and same_port
    except ValueError:
        return False  # a malformed host or port
