"""The HTTP apps of a server: for its main port, for CosyVoice's own routes, and for health alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from vivavoce.server.http import adapters, errors, metrics, normalize, openai, pages, voices, ws_session
from vivavoce.server.http.app_state import SPEECH_HEADERS, AppState
from vivavoce.server.http.middleware import RequestMiddleware
from vivavoce.server.http.reference_page import reference_page
from vivavoce.version import __version__

_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def build_app(state: AppState) -> FastAPI:
    app = _BoundedApp(state, "vivavoce", "Text to speech: OpenAI's routes with true streaming, WebSockets, voices.")
    own = (openai.router, normalize.router, voices.router, adapters.router, ws_session.router)
    routers = (*own, *_dialect_routers(state, "port"))
    for router in (*routers, pages.health_router):
        app.include_router(router(state))
    if state.jobs is not None:
        app.include_router(state.jobs.router(state))
    if state.settings.server.metrics and state.settings.server.health_port is None:
        app.include_router(metrics.router(state))
    if state.settings.server.web_page:
        app.include_router(pages.router(state))
        app.has_pages = True
    return app


def build_legacy_app(state: AppState) -> FastAPI:
    app = _BoundedApp(state, "CosyVoice", "The routes of CosyVoice's own service, spoken by vivavoce.")
    for router in (*_dialect_routers(state, "legacy_port"), pages.health_router):
        app.include_router(router(state))
    return app


def build_health_app(state: AppState) -> FastAPI:
    """Health and metrics on a separate port, so that other clients cannot use up its connections."""
    app = _BoundedApp(state, "vivavoce's health", "Health checks, and metrics for Prometheus.")
    app.include_router(pages.health_router(state))
    if state.settings.server.metrics:
        app.include_router(metrics.router(state))
    return app


def _dialect_routers(state: AppState, port: str) -> list[Callable[[AppState], APIRouter]]:
    return [dialect.routers[port] for dialect in state.dialects if port in dialect.routers]


class _BoundedApp(FastAPI):
    """An app without routes yet, which limits requests and answers all failures in one JSON form."""

    has_pages = False

    def __init__(self, state: AppState, title: str, description: str) -> None:
        server = state.settings.server
        super().__init__(
            title=title,
            description=description,
            version=__version__,
            openapi_url="/openapi.json" if server.docs else None,
            docs_url=None,  # FastAPI's page loads scripts from another server; `_reference` replaces it
            redoc_url=None,
            root_path=server.root_path,
            # A path with a surplus slash is an error: a redirect would make the client send its body twice.
            redirect_slashes=False,
        )
        self.state.vivavoce = state
        errors.install(self)
        self.router.default = _not_routed
        if server.docs:
            self.add_api_route("/docs", self._reference, include_in_schema=False)
        if server.cors_origins:
            self.add_middleware(
                CORSMiddleware,
                allow_origins=list(server.cors_origins),
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],  # OpenAI's package for browsers sends a dozen headers of its own
                expose_headers=[*SPEECH_HEADERS, "retry-after"],
            )
        self.add_middleware(RequestMiddleware, state=state)  # the middleware added last is the outermost

    async def _reference(self, request: Request) -> Response:
        page = reference_page(self.openapi(), str(request.base_url).rstrip("/"), has_pages=self.has_pages)
        return HTMLResponse(page, headers=pages.PAGE_HEADERS)

    def openapi(self) -> dict[str, Any]:
        state: AppState = self.state.vivavoce
        description = super().openapi()
        if state.keys.required:
            description["components"]["securitySchemes"] = _SCHEMES
            description["security"] = [{name: []} for name in _SCHEMES]
            for path, operations in description["paths"].items():
                for operation in operations.values():
                    is_open = path != "/metrics" or not state.settings.server.metrics_key_required
                    if is_open and "operation" in operation.get("tags", ()):
                        operation["security"] = []
        for operations in description["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            description.get("components", {}).get("schemas", {}).pop(name, None)
        return description


async def _not_routed(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 404 also to unknown WebSockets, which Starlette refuses with 403."""
    if scope["type"] != "websocket":
        raise HTTPException(404)
    message = f"path: there is no WebSocket at {scope['path'][:100]!r}; send text to /v1/audio/stream"
    await WebSocket(scope, receive, send).send_denial_response(errors.error_response(404, message, "not_found"))
