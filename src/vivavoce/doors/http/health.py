"""GET /health/live and /health/ready: for whoever restarts a server, and whoever sends it requests."""

from __future__ import annotations

from enum import Enum

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from vivavoce.doors.http.desk import Desk
from vivavoce.errors import EngineStopped
from vivavoce.service.operations.reception import Reception

RETRY_AFTER_S = 5
"""What a client is told to wait while a server is not ready: an engine starts in some multiple of it."""
_UNCACHED = {"cache-control": "no-store"}


class Hindrance(str, Enum):
    """Why no requests are taken."""

    DRAINING = "draining"
    """The server shuts down."""
    ENGINE_STARTING = "engine_starting"
    """The model was never ready."""
    ENGINE_STOPPED = "engine_stopped"
    """Its process has ended, and is started again."""


def router(desk: Desk) -> APIRouter:
    """Both routes; they want no key."""
    routes = APIRouter(tags=["operation"])

    @routes.get("/health/live", summary="Whether the server's process works; if not, restart it")
    @routes.head("/health/live", include_in_schema=False)
    async def live() -> Response:
        return JSONResponse({"status": "live"}, headers=_UNCACHED)

    @routes.get(
        "/health/ready",
        summary="Whether it takes requests now; if not, ask another server",
        responses={503: {"description": "It takes none now.", "content": {"application/json": {}}}},
    )
    @routes.head("/health/ready", include_in_schema=False)
    async def ready() -> Response:
        reason = _hindrance(desk.reception)
        if reason is None:
            return JSONResponse({"status": "ready"}, headers=_UNCACHED)
        return JSONResponse(
            {"status": "unavailable", "reason": reason.value},
            status_code=503,
            headers={**_UNCACHED, "retry-after": str(RETRY_AFTER_S)},
        )

    return routes


def _hindrance(reception: Reception) -> Hindrance | None:
    """None: requests are taken."""
    if reception.draining:
        return Hindrance.DRAINING
    if reception.speaker.ready:
        return None
    try:
        _ = reception.speaker.about
    except EngineStopped:
        return Hindrance.ENGINE_STARTING
    return Hindrance.ENGINE_STOPPED
