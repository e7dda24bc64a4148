"""Logs: one event per line, as JSON for machines or as text for terminals; all loggers of the process write here.

An event's name is a constant: the argument of `log_event`, or the text of a message before its first colon. Values are
fields, by name: `log.error("engine ended: exit %(code)d", {"code": 1})`. Libraries' messages have the event `library`.

Texts, recordings, transcripts and keys are not logged. `log_event` takes plain fields; messages of errors that clients
cause are left out, because they quote the request; URLs lose their query strings.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType
from typing import Any, TextIO

_SILENT = logging.CRITICAL + 1
_text_log = logging.getLogger("vivavoce.text")
_text_log.setLevel(_SILENT)

Field = str | int | float | bool | None

_FIELDS = "vivavoce_fields"
_QUIET_LIBRARIES = ("httpx", "httpcore", "hpack", "websockets", "multipart", "python_multipart", "opentelemetry")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")
"""Control characters, Unicode line ends, direction marks, invisible characters, lone surrogates."""
_QUERY = re.compile(r"\?[^\s\"']*")
_MAX_MESSAGE = 4000
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")


@dataclass
class RequestScope:
    """The request of this context, for its log lines; each field is "" while it is not known.

    traceparent, tracestate: the client's W3C trace context.
    """

    request_id: str = ""
    principal_name: str = ""
    traceparent: str = ""
    tracestate: str = ""

    @property
    def trace_id(self) -> str:
        """The trace id, 32 hexadecimal digits; "" without a valid trace context."""
        found = _TRACEPARENT.fullmatch(self.traceparent)
        return found[1] if found and found[1].strip("0") else ""


_current: ContextVar[RequestScope | None] = ContextVar("vivavoce_request_scope", default=None)


def current_scope() -> RequestScope | None:
    return _current.get()


@contextmanager
def request_scope(request_id: str = "", *, traceparent: str = "", tracestate: str = "") -> Iterator[RequestScope]:
    limit = 512  # W3C asks servers to pass on at least this many characters
    scope = RequestScope(request_id, traceparent=traceparent[:limit], tracestate=tracestate[:limit])
    token = _current.set(scope)
    try:
        yield scope
    finally:
        _current.reset(token)


def note_principal(name: str) -> None:
    if (scope := _current.get()) is not None:
        scope.principal_name = name


def configure(form: str, level: str = "info", *, log_text: bool = False, stream: TextIO | None = None) -> None:
    """Set up logging; later calls replace it. form: json or text; log_text: log texts and errors that quote texts."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("vivavoce", "uvicorn", "uvicorn.error", "uvicorn.access"):
        other = logging.getLogger(name)
        other.handlers.clear()
        other.propagate = True
    logging.getLogger("uvicorn.access").disabled = True
    for name in _QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    _text_log.setLevel(logging.INFO if log_text else _SILENT)
    logging.captureWarnings(True)


def log_event(logger: logging.Logger, level: int, event: str, **fields: Field) -> None:
    if logger.isEnabledFor(level):
        known = {name: value for name, value in fields.items() if value is not None}
        logger.log(level, event, extra={_FIELDS: known})


def log_text(request_id: str, text: str) -> None:
    log_event(_text_log, logging.INFO, "text", request_id=request_id, text=text)


def texts_are_logged() -> bool:
    return _text_log.isEnabledFor(logging.INFO)


def printable(text: str) -> str:
    """Return the text in one line, with control and invisible characters as \\uXXXX."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, event, fields of the request and the event, message, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        message, event = _message(record), "library"
        if record.name.startswith("vivavoce"):
            event = str(record.msg).partition(":")[0]
            message = message.removeprefix(event).removeprefix(": ")
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.created % 1 * 1000):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": event,
            **_fields(record, record.args if isinstance(record.args, dict) else {}),
        }
        if message:
            line["message"] = message
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        # json.dumps escapes characters below a space; `printable` escapes the others, which are all inside strings.
        return printable(json.dumps(line, ensure_ascii=False))


class TextFormatter(logging.Formatter):
    """For people: time with zone, level, message, fields as name=value; a traceback follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(record.created))
        words = [moment, f"{record.levelname.lower():<7}", printable(_message(record))]
        for name, value in _fields(record).items():
            text = str(value)
            shown = json.dumps(text, ensure_ascii=False) if " " in text or not text else text
            words.append(f"{name}={printable(shown)}")
        lines = [" ".join(words)]
        if record.exc_info:
            lines += [f"    {printable(line)}" for line in self.formatException(record.exc_info).splitlines()]
        return "\n".join(lines)


def _message(record: logging.LogRecord) -> str:
    try:
        text = record.getMessage()
    except Exception:  # a logging call with wrong arguments must not break its caller
        text = str(record.msg)
    if record.name.startswith("uvicorn"):
        text = _QUERY.sub("?…", text)  # a WebSocket's URL may hold a key
    return text if len(text) <= _MAX_MESSAGE else f"{text[:_MAX_MESSAGE]}…"


def _fields(record: logging.LogRecord, given: Mapping[str, object] = MappingProxyType({})) -> dict[str, Field]:
    scope = current_scope() or RequestScope()
    known = {"request_id": scope.request_id, "caller": scope.principal_name, "trace_id": scope.trace_id}
    fields: dict[str, Field] = {name: text for name, text in known.items() if text}
    for name, value in {**given, **getattr(record, _FIELDS, {})}.items():
        if isinstance(value, float):  # JSON has no infinity and NaN
            value = round(value, 4) if isfinite(value) else str(value)
        fields[name] = value if value is None or isinstance(value, (str, int, float)) else str(value)
    return fields
