"""A deployment of Ray Serve that answers the HTTP and WebSocket routes of `vivavoce serve`, behind Ray's proxies."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace
from typing import Any, cast

from starlette.types import ASGIApp, Receive, Scope, Send

from vivavoce.logs import configure
from vivavoce.server.dispatcher import RequestDispatcher
from vivavoce.server.http.app import build_app
from vivavoce.server.http.app_state import AppState
from vivavoce.server.http.listener import BoundedConnection, current_connection
from vivavoce.server.key_limits import open_limits
from vivavoce.server.keys import KeyRing
from vivavoce.server.request_log import RequestLog
from vivavoce.server.settings import ServerSettings
from vivavoce.server.telemetry import Tracing
from vivavoce_dialects.table import DIALECTS
from vivavoce_ray.backend import RayBackend

_CONNECTION_METHODS = ("begin_request", "end_request", "accept_websocket", "message_taken", "abort")
"""Methods that the app calls on a connection. They do nothing here, because Ray's proxy manages the connections."""


class Ingress:
    def __init__(self, settings: ServerSettings, *pools: Any) -> None:
        """pools: handles to deployments of `EngineReplica`; a request goes to the first deployment with room."""
        configure(settings.logging.format, settings.logging.level, log_text=settings.logging.log_text)
        logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))
        request_log, endpoint = RequestLog(), settings.telemetry.otlp_endpoint
        if endpoint is not None:
            request_log.observers.append(Tracing.exporting(endpoint, settings.telemetry.service_name).write)
        dispatcher = RequestDispatcher(
            RayBackend(pools),
            request_log=request_log,
            rules=settings.requests,
            provenance=settings.provenance,
            limits=open_limits(settings.auth, settings.voices),
            flow_steps=settings.model.flow_steps,
        )
        self._state = AppState(dispatcher, KeyRing(settings.auth.keys_file), settings, dialects=DIALECTS)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        app = build_app(self._state)

        async def proxied(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                await app.router.lifespan(scope, receive, send)  # the middleware handles requests only
                return
            no_ops = dict.fromkeys(_CONNECTION_METHODS, lambda **_: None)
            connection = SimpleNamespace(is_crowded=False, waits_since=math.inf, **no_ops)
            current_connection.set(cast(BoundedConnection, connection))
            await app(scope, receive, send)

        return proxied
