"""Logs: one event a line, as JSON for machines or as text for terminals; the standard library's loggers all end here.

What people say, their recordings, transcripts and keys are not written. `tell` takes plain facts, messages of errors
that clients cause are left out, since they quote what was sent, and addresses lose their query strings.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Mapping
from enum import Enum
from math import isfinite
from typing import Any, TextIO

from vivavoce.errors import InvalidRequest
from vivavoce.service.host.verdict import FinishReason
from vivavoce.service.operations.ledger import Entry
from vivavoce.service.operations.scope import current_scope, note_caller

log = logging.getLogger("vivavoce.speech")
_text_log = logging.getLogger("vivavoce.text")
"""What is spoken; silent unless an operator wants it."""
_SILENT = logging.CRITICAL + 1
_text_log.setLevel(_SILENT)

Fact = str | int | float | bool | None

LEVELS = ("debug", "info", "warning", "error")
_FACTS = "vivavoce_facts"
_TALKATIVE = ("httpx", "httpcore", "hpack", "websockets", "multipart", "python_multipart", "opentelemetry")
"""Libraries whose everyday messages nobody needs, and which name addresses."""
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""Controls, line ends of Unicode, marks that turn the direction of writing or do not show, halves of pairs."""
_QUERY = re.compile(r"\?[^\s\"']*")
_MAX_MESSAGE = 4000
_FACT_DIGITS = 4
"""Places after the point of seconds: a tenth of a millisecond."""
_CLIENTS_CODES = frozenset({InvalidRequest.code, *(kind.code for kind in InvalidRequest.__subclasses__())})
"""Errors that a client causes, whose messages quote what it sent."""
_UPSTREAM_REFUSED = "server_refused"
"""A server elsewhere was asked to speak; its words may be those that it was to say."""


class LogFormat(str, Enum):
    """How lines look."""

    JSON = "json"
    TEXT = "text"


def configure(form: LogFormat, level: str = "info", *, log_text: bool = False, stream: TextIO | None = None) -> None:
    """Send everything that is logged in this process to one stream, standard error by default; may be called again.

    level: one of LEVELS. log_text: what is spoken, and messages of errors that quote it, are logged too. Servers that
    bring handlers of their own (uvicorn) lose them, and uvicorn's access log gives way to ours.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form is LogFormat.JSON else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("vivavoce", "uvicorn", "uvicorn.error", "uvicorn.access"):
        other = logging.getLogger(name)
        other.handlers.clear()
        other.propagate = True
    logging.getLogger("uvicorn.access").disabled = True
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    _text_log.setLevel(logging.INFO if log_text else _SILENT)
    logging.captureWarnings(True)


def tell(logger: logging.Logger, level: int, event: str, **facts: Fact) -> None:
    """Log an event with its facts, by name; None: not known, left out."""
    if logger.isEnabledFor(level):
        known = {name: fact for name, fact in facts.items() if fact is not None}
        logger.log(level, "%s", event, extra={_FACTS: known})


def tell_text(request_id: str, text: str) -> None:
    """Log what a request is to speak, if the operator wants that; else nothing."""
    tell(_text_log, logging.INFO, "text", request_id=request_id, text=text)


def watch_requests(entry: Entry) -> Callable[[Entry], None]:
    """A `Ledger`'s watcher that logs the end of each request for speech, whatever its door."""
    note_caller(entry.caller_name)
    return _ended


def _ended(entry: Entry) -> None:
    refused = entry.admission_s is None
    # What a client could have asked for otherwise is no trouble of ours.
    caused_there = entry.error_code in _CLIENTS_CODES
    trouble = entry.reason is FinishReason.ERROR and not refused and not caused_there
    quoting = caused_there or entry.error_code == _UPSTREAM_REFUSED
    tell(
        log,
        logging.WARNING if trouble else logging.INFO,
        "speech refused" if refused else "speech ended",
        request_id=entry.request_id,
        door=entry.door,
        caller=entry.caller_name or None,
        reason=entry.reason.value if entry.reason else None,
        seconds=entry.total_s,
        admission_s=entry.admission_s,
        first_audio_s=entry.first_audio_s,
        audio_s=entry.audio_s,
        segments_spoken=entry.segments_spoken,
        segments_given=entry.segments_given,
        error_code=entry.error_code,
        error=None if quoting and not _text_log.isEnabledFor(logging.INFO) else entry.error,
    )


def printable(text: str) -> str:
    """One line that shows what it holds: controls and invisible characters as \\uXXXX."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, event, request_id, caller, trace_id, facts, error of a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; keys come in that order."""
        line: dict[str, Any] = {
            "time": _utc(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _message(record),
            **_of_scope(),
            **_rounded(_facts(record)),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        # json escapes what is below a space; the rest is escaped here, where all of it is inside of strings.
        return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(line, ensure_ascii=False))


class TextLines(logging.Formatter):
    """For people: time, level, event, facts as name=value; tracebacks below, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, and a traceback's lines."""
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        facts = {**_of_scope(), **_rounded(_facts(record))}
        words = [moment, f"{record.levelname.lower():<7}", printable(_message(record))]
        words += [f"{name}={printable(_shown(fact))}" for name, fact in facts.items()]
        lines = [" ".join(words)]
        if record.exc_info:
            lines += [f"    {printable(line)}" for line in self.formatException(record.exc_info).splitlines()]
        return "\n".join(lines)


def _message(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except Exception:  # a logging call with wrong arguments must not end what it reports on
        text = str(record.msg)
    if record.name.startswith("uvicorn"):
        text = _QUERY.sub("?…", text)  # a WebSocket's address may hold a key
    return text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]}…"


def _facts(record: logging.LogRecord) -> Mapping[str, Fact]:
    return getattr(record, _FACTS, {})


def _of_scope() -> dict[str, Fact]:
    scope = current_scope()
    if scope is None:
        return {}
    told = {"request_id": scope.request_id, "caller": scope.caller_name, "trace_id": scope.trace_id}
    return {name: text for name, text in told.items() if text}


def _rounded(facts: Mapping[str, Fact]) -> dict[str, Fact]:
    """JSON has no word for numbers that are not finite."""
    return {
        name: fact if not isinstance(fact, float) else round(fact, _FACT_DIGITS) if isfinite(fact) else str(fact)
        for name, fact in facts.items()
    }


def _shown(fact: Fact) -> str:
    text = str(fact)
    return json.dumps(text, ensure_ascii=False) if " " in text or not text else text


def _utc(seconds: float) -> str:
    """ISO 8601 with milliseconds."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"
