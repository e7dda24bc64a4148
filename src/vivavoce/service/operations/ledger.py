"""The book of requests: what became of each, for callers who ask afterwards. Bounded; used in one event loop."""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from vivavoce.errors import InvalidRequest, RequestNotFound
from vivavoce.service.host.verdict import FinishReason, Verdict
from vivavoce.service.operations.callers import Caller

CAPACITY = 10_000
"""Finished requests that are remembered."""
_ID_BYTES = 16
"""Random bytes of an id: 22 characters, which nobody guesses."""
_CLIENT_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class RequestStatus(str, Enum):
    """Whether more can come of a request."""

    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True)
class Entry:
    """One request.

    caller_name: of the key that asked, "" where none is needed; door: where it came in; started: Unix time in seconds;
    audio_s, segments_spoken, segments_given: as in `Verdict`, so far while it runs; reason, error, error_code: of its
    verdict; admission_s: seconds from its start until it was taken, None if it was refused or is not taken yet;
    first_audio_s, total_s: until its first audio was handed over, None if there was none, and to its end.
    """

    request_id: str
    caller_name: str
    door: str
    started: float
    status: RequestStatus = RequestStatus.RUNNING
    audio_s: float = 0.0
    segments_spoken: int = 0
    segments_given: int = 0
    reason: FinishReason | None = None
    error: str | None = None
    error_code: str | None = None
    admission_s: float | None = None
    first_audio_s: float | None = None
    total_s: float | None = None


Watcher = Callable[[Entry], Callable[[Entry], None]]
"""Is told of each request when it begins; what it returns is told when that request ends. Neither may raise."""


class Ledger:
    """Running requests, and the last that finished; the one that finished first is forgotten first.

    capacity: finished and running entries together, ≥ 1. Running ones never leave: how many there are the engine's
    admission bounds. watchers: who else wants to know of beginnings and ends: logs, traces.
    """

    def __init__(self, capacity: int = CAPACITY, watchers: Sequence[Watcher] = ()) -> None:
        if capacity < 1:
            raise InvalidRequest(f"ledger capacity: {capacity} is below 1; choose 1 or more requests")
        self._capacity = capacity
        self._watchers = tuple(watchers)
        self._running: dict[str, Entry] = {}
        self._watching: dict[str, list[Callable[[Entry], None]]] = {}
        self._finished: OrderedDict[str, Entry] = OrderedDict()

    @property
    def running(self) -> int:
        """Requests that go on."""
        return len(self._running)

    def __len__(self) -> int:
        return len(self._running) + len(self._finished)

    def begin(self, request_id: str, caller_name: str, door: str, at: float) -> None:
        """A request comes in, at so many seconds of Unix time. To be called before anything is held for it.

        Raises:
            InvalidRequest: the id is another request's.
        """
        if self._known(request_id):
            raise InvalidRequest(
                f"x-request-id: {request_id!r} is another request's; choose a new one, or leave it out"
            )
        entry = Entry(request_id, caller_name, door, at)
        self._running[request_id] = entry
        self._watching[request_id] = [watcher(entry) for watcher in self._watchers]
        self._forget()

    def admitted(self, request_id: str, seconds: float) -> None:
        """It was taken, so many seconds after its start. Of a request that has ended: nothing."""
        entry = self._running.get(request_id)
        if entry is not None:
            self._running[request_id] = replace(entry, admission_s=seconds)

    def progress(self, request_id: str, audio_s: float, segments_spoken: int, segments_given: int) -> None:
        """How far it is; of a request that has ended: nothing."""
        entry = self._running.get(request_id)
        if entry is not None:
            self._running[request_id] = replace(
                entry, audio_s=audio_s, segments_spoken=segments_spoken, segments_given=segments_given
            )

    def end(self, request_id: str, verdict: Verdict, *, first_audio_s: float | None, total_s: float) -> None:
        """It ended, so many seconds after its start. A second end changes nothing: the first one was the listener's."""
        entry = self._running.pop(request_id, None)
        if entry is None:
            return
        finished = replace(
            entry,
            status=RequestStatus.FINISHED,
            audio_s=verdict.audio_s,
            segments_spoken=verdict.segments_spoken,
            segments_given=verdict.segments_given,
            reason=verdict.reason,
            error=verdict.error,
            error_code=verdict.error_code,
            first_audio_s=first_audio_s,
            total_s=total_s,
        )
        self._finished[request_id] = finished
        self._forget()
        for ended in self._watching.pop(request_id):
            ended(finished)

    def get(self, request_id: str, caller: Caller) -> Entry:
        """What is known of a caller's own request.

        Raises:
            RequestNotFound: there is none of this id, it was forgotten, or it is another caller's, which is not told.
        """
        entry = self._running.get(request_id) or self._finished.get(request_id)
        if entry is None or entry.caller_name != caller.name:
            raise RequestNotFound(
                f"request: none of id {request_id[:128]!r} is remembered (up to {self._capacity} are); "
                "take the id from the x-request-id header of the answer"
            )
        return entry

    def accept_request_id(self, header: str | None) -> str:
        """The id that a client chose for its request, if it can be one and no remembered request has it; else a new."""
        if header is not None and _CLIENT_ID.fullmatch(header) and not self._known(header):
            return header
        return new_request_id()

    def _known(self, request_id: str) -> bool:
        return request_id in self._running or request_id in self._finished

    def _forget(self) -> None:
        while self._finished and len(self) > self._capacity:
            self._finished.popitem(last=False)


def new_request_id() -> str:
    """An id that no other request has, and that nobody can guess: "req_" and 22 letters, digits, "-" or "_"."""
    return f"req_{secrets.token_urlsafe(_ID_BYTES)}"
