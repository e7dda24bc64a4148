"""GET /metrics: metrics of a server and its engine, for Prometheus."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress

from fastapi import APIRouter, Depends
from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from vivavoce.errors import EngineStopped
from vivavoce.frontend.speech_backend import SpeechBackend, engines_of
from vivavoce.server.http.app_state import AppState, current_principal
from vivavoce.server.http.errors import failures
from vivavoce.server.metrics import backend_families, labelled, server_families

log = logging.getLogger(__name__)

_TYPES = ("text/plain", "application/openmetrics-text")
PATIENCE_S = 2.0
"""Longest wait in seconds for an engine's metrics; Prometheus itself waits for 10 s by default."""


def router(state: AppState, patience_s: float = PATIENCE_S) -> APIRouter:
    """The route of metrics. Metrics by caller are only on a separate port for health and metrics."""
    callers = state.settings.server.health_port is not None
    wanted = [Depends(current_principal)] if state.settings.server.metrics_key_required else []
    routes = APIRouter(tags=["operation"], dependencies=wanted)
    dispatcher, process = state.dispatcher, ProcessCollector(registry=None)

    @routes.get(
        "/metrics",
        summary="Figures for Prometheus",
        response_class=Response,
        responses={200: {"content": {kind: {} for kind in _TYPES}}, **failures(401)},
    )
    async def metrics(request: Request) -> Response:
        backend = dispatcher.backend
        engines = engines_of(backend)
        figures = await asyncio.gather(*(_families(one, patience_s) for one in (engines or {"": backend}).values()))
        try:
            encode, content_type = choose_encoder(request.headers.get("accept", ""))
        except (TypeError, ValueError):  # a malformed version
            encode, content_type = choose_encoder("")
        model, by_model = "", False
        with suppress(EngineStopped):  # the model is not loaded yet
            model, by_model = backend.about.name, bool(backend.about.others)

        def page() -> bytes:
            server = server_families(model=model, draining=dispatcher.draining)
            listeners = dispatcher.metrics.families(callers)
            of_engines = labelled(dict(zip(engines, figures, strict=True)), by_model) if engines else figures[0]
            return encode(_Page([*server, *listeners, *of_engines, *process.collect()]))

        # Writing a thousand lines takes tens of milliseconds; streams must not wait for that.
        body = await asyncio.to_thread(page)
        return Response(body, headers={"content-type": content_type, "cache-control": "no-store"})

    return routes


class _Page(Collector):
    def __init__(self, found: Sequence[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        return iter(self._found)


async def _families(backend: SpeechBackend, patience_s: float) -> list[Metric]:
    try:
        statistics = await asyncio.wait_for(backend.statistics(), patience_s)
        return list(backend_families(statistics, backend.ready))
    except (TimeoutError, asyncio.TimeoutError):
        log.warning("metrics: the engine did not send its figures within %(seconds)g s", {"seconds": patience_s})
    except EngineStopped:
        pass  # the engine is starting or stopping, as vivavoce_engine_up shows
    except Exception as error:
        log.warning("metrics: the engine could not send its figures", exc_info=error)
    return list(backend_families(None, False))
