"""GET /metrics: Prometheus' page about a server and its engine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence

from fastapi import APIRouter
from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from vivavoce.doors.http.access import caller_of
from vivavoce.doors.http.desk import Desk
from vivavoce.doors.http.metric_families import Figures, families
from vivavoce.doors.http.openai import failures
from vivavoce.errors import EngineStopped
from vivavoce.service.host.figures import SpeakerStatistics
from vivavoce.service.host.speaker import Speaker

log = logging.getLogger(__name__)

_TYPES = ("text/plain", "application/openmetrics-text")
PATIENCE_S = 2.0
"""How long an engine may take to tell its figures; Prometheus itself waits for 10 s by default."""


def router(desk: Desk, patience_s: float = PATIENCE_S) -> APIRouter:
    """The route; it names no voice, caller or text, and wants a key only if the operator says so."""
    routes = APIRouter(tags=["operation"])
    process = ProcessCollector(registry=None)

    @routes.get(
        "/metrics",
        summary="Figures for Prometheus",
        response_class=Response,
        responses={200: {"content": {kind: {} for kind in _TYPES}}, **failures(401)},
    )
    async def metrics(request: Request) -> Response:
        if desk.settings.server.metrics_key_required:
            caller_of(desk, request.headers)
        figures = await _figures(desk, patience_s)
        encode, content_type = _encoder(request.headers.get("accept", ""))
        # A thousand lines take tens of milliseconds, for which no stream should wait.
        page = await asyncio.to_thread(lambda: encode(_Page([*families(figures), *process.collect()])))
        return Response(page, headers={"content-type": content_type, "cache-control": "no-store"})

    return routes


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """What writes the page, and the page's type; for a header that cannot be read, as for none."""
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):  # of a version that is no number
        return choose_encoder("")


class _Page(Collector):
    """The families of one scrape; nothing is registered, since nothing outlives it."""

    def __init__(self, found: Sequence[Metric]) -> None:
        self._found = found

    def collect(self) -> Iterator[Metric]:
        return iter(self._found)


async def _figures(desk: Desk, patience_s: float) -> Figures:
    reception = desk.reception
    told, statistics = await _ask(reception.speaker, patience_s)
    return Figures(
        model=_model(reception.speaker),
        up=reception.speaker.ready and told,
        draining=reception.draining,
        meters=reception.meters.snapshot(),
        speaker=statistics,
    )


async def _ask(speaker: Speaker, patience_s: float) -> tuple[bool, SpeakerStatistics | None]:
    """Whether the speaker answered, and what it told. Monitoring outlives what it watches, however that fails."""
    try:
        return True, await asyncio.wait_for(speaker.statistics(), patience_s)
    except (TimeoutError, asyncio.TimeoutError):
        log.warning("metrics: the engine did not tell its figures within %g s", patience_s)
    except EngineStopped:
        pass  # it is being started or stopped: vivavoce_engine_up says so
    except Exception as error:
        log.warning("metrics: the engine could not tell its figures", exc_info=error)
    return False, None


def _model(speaker: Speaker) -> str:
    try:
        return speaker.about.name
    except EngineStopped:
        return ""
