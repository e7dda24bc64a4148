"""A line for each HTTP request and WebSocket, at its end."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from tests.server.http.serving import make_state, serving
from vivavoce.logs import JsonFormatter, current_scope
from vivavoce.server.http.app import build_app
from vivavoce.server.http.listener import current_connection
from vivavoce.server.http.middleware import RequestMiddleware
from vivavoce.server.settings import ServerSettings

TRACE = "0af7651916cd43dd8448eb211c80319c"
HTTP: dict[str, Any] = {
    "type": "http",
    "method": "GET",
    "path": "/v1/models",
    "query_string": b"key=hidden",
    "headers": [(b"traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode()), (b"x-request-id", b"req_7")],
    "client": ("1.2.3.4", 5),
}

WHOLE: list[Message] = [
    {"type": "http.response.start", "status": 200, "headers": []},
    {"type": "http.response.body", "body": b"abc", "more_body": True},
    {"type": "http.response.body", "body": b"de"},
]
SOCKET: list[Message] = [
    {"type": "websocket.accept", "headers": []},
    {"type": "websocket.send", "bytes": b"abc"},
    {"type": "websocket.send", "text": "de"},
    {"type": "websocket.close", "code": 1011},
]


def logged(
    caplog: pytest.LogCaptureFixture,
    messages: Sequence[Message] = WHOLE,
    error: BaseException | None = None,
    **scope: Any,
) -> tuple[logging.LogRecord, dict[str, Any]]:
    """The line, and its fields, of an app that sends these messages and then fails if it shall."""
    moments = iter((10.0, 12.5))

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        scope_inside = current_scope()
        assert scope_inside is not None
        assert (scope_inside.request_id, scope_inside.trace_id) == ("req_7", TRACE)
        for message in messages:
            await send(message)
        if error is not None:
            raise error

    async def ignored(*_: Message) -> Any:
        return None

    async def work() -> None:
        current_connection.set(Mock(is_crowded=False))
        middleware = RequestMiddleware(app, state=make_state(), clock=lambda: next(moments))
        with suppress(ValueError, asyncio.CancelledError):
            await middleware({**HTTP, **scope}, ignored, ignored)
        assert current_scope() is None

    caplog.set_level(logging.DEBUG, "vivavoce")
    asyncio.run(work())
    (record,) = [record for record in caplog.records if record.name == "vivavoce.access"]
    return record, vars(record)["vivavoce_fields"]


def test_a_whole_answer(caplog: pytest.LogCaptureFixture) -> None:
    record, fields = logged(caplog)
    assert (record.getMessage(), record.levelname) == ("http", "INFO")
    told = {"method": "GET", "path": "/v1/models", "status": 200, "sent": 5, "whole": True}
    assert fields == {**told, "seconds": 2.5, "client": "1.2.3.4"}


@pytest.mark.parametrize(
    ("messages", "error", "kind", "told"),
    [
        pytest.param(WHOLE[:2], None, "http", (200, 3, False), id="cut"),
        pytest.param([], ValueError("broken"), "http", (500, 0, True), id="defect"),
        pytest.param(WHOLE[:2], ValueError("broken"), "http", (200, 3, False), id="defect after the first bytes"),
        pytest.param([], asyncio.CancelledError(), "http", (None, 0, False), id="given up"),
        pytest.param(SOCKET, None, "websocket", (1011, 5, True), id="websocket"),
    ],
)
def test_how_an_answer_ended(
    caplog: pytest.LogCaptureFixture,
    messages: list[Message],
    error: BaseException | None,
    kind: str,
    told: tuple[int | None, int, bool],
) -> None:
    _, fields = logged(caplog, messages, error, type=kind)
    assert (fields.get("status"), fields["sent"], fields["whole"]) == told


@pytest.mark.parametrize("path", ["/health/ready", "/metrics", "/web/app.js"])
def test_machines_frequent_requests_are_for_debugging(caplog: pytest.LogCaptureFixture, path: str) -> None:
    assert logged(caplog, path=path)[0].levelname == "DEBUG"


def test_a_long_path_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    assert len(logged(caplog, path="/" + "x" * 10_000)[1]["path"]) < 250


def test_a_requests_lines_share_its_id_and_its_trace_and_tell_no_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "vivavoce")
    caplog.handler.setFormatter(JsonFormatter())
    settings = ServerSettings.model_validate({"requests": {"unknown_fields": "ignore"}})
    with serving(build_app, lambda: make_state(settings=settings)) as served:
        answer = httpx.post(
            f"{served.url}/v1/audio/speech?key=hidden",
            json={"model": "fake", "input": "My secret.", "voice": "anna", "response_format": "pcm"},
            headers={"traceparent": f"00-{TRACE}-b7ad6b7169203331-01"},
        )
    assert answer.status_code == 200
    speech, access = (json.loads(line) for line in caplog.text.splitlines() if '"vivavoce' in line)
    assert (speech["event"], access["event"], access["sent"]) == ("speech ended", "http", len(answer.content))
    assert {speech["request_id"], access["request_id"]} == {answer.headers["x-request-id"]}
    assert {speech["trace_id"], access["trace_id"]} == {TRACE}
    assert "secret" not in caplog.text
    assert "hidden" not in caplog.text
