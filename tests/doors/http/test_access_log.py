"""A line for each HTTP request and WebSocket, at its end."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Sequence
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from tests.doors.fake_speaker import FakeSpeaker
from tests.doors.http.serving import serving
from vivavoce.doors.http.access_log import AccessLog
from vivavoce.doors.http.app import build_app
from vivavoce.doors.http.desk import Desk
from vivavoce.service.operations.allowances import Allowances
from vivavoce.service.operations.keys import KeyRing
from vivavoce.service.operations.ledger import Ledger
from vivavoce.service.operations.logs import JsonLines, watch_requests
from vivavoce.service.operations.meters import Meters
from vivavoce.service.operations.reception import Reception
from vivavoce.service.operations.scope import current_scope
from vivavoce.service.operations.settings import ServerSettings

HTTP: dict[str, Any] = {
    "type": "http",
    "method": "GET",
    "path": "/v1/models",
    "query_string": b"key=hidden",
    "headers": [(b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")],
    "client": ("1.2.3.4", 5),
    "state": {"request_id": "req_7"},
}
WEBSOCKET: dict[str, Any] = {**HTTP, "type": "websocket", "path": "/v1/audio/stream"}
del WEBSOCKET["method"]


class Answering:
    """Sends these messages, then fails if it shall."""

    def __init__(self, messages: Sequence[Message], error: BaseException | None = None) -> None:
        self.messages, self.error = messages, error
        self.scope_seen: object = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope_seen = current_scope()
        for message in self.messages:
            await send(message)
        if self.error is not None:
            raise self.error


def answered(
    caplog: pytest.LogCaptureFixture, app: Answering, scope: dict[str, Any] = HTTP, fails: bool = False
) -> logging.LogRecord:
    moments = iter((10.0, 12.5))

    async def nothing() -> Message:
        raise AssertionError("nobody listens here")

    async def ignored(_: Message) -> None:
        return None

    async def work() -> None:
        await AccessLog(app, clock=lambda: next(moments))(dict(scope), nothing, ignored)

    caplog.set_level(logging.DEBUG, "vivavoce")
    if fails:
        with pytest.raises(type(app.error) if app.error else Exception):
            asyncio.run(work())
    else:
        asyncio.run(work())
    (record,) = [record for record in caplog.records if record.name == "vivavoce.access"]
    return record


def facts(record: logging.LogRecord) -> dict[str, Any]:
    return vars(record)["vivavoce_facts"]  # type: ignore[no-any-return]


def start(status: int) -> Message:
    return {"type": "http.response.start", "status": status, "headers": []}


def body(content: bytes, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}


def test_a_whole_answer(caplog: pytest.LogCaptureFixture) -> None:
    record = answered(caplog, Answering([start(200), body(b"abc", more=True), body(b"de")]))
    assert (record.getMessage(), record.levelname) == ("http", "INFO")
    assert facts(record) == {
        "method": "GET",
        "path": "/v1/models",
        "status": 200,
        "sent": 5,
        "whole": True,
        "seconds": 2.5,
        "client": "1.2.3.4",
    }


def test_a_cut_answer_is_told_as_such(caplog: pytest.LogCaptureFixture) -> None:
    told = facts(answered(caplog, Answering([start(200), body(b"abc", more=True)])))
    assert (told["status"], told["sent"], told["whole"]) == (200, 3, False)


def test_a_defect_is_a_500(caplog: pytest.LogCaptureFixture) -> None:
    told = facts(answered(caplog, Answering([], ValueError("broken")), fails=True))
    assert told["status"] == 500


def test_a_defect_after_the_first_bytes_is_a_cut(caplog: pytest.LogCaptureFixture) -> None:
    app = Answering([start(200), body(b"abc", more=True)], ValueError("broken"))
    told = facts(answered(caplog, app, fails=True))
    assert (told["status"], told["whole"]) == (200, False)


def test_a_request_that_is_given_up_is_told(caplog: pytest.LogCaptureFixture) -> None:
    told = facts(answered(caplog, Answering([], asyncio.CancelledError()), fails=True))
    assert "status" not in told
    assert told["whole"] is False


def test_a_websocket_tells_how_it_was_closed(caplog: pytest.LogCaptureFixture) -> None:
    messages: list[Message] = [
        {"type": "websocket.accept"},
        {"type": "websocket.send", "bytes": b"abc"},
        {"type": "websocket.send", "text": "de"},
        {"type": "websocket.close", "code": 1011},
    ]
    record = answered(caplog, Answering(messages), WEBSOCKET)
    assert record.getMessage() == "websocket"
    assert (facts(record)["status"], facts(record)["sent"], "method" in facts(record)) == (1011, 5, False)


@pytest.mark.parametrize("path", ["/health/ready", "/metrics", "/web/app.js"])
def test_what_machines_ask_all_the_time_is_for_debugging(caplog: pytest.LogCaptureFixture, path: str) -> None:
    assert answered(caplog, Answering([start(200), body(b"")]), {**HTTP, "path": path}).levelname == "DEBUG"


def test_a_long_path_is_cut_and_no_query_is_told(caplog: pytest.LogCaptureFixture) -> None:
    told = facts(answered(caplog, Answering([start(404), body(b"")]), {**HTTP, "path": "/" + "x" * 10_000}))
    assert len(told["path"]) < 250
    assert "hidden" not in str(told)


def test_what_happens_inside_belongs_to_the_request(caplog: pytest.LogCaptureFixture) -> None:
    app = Answering([start(200), body(b"")])
    answered(caplog, app)
    scope = app.scope_seen
    assert scope is not None
    assert (vars(scope)["request_id"], vars(scope)["traceparent"][:6]) == ("req_7", "00-0af")
    assert current_scope() is None


def test_a_requests_lines_share_its_id_its_caller_and_its_trace() -> None:
    lines = io.StringIO()

    def make() -> Desk:
        reception = Reception(
            FakeSpeaker(), ledger=Ledger(watchers=[watch_requests]), meters=Meters(), allowances=Allowances()
        )
        return Desk(reception, KeyRing.none(), ServerSettings())

    handler = logging.StreamHandler(lines)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("vivavoce")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with serving(build_app, make) as served:
            answer = httpx.post(
                f"{served.url}/v1/audio/speech?key=hidden",
                json={"model": "fake", "input": "My secret.", "voice": "anna", "response_format": "pcm"},
                headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
            )
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
    assert answer.status_code == 200
    speech, access = (json.loads(line) for line in lines.getvalue().splitlines())
    assert (speech["event"], access["event"], access["sent"]) == ("speech ended", "http", len(answer.content))
    assert {speech["request_id"], access["request_id"]} == {answer.headers["x-request-id"]}
    assert {speech["trace_id"], access["trace_id"]} == {"0af7651916cd43dd8448eb211c80319c"}
    assert "secret" not in lines.getvalue()
    assert "hidden" not in lines.getvalue()


def test_other_scopes_pass_through() -> None:
    app = Answering([])
    asyncio.run(AccessLog(app)({"type": "lifespan"}, None, None))  # type: ignore[arg-type]
    assert app.scope_seen is None
