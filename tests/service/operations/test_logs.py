"""What is logged, what is not, and that nobody writes lines of their own."""

from __future__ import annotations

import io
import json
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from vivavoce.service.host.verdict import FinishReason, Verdict
from vivavoce.service.operations.ledger import Ledger
from vivavoce.service.operations.logs import LogFormat, configure, printable, tell, tell_text, watch_requests
from vivavoce.service.operations.scope import note_caller, request_scope

log = logging.getLogger("vivavoce.somewhere")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
FAILED = Verdict(FinishReason.ERROR, 1.5, 1, 3, "engine: it broke", "engine_stopped")
QUOTED = Verdict(FinishReason.ERROR, 0.0, 0, 0, "text: 'my secret' cannot be spoken", "invalid_text")

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
    configure(LogFormat.JSON, stream=stream)
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def asked(verdict: Verdict, *, taken: bool = True, name: str = "anna") -> None:
    ledger = Ledger(watchers=[watch_requests])
    ledger.begin("req_1", name, "websocket", 0.0)
    if taken:
        ledger.admitted("req_1", 0.01)
    ledger.end("req_1", verdict, first_audio_s=0.25, total_s=2.0)


def test_an_event_is_one_json_object_with_its_facts(lines: Lines) -> None:
    tell(log, logging.WARNING, "voice added", voices=3, seconds=0.123456789, public=True, quota=None)
    (line,) = lines()
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "logger": "vivavoce.somewhere",
        "event": "voice added",
        "voices": 3,
        "seconds": 0.1235,
        "public": True,
    }


def test_ordinary_messages_and_warnings_have_the_same_form(stream: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        configure(LogFormat.JSON, stream=stream)
        logging.getLogger("uvicorn.error").info("Started server process [%d]", 7)
        warnings.warn("a library is old", UserWarning, stacklevel=1)
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["event"], first["logger"], first["level"]) == ("Started server process [7]", "uvicorn.error", "info")
    assert "a library is old" in second["event"]


def test_a_time_is_utc_with_milliseconds(lines: Lines) -> None:
    record = logging.makeLogRecord({"name": "x", "levelname": "INFO", "msg": "m", "created": 1_700_000_000.0625})
    logging.getLogger().handlers[0].handle(record)
    assert lines()[0]["time"] == "2023-11-14T22:13:20.062Z"


