"""The log of requests. The record of a request gives its log line, metrics and trace, and the answer to
`GET /v1/audio/requests/{id}`. The number of records is limited. Used in one event loop.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from vivavoce.errors import InvalidRequest, RequestNotFound
from vivavoce.frontend.speech import Delivery, FinishReason, Verdict
from vivavoce.logs import RequestScope, current_scope, log_event, note_principal, texts_are_logged
from vivavoce.server.rate_limiter import Principal

CAPACITY = 10_000
_CLIENT_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_CLIENT_ERRORS = {InvalidRequest.code, *(kind.code for kind in InvalidRequest.__subclasses__())}

_ENDED, _REFUSED = "speech ended", "speech refused"
_log = logging.getLogger("vivavoce.speech")


@dataclass(eq=False)
class RequestRecord:
    """A running or finished request; the fields of a running request hold its state so far.

    principal_name: "" on a server without keys. started: Unix time. figures: the engine's reason for having no room.
    admission_s: seconds until the request was accepted, None if it was not. first_audio_s, total_s: seconds from the
    start to the first audio and to the end; None until then. deadline: time on the dispatcher's clock, or None. notes:
    deviations from the request. model: the model's name if the server has several models, else None.
    """

    request_id: str
    principal_name: str
    protocol: str
    started: float
    characters: int = 0
    audio_s: float = 0.0
    segments_spoken: int = 0
    segments_given: int = 0
    reason: FinishReason | None = None
    error: str | None = None
    error_code: str | None = None
    figures: str | None = None
    admission_s: float | None = None
    first_audio_s: float | None = None
    total_s: float | None = None
    deadline: float | None = None
    notes: tuple[str, ...] = ()
    model: str | None = None
    delivery: Delivery | None = None
    scope: RequestScope | None = None

    @property
    def status(self) -> str:
        return "running" if self.reason is None else "finished"


class RequestLog:
    """The running requests and the last finished ones. It writes a log line when a request ends or is refused.

    capacity: most records that are kept, ≥ 1. Running requests are never dropped; admission limits their number.
    observers: called once for each request that ends or is refused (then `admission_s` is None); they must not raise.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self.observers: list[Callable[[RequestRecord], None]] = []
        # The dictionaries' keys are principal and id, so that a client cannot see or block the ids of other clients.
        self._running: dict[tuple[str, str], RequestRecord] = {}
        self._finished: dict[tuple[str, str], RequestRecord] = {}

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def finished(self) -> list[RequestRecord]:
        return list(self._finished.values())

    def begin(self, request_id: str, principal_name: str, protocol: str, at: float) -> RequestRecord:
        """Record a new request; at: Unix time in seconds. InvalidRequest: the principal has used the id already."""
        if self._find(request_id, principal_name) is not None:
            raise InvalidRequest(
                f"x-request-id: {request_id!r} is another request's; choose a new one, or leave it out"
            )
        record = RequestRecord(request_id, principal_name, protocol, at, scope=current_scope())
        self._running[principal_name, request_id] = record
        note_principal(principal_name)
        self._forget()
        return record

    def end(self, record: RequestRecord, verdict: Verdict, total_s: float) -> None:
        """Record the end, `total_s` after the start; a second call changes nothing."""
        if self._running.pop((record.principal_name, record.request_id), None) is None:
            return
        for field in ("reason", "error", "error_code", "audio_s", "segments_spoken", "segments_given", "delivery"):
            setattr(record, field, getattr(verdict, field))
        record.total_s = total_s
        self._finished[record.principal_name, record.request_id] = record
        self._forget()
        _write_line(record)
        for observer in self.observers:
            observer(record)

    def get(self, request_id: str, principal: Principal) -> RequestRecord:
        """Return a request's record. RequestNotFound: the id is unknown, forgotten or another principal's."""
        if (record := self._find(request_id, principal.name)) is None:
            raise RequestNotFound(
                f"request: the id {request_id[:128]!r} is unknown (up to {self._capacity} are kept); "
                "take the id from the x-request-id header of the answer"
            )
        return record

    def accept_request_id(self, header: str | None, principal: Principal | None = None) -> str:
        """Return the client's id if it is valid and unused by the principal (None: not known yet), else a new id."""
        if not header or not _CLIENT_ID.fullmatch(header) or (principal and self._find(header, principal.name)):
            return new_request_id()
        return header

    def _find(self, request_id: str, principal_name: str) -> RequestRecord | None:
        key = principal_name, request_id
        return self._running.get(key) or self._finished.get(key)

    def _forget(self) -> None:
        while self._finished and len(self._running) + len(self._finished) > self._capacity:
            del self._finished[next(iter(self._finished))]


def _write_line(record: RequestRecord) -> None:
    refused, client_error = record.admission_s is None, record.error_code in _CLIENT_ERRORS
    failed = record.reason is FinishReason.ERROR and not refused and not client_error
    # Messages of client errors and of an upstream server may quote the request.
    quotes = client_error or record.error_code == "server_refused"
    log_event(
        _log,
        logging.WARNING if failed else logging.INFO,
        _REFUSED if refused else _ENDED,
        request_id=record.request_id,
        door=record.protocol,
        caller=record.principal_name or None,
        model=record.model,
        reason=record.reason.value if record.reason else None,
        seconds=record.total_s,
        admission_s=record.admission_s,
        first_audio_s=record.first_audio_s,
        characters=record.characters,
        audio_s=record.audio_s,
        segments_spoken=record.segments_spoken,
        segments_given=record.segments_given,
        missing_words=len(record.delivery.missing) if record.delivery else None,
        faults=", ".join(record.delivery.faults) or None if record.delivery else None,
        mended=", ".join(record.delivery.mended) or None if record.delivery else None,
        warning="; ".join(record.notes) or None,
        error_code=record.error_code,
        figures=record.figures or None,
        error=None if quotes and not texts_are_logged() else record.error,
    )


@dataclass
class Usage:
    """The usage of one key. requests: number of accepted requests; last: time at which a request last ended, or ""."""

    requests: int = 0
    refused: int = 0
    characters: int = 0
    audio_s: float = 0.0
    last: str = ""


def usage_in(lines: Iterable[str]) -> dict[str, Usage]:
    """Return each key's usage, by name ("" on a server without keys), from a log's JSON lines; skip other lines."""
    found: defaultdict[str, Usage] = defaultdict(Usage)
    for line in lines:
        try:
            entry = json.loads(line[line.find("{") :])  # docker compose puts a name before the JSON
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("event") in (_ENDED, _REFUSED):
            used = found[str(entry.get("caller", ""))]
            used.requests += entry["event"] == _ENDED
            used.refused += entry["event"] == _REFUSED
            used.characters += int(entry.get("characters", 0))
            used.audio_s = round(used.audio_s + float(entry.get("audio_s", 0.0)), 3)
            used.last = max(used.last, str(entry.get("time", "")))
    return dict(found)


def new_request_id() -> str:
    """Return an id that cannot be guessed: "req_" and 22 letters, digits, "-" or "_"."""
    return f"req_{secrets.token_urlsafe(16)}"
