"""`python -m benchmarks.http_overhead.traced serve …`: `vivavoce serve` that records when requests pass each place.

Its figures tell only where time goes. The server that is compared with the engine records nothing.
"""

from __future__ import annotations

import sys
import time
from contextvars import ContextVar
from typing import Any
from unittest.mock import patch

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from benchmarks.http_overhead.trace import TraceLog
from vivavoce.cli import server
from vivavoce.cli.main import main
from vivavoce.engine.request import AudioChunk
from vivavoce.engine_process.client import EngineClient
from vivavoce.engine_process.messages import EngineProcessSettings, Event, FromProcess, Speak
from vivavoce.server.http.app import build_app
from vivavoce.server.http.app_state import AppState
from vivavoce_fleet import engine_fleet

LOG = TraceLog("server")
_visitor: ContextVar[dict[str, Any] | None] = ContextVar("visitor", default=None)
"""The current HTTP request: its id, the time at which it came, and its number once it has one."""


class TracedHost(EngineClient):
    """An `EngineClient` that records when its messages are sent and received."""

    def __init__(self, settings: EngineProcessSettings, **place: Any) -> None:
        super().__init__(settings, (sys.executable, "-m", "benchmarks.http_overhead.traced_worker"), **place)

    def _send(self, message: Any) -> None:
        visitor = _visitor.get()
        if isinstance(message, Speak) and visitor is not None:
            visitor["number"] = message.number
            LOG.begin(message.number, id=visitor["id"], accepted=visitor["accepted"])
            LOG.mark(message.number, "sent")
        super()._send(message)

    def _take(self, message: FromProcess) -> None:
        if isinstance(message, Event) and isinstance(message.event, AudioChunk):
            LOG.mark(message.number, "came")
        super()._take(message)


def watched(app: ASGIApp) -> ASGIApp:
    """Wrap an app to record when a request comes, and when its first audio is written."""

    async def watching(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        visitor: dict[str, Any] = {"id": Headers(scope=scope).get("x-request-id", ""), "accepted": time.monotonic()}
        _visitor.set(visitor)

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.body" and message.get("body") and "number" in visitor:
                LOG.end(visitor["number"], "written")
            await send(message)

        await app(scope, receive, sending)

    return watching


def _build(state: AppState) -> ASGIApp:
    return watched(build_app(state))


if __name__ == "__main__":
    with patch.dict(server._APPS, port=_build), patch.object(engine_fleet, "EngineClient", TracedHost):
        sys.exit(main())