def test_lines_of_a_request_name_it_its_caller_and_its_trace(lines: Lines) -> None:
    with request_scope("req_7", traceparent=TRACE):
        note_caller("anna")
        log.info("inside")
    note_caller("bert")
    log.info("outside")
    inside, outside = lines()
    assert (inside["request_id"], inside["caller"]) == ("req_7", "anna")
    assert inside["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    assert not {"request_id", "caller", "trace_id"} & set(outside)


@pytest.mark.parametrize("sent", ["", "nonsense", TRACE.upper(), "00-" + "0" * 32 + "-b7ad6b7169203331-01", TRACE * 9])
def test_a_wrong_trace_context_is_no_trace(lines: Lines, sent: str) -> None:
    with request_scope("req_7", traceparent=sent):
        log.info("inside")
    assert "trace_id" not in lines()[0]


def test_a_facts_own_request_comes_before_the_scopes(lines: Lines) -> None:
    with request_scope("connection"):
        tell(log, logging.INFO, "spoken", request_id="utterance")
    assert lines()[0]["request_id"] == "utterance"


def test_a_request_tells_its_verdict_at_its_end(lines: Lines) -> None:
    asked(Verdict(FinishReason.STOP, 2.5, 3, 3))
    (line,) = lines()
    assert (line["event"], line["level"]) == ("speech ended", "info")
    assert (line["request_id"], line["door"], line["caller"], line["reason"]) == ("req_1", "websocket", "anna", "stop")
    assert (line["seconds"], line["admission_s"], line["first_audio_s"], line["audio_s"]) == (2.0, 0.01, 0.25, 2.5)
    assert (line["segments_spoken"], line["segments_given"]) == (3, 3)
    assert not {"error", "error_code"} & set(line)


def test_what_else_is_written_of_a_request_names_its_caller(lines: Lines) -> None:
    with request_scope("req_1"):
        asked(FAILED)
        log.info("after")
    assert lines()[-1]["caller"] == "anna"


def test_a_failure_is_a_warning_with_its_error(lines: Lines) -> None:
    asked(FAILED, name="")
    (line,) = lines()
    assert (line["level"], line["error"], line["error_code"]) == ("warning", "engine: it broke", "engine_stopped")
    assert "caller" not in line


def test_a_refusal_is_told_as_such_and_is_no_warning(lines: Lines) -> None:
    asked(Verdict(FinishReason.ERROR, 0.0, 0, 0, "slots: all 2 are taken", "overloaded"), taken=False)
    (line,) = lines()
    assert (line["event"], line["level"], line["error_code"]) == ("speech refused", "info", "overloaded")


def test_what_clients_sent_is_not_logged(stream: io.StringIO, lines: Lines) -> None:
    asked(QUOTED)
    tell_text("req_1", "my secret")
    (line,) = lines()
    assert (line["error_code"], line["level"]) == ("invalid_text", "info")
    assert "secret" not in stream.getvalue()


def test_what_an_upstream_server_says_is_not_logged_and_its_failure_is_a_warning(lines: Lines) -> None:
    asked(Verdict(FinishReason.ERROR, 1.5, 1, 3, "server: cannot say 'my secret'", "server_refused"))
    (line,) = lines()
    assert (line["level"], line["error_code"], "error" in line) == ("warning", "server_refused", False)


def test_what_clients_sent_is_logged_if_the_operator_wants_it(stream: io.StringIO) -> None:
    configure(LogFormat.JSON, log_text=True, stream=stream)
    asked(QUOTED)
    tell_text("req_1", "my secret")
    ended, text = (json.loads(line) for line in stream.getvalue().splitlines())
    assert ended["error"] == "text: 'my secret' cannot be spoken"
    assert (text["event"], text["request_id"], text["text"]) == ("text", "req_1", "my secret")
    configure(LogFormat.JSON, stream=stream)
    tell_text("req_1", "another secret")
    assert "another" not in stream.getvalue()


def test_a_websockets_key_is_not_logged(stream: io.StringIO, lines: Lines) -> None:
    logging.getLogger("uvicorn.error").info(
        '%s - "WebSocket %s" [accepted]', "1.2.3.4", "/v1/stream?api_key=hidden&a=b"
    )
    (line,) = lines()
    assert line["event"] == '1.2.3.4 - "WebSocket /v1/stream?…" [accepted]'


def test_uvicorns_own_handlers_and_access_log_are_gone(stream: io.StringIO) -> None:
    uvicorn, own = logging.getLogger("uvicorn"), io.StringIO()
    uvicorn.addHandler(logging.StreamHandler(own))
    uvicorn.propagate = False
    configure(LogFormat.TEXT, stream=stream)
    uvicorn.info("Finished server process")
    logging.getLogger("uvicorn.access").info("GET /v1/audio/voices?key=hidden")
    assert own.getvalue() == ""
    assert "Finished" in stream.getvalue()
    assert "hidden" not in stream.getvalue()


def test_levels_are_kept_and_libraries_are_quiet(stream: io.StringIO) -> None:
    configure(LogFormat.TEXT, "info", stream=stream)
    log.debug("too small")
    logging.getLogger("httpx").info("HTTP Request: GET http://elsewhere")
    assert stream.getvalue() == ""
    configure(LogFormat.TEXT, "debug", stream=stream)
    log.debug("small")
    assert "small" in stream.getvalue()


HOSTILE = 'a\nb\r\x1b[31mred\x00\x7f\x85\u2028\u202ert\ud800"quoted"\\'


@pytest.mark.parametrize("form", list(LogFormat))
def test_nobody_writes_lines_or_colours_of_their_own(stream: io.StringIO, form: LogFormat) -> None:
    configure(form, stream=stream)
    log.info("said %s", HOSTILE)
    tell(log, logging.INFO, "path", path=HOSTILE)
    written = stream.getvalue()
    assert written.count("\n") == 2
    assert written.replace("\n", "") == printable(written.replace("\n", ""))
    written.encode()
    if form is LogFormat.JSON:
        assert [json.loads(line) for line in written.split("\n")[:-1]][1]["path"] == HOSTILE


@pytest.mark.parametrize("form", list(LogFormat))
def test_a_traceback_is_told(stream: io.StringIO, form: LogFormat) -> None:
    configure(form, stream=stream)
    try:
        raise ValueError("first\nsecond\x1b[0m")
    except ValueError as error:
        log.error("failed", exc_info=error)
    written = stream.getvalue()
    assert "ValueError: first" in written
    assert "\x1b" not in written
    if form is LogFormat.JSON:
        assert json.loads(written)["traceback"].endswith("second\x1b[0m")
    else:
        assert all(line.startswith("    ") for line in written.splitlines()[1:])


def test_text_lines_are_for_people(stream: io.StringIO) -> None:
    configure(LogFormat.TEXT, stream=stream)
    tell(log, logging.INFO, "voice added", seconds=0.5, note="two words", chinese="你好")
    assert stream.getvalue().split(" ", 1)[1] == 'info    voice added seconds=0.5 note="two words" chinese=你好\n'


def test_numbers_that_json_lacks_are_words(lines: Lines) -> None:
    tell(log, logging.INFO, "odd", ratio=float("nan"))
    assert lines()[0]["ratio"] == "nan"


def test_a_message_with_wrong_arguments_is_told_all_the_same(lines: Lines) -> None:
    record = logging.makeLogRecord({"name": "x", "levelname": "INFO", "msg": "%d requests", "args": ("many",)})
    logging.getLogger().handlers[0].handle(record)
    assert lines()[0]["event"] == "%d requests"


def test_a_long_message_is_cut(lines: Lines) -> None:
    log.info("x" * 1_000_000)
    assert len(lines()[0]["event"]) < 10_000


def test_threads_of_a_request_may_write_too(lines: Lines) -> None:
    with request_scope("req_7"):
        thread = threading.Thread(target=log.info, args=("elsewhere",))
        thread.start()
        thread.join()
    assert lines()[0]["event"] == "elsewhere"
