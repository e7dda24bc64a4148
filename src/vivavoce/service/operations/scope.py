"""What is known of the request that a task works on, for whoever writes of it: logs and traces."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_MAX_TRACE_CHARACTERS = 512
"""What W3C asks of everyone to pass on; more is not looked at."""


@dataclass
class RequestScope:
    """One request, or one connection that asks for several; filled in as it becomes known.

    request_id, caller_name: "" until they are; traceparent, tracestate: W3C's trace context as it was sent, "" if none
    was.
    """

    request_id: str = ""
    caller_name: str = ""
    traceparent: str = ""
    tracestate: str = ""

    @property
    def trace_id(self) -> str:
        """32 hexadecimal digits; "" if no valid trace context was sent."""
        found = _TRACEPARENT.fullmatch(self.traceparent[:_MAX_TRACE_CHARACTERS])
        return found[1] if found and found[1].strip("0") else ""


_current: ContextVar[RequestScope | None] = ContextVar("vivavoce_request_scope", default=None)


def current_scope() -> RequestScope | None:
    """Of the task that asks, or of the one that began it; None outside of requests."""
    return _current.get()


@contextmanager
def request_scope(request_id: str = "", *, traceparent: str = "", tracestate: str = "") -> Iterator[RequestScope]:
    """What is written inside belongs to one request."""
    scope = RequestScope(
        request_id, traceparent=traceparent[:_MAX_TRACE_CHARACTERS], tracestate=tracestate[:_MAX_TRACE_CHARACTERS]
    )
    token = _current.set(scope)
    try:
        yield scope
    finally:
        _current.reset(token)


def note_caller(name: str) -> None:
    """The request that goes on was asked for by the key of this name."""
    scope = _current.get()
    if scope is not None:
        scope.caller_name = name
