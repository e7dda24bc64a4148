"""The app of a server's main port."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from vivavoce.doors.http import cosyvoice, errors, health, metrics, openai, pages, voices, websocket
from vivavoce.doors.http.access_log import AccessLog
from vivavoce.doors.http.bodies import BODIES_AT_ONCE, BodyLimits
from vivavoce.doors.http.desk import Desk
from vivavoce.doors.http.hosts import AllowedHosts, names_of
from vivavoce.doors.http.identity import HEADER, Identified
from vivavoce.version import __version__


def build_app(desk: Desk) -> FastAPI:
    """All routes, with their limits."""
    app = bare_app(desk, "vivavoce", "Text to speech: OpenAI's routes with true streaming, WebSockets, voices.")
    for part in (openai, voices, websocket, health):
        app.include_router(part.router(desk))
    if desk.settings.server.metrics:
        app.include_router(metrics.router(desk))
    if desk.settings.server.web_page:
        app.include_router(pages.router(desk))
    return app


def build_legacy_app(desk: Desk) -> FastAPI:
    """CosyVoice's own routes, for a port of their own."""
    app = bare_app(desk, "CosyVoice", "The routes of CosyVoice's own service, spoken by vivavoce.")
    for part in (cosyvoice, health):
        app.include_router(part.router(desk))
    return app


def bare_app(desk: Desk, title: str, description: str) -> FastAPI:
    """An app without routes, bounded, that answers failures as all do."""
    server = desk.settings.server
    app = FastAPI(
        title=title,
        description=description,
        version=__version__,
        openapi_url="/openapi.json" if server.docs else None,
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        root_path=server.root_path,
        # A slash too many is a mistake to be told, not a request to be sent twice with its body.
        redirect_slashes=False,
    )
    app.state.desk = desk
    errors.install(app)
    _describe(app)
    # The last one added is the outermost.
    app.add_middleware(
        BodyLimits,
        each=server.max_body_bytes,
        together=BODIES_AT_ONCE * server.max_body_bytes,
        pause_s=server.listener_timeout_s,
    )
    if server.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(server.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],  # OpenAI's package for browsers sends a dozen of its own
            expose_headers=[HEADER, "retry-after"],
        )
    if (names := names_of(desk)) is not None:
        app.add_middleware(AllowedHosts, names=names)
    app.add_middleware(AccessLog)
    app.add_middleware(Identified, ledger=desk.reception.ledger)
    return app


def _describe(app: FastAPI) -> None:
    """Leave out of the app's description what FastAPI tells of an answer that `errors` gives another status."""
    whole = app.openapi

    def described() -> dict[str, Any]:
        description = whole()
        for operations in description["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            description.get("components", {}).get("schemas", {}).pop(name, None)
        return description

    app.openapi = described  # type: ignore[method-assign]
