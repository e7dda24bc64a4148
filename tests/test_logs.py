"""Lines of the log: their form, what belongs to a request, and that clients cannot forge them."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from vivavoce.frontend.speech import FinishReason, Verdict
from vivavoce.logs import configure, log_event, log_text, note_principal, printable, request_scope
from vivavoce.server.request_log import RequestLog

log = logging.getLogger("vivavoce.somewhere")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def failed(error: str, code: str) -> Verdict:
    return Verdict(FinishReason.ERROR, 1.5, 1, 3, error, code)


QUOTED = failed("text: 'my secret' cannot be spoken", "invalid_text")

MANUAL = (Path(__file__).parents[1] / "docs" / "operating.md").read_text(encoding="utf-8")

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """Where logs go; how they were set up is restored."""
    root, names = logging.getLogger(), ("uvicorn", "uvicorn.error", "uvicorn.access", "httpx", "vivavoce.text")
    before = root.handlers[:], root.level
    theirs = {name: (logging.getLogger(name).disabled, logging.getLogger(name).level) for name in names}
    yield io.StringIO()
    root.handlers[:], root.level = before
    for name, (disabled, level) in theirs.items():
        logging.getLogger(name).disabled = disabled
        logging.getLogger(name).setLevel(level)
    logging.captureWarnings(False)


@pytest.fixture
def lines(stream: io.StringIO) -> Lines:
    configure("json", stream=stream)
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def asked(verdict: Verdict, *, taken: bool = True, name: str = "anna") -> None:
    log = RequestLog()
    record = log.begin("req_1", name, "websocket", 0.0)
    if taken:
        record.admission_s, record.first_audio_s = 0.01, 0.25
    log.end(record, verdict, 2.0)


def test_an_event_is_one_json_object_with_its_fields(lines: Lines) -> None:
    log_event(log, logging.WARNING, "added", voices=3, seconds=0.123456789, public=True, quota=None, ratio=float("nan"))
    (line,) = lines()
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "vivavoce.somewhere",
        "event": "added",
        "voices": 3,
        "seconds": 0.1235,
        "public": True,
        "ratio": "nan",
    }


def test_ordinary_messages_and_warnings_have_the_same_form(stream: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure("json", stream=stream)
        logging.getLogger("uvicorn.error").info("Started server process [%d]", 7)
        warnings.warn("a library is old", UserWarning, stacklevel=1)
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["event"], first["logger"], first["level"]) == ("library", "uvicorn.error", "info")
    assert first["message"] == "Started server process [7]"
    assert "a library is old" in second["message"]


@pytest.mark.parametrize(
    ("record", "field", "value"),
    [
        ({"msg": "m", "created": 1_700_000_000.0625}, "time", "2023-11-14T22:13:20.062Z"),
        ({"msg": "%d requests", "args": ("many",)}, "message", "%d requests"),
        ({"msg": "x" * 1_000_000}, "message", "x" * 4000 + "…"),
    ],
)
def test_odd_records_are_written_too(lines: Lines, record: dict[str, Any], field: str, value: str) -> None:
    logging.getLogger().handlers[0].handle(logging.makeLogRecord({"name": "x", "levelname": "INFO", **record}))
    assert lines()[0][field] == value


def test_a_sentence_has_a_constant_name_and_its_values_as_fields(lines: Lines) -> None:
    log.error("engine ended: by %(ending)s at %(path)s", {"ending": "signal: SIGKILL", "path": Path("/a")})
    (line,) = lines()
    told = {name: line[name] for name in ("event", "message", "ending", "path")}
    assert told == {
        "event": "engine ended",
        "message": "by signal: SIGKILL at /a",
        "ending": "signal: SIGKILL",
        "path": "/a",
    }


def test_every_event_of_the_program_is_a_constant() -> None:
    """Alerts on logs look for names: none has a value in it, and none is a whole sentence."""
    names = []
    for file in (Path(__file__).parents[1] / "src" / "vivavoce").rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            told = ast.unparse(call.func)
            if re.fullmatch(r"_?(log|untrained)\.(debug|info|warning|error|exception)", told):
                first, values = call.args[0], call.args[1:]
                where = f"{file.name}:{call.lineno}"
                assert isinstance(first, ast.Constant), where
                assert isinstance(first.value, str), where
                assert len(values) <= 1, f"{where}: values go by name, in one mapping"
                name = first.value.partition(":")[0]
                assert re.fullmatch("[a-z_ ]{4,32}", name), f"{where}: {name}"
                names.append(name)
    assert {"engine ended", "engine stuck", "voice store", "request failed"} <= set(names)
    assert {f"`{name}`" for name in names if name.startswith(("engine", "keys"))} <= set(re.findall("`[^`]*`", MANUAL))


def test_lines_of_a_request_name_it_its_principal_and_its_trace(lines: Lines) -> None:
    with request_scope("req_7", traceparent=TRACE):
        note_principal("anna")
        log.info("inside")
        log_event(log, logging.INFO, "spoken", request_id="utterance")
    note_principal("bert")
    log.info("outside")
    inside, own, outside = lines()
    assert (inside["request_id"], inside["caller"]) == ("req_7", "anna")
    assert inside["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    assert own["request_id"] == "utterance"
    assert not {"request_id", "caller", "trace_id"} & set(outside)


@pytest.mark.parametrize("sent", ["", "nonsense", TRACE.upper(), "00-" + "0" * 32 + "-b7ad6b7169203331-01", TRACE * 9])
def test_a_wrong_trace_context_is_no_trace(lines: Lines, sent: str) -> None:
    with request_scope("req_7", traceparent=sent):
        log.info("inside")
    assert "trace_id" not in lines()[0]


def test_a_request_ends_with_a_line(lines: Lines) -> None:
    with request_scope("req_1"):
        asked(Verdict(FinishReason.STOP, 2.5, 3, 3))
        log.info("after")
    line, after = lines()
    assert (line["event"], line["level"]) == ("speech ended", "info")
    assert (line["request_id"], line["door"], line["caller"], line["reason"]) == ("req_1", "websocket", "anna", "stop")
    assert (line["seconds"], line["admission_s"], line["first_audio_s"], line["audio_s"]) == (2.0, 0.01, 0.25, 2.5)
    assert (line["segments_spoken"], line["segments_given"]) == (3, 3)
    assert not {"error", "error_code"} & set(line)
    assert after["caller"] == "anna"


@pytest.mark.parametrize(
    ("verdict", "taken", "event", "level", "has_message"),
    [
        (failed("it broke", "engine_stopped"), True, "speech ended", "warning", True),
        (failed("slots: taken", "overloaded"), False, "speech refused", "info", True),
        (QUOTED, True, "speech ended", "info", False),
        (failed("'my secret'", "server_refused"), True, "speech ended", "warning", False),
    ],
)
def test_failures_refusals_and_quotes(
    lines: Lines, verdict: Verdict, taken: bool, event: str, level: str, has_message: bool
) -> None:
    asked(verdict, taken=taken, name="")
    log_text("req_1", "my secret")
    (line,) = lines()
    assert (line["event"], line["level"], line["error_code"]) == (event, level, verdict.error_code)
    assert line.get("error") == (verdict.error if has_message else None)
    assert "caller" not in line


def test_texts_are_logged_if_the_operator_wants_it(stream: io.StringIO) -> None:
    configure("json", log_text=True, stream=stream)
    asked(QUOTED)
    log_text("req_1", "my secret")
    ended, text = (json.loads(line) for line in stream.getvalue().splitlines())
    assert ended["error"] == "text: 'my secret' cannot be spoken"
    assert (text["event"], text["request_id"], text["text"]) == ("text", "req_1", "my secret")
    configure("json", stream=stream)
    log_text("req_1", "another secret")
    assert "another" not in stream.getvalue()


def test_uvicorns_own_handlers_and_access_log_are_gone_and_keys_in_addresses(stream: io.StringIO) -> None:
    uvicorn, own = logging.getLogger("uvicorn"), io.StringIO()
    uvicorn.addHandler(logging.StreamHandler(own))
    uvicorn.propagate = False
    configure("text", stream=stream)
    logging.getLogger("uvicorn.error").info('1.2.3.4 - "WebSocket %s" [accepted]', "/v1/stream?api_key=hidden&a=b")
    logging.getLogger("uvicorn.access").info("GET /v1/audio/voices?key=hidden")
    assert own.getvalue() == ""
    assert 'WebSocket /v1/stream?…" [accepted]' in stream.getvalue()
    assert "hidden" not in stream.getvalue()


def test_levels_are_kept_and_libraries_are_quiet(stream: io.StringIO) -> None:
    for level, shown in (("info", False), ("debug", True)):
        configure("text", level, stream=stream)
        log.debug("small")
        logging.getLogger("httpx").info("HTTP Request: GET http://elsewhere")
        assert ("small" in stream.getvalue()) is shown
    assert "elsewhere" not in stream.getvalue()


HOSTILE = 'a\nb\r\x1b[31mred\x00\x7f\x85\u2028\u202ert\ud800"quoted"\\'


@pytest.mark.parametrize("form", ["json", "text"])
def test_lines_and_colours_cannot_be_forged(stream: io.StringIO, form: str) -> None:
    configure(form, stream=stream)
    log.info("said %s", HOSTILE)
    log_event(log, logging.INFO, "path", path=HOSTILE)
    written = stream.getvalue()
    assert written.count("\n") == 2
    assert written.replace("\n", "") == printable(written.replace("\n", ""))
    written.encode()
    if form == "json":
        assert [json.loads(line) for line in written.split("\n")[:-1]][1]["path"] == HOSTILE


@pytest.mark.parametrize("form", ["json", "text"])
def test_tracebacks(stream: io.StringIO, form: str) -> None:
    configure(form, stream=stream)
    try:
        raise ValueError("first\nsecond\x1b[0m")
    except ValueError as error:
        log.error("failed", exc_info=error)
    written = stream.getvalue()
    assert "ValueError: first" in written
    assert "\x1b" not in written
    if form == "json":
        assert json.loads(written)["traceback"].endswith("second\x1b[0m")
    else:
        assert all(line.startswith("    ") for line in written.splitlines()[1:])


def test_text_lines_are_for_people(stream: io.StringIO) -> None:
    configure("text", stream=stream)
    log_event(log, logging.INFO, "voice added", seconds=0.5, note="two words", chinese="你好")
    moment, line = stream.getvalue().split(" ", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}", moment), "which day it was, and in which zone"
    assert line == 'info    voice added seconds=0.5 note="two words" chinese=你好\n'
