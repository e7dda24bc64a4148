"""An order of work on the device, and what it took: a CUDA stream of its own, or the host's own order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from math import inf

import torch

_Events = list[torch.cuda.Event]


class Mark:
    """A point in a lane's order: reached once everything before it is done.

    Its event goes to `spare` when nobody holds the mark any more: events that tell the time are dear to make.
    """

    __slots__ = ("_at", "_event", "_spare")

    def __init__(self, event: torch.cuda.Event | None, spare: _Events) -> None:
        self._event, self._spare = event, spare
        self._at = time.perf_counter()

    def __del__(self) -> None:
        if self._event is not None:
            self._spare.append(self._event)

    def reached(self) -> bool:
        """Whether the work before it is done; does not wait."""
        return self._event is None or self._event.query()

    def wait(self) -> None:
        """Block until it is."""
        if self._event is not None:
            self._event.synchronize()

    def since(self, earlier: Mark) -> float:
        """Seconds of the device between two marks that were reached."""
        if self._event is None or earlier._event is None:
            return self._at - earlier._at
        return earlier._event.elapsed_time(self._event) / 1000


@dataclass(frozen=True, eq=False)
class _Span:
    start: Mark
    end: Mark
    tell: Callable[[float], None]


class Lane:
    """Work enqueued through a lane runs in its order; two lanes of one CUDA device overlap.

    `depth`: how many pieces of work may be queued ahead of the device. More hides the host's time, fewer lets urgent
    work in sooner.
    """

    def __init__(self, device: torch.device, *, urgent: bool = False, depth: int = 2) -> None:
        self._stream = torch.cuda.Stream(device, priority=-1 if urgent else 0) if device.type == "cuda" else None
        self._depth = depth if self._stream is not None else 1
        self._spans: deque[_Span] = deque()
        self._spare: _Events = []
        self._usual_s = 0.0
        """What the newest piece took that was told."""
        self._oldest_at = 0.0
        """Since when the oldest piece is taken to be on the device, on the engine's clock."""
        self._last: Mark | None = None
        """End of the newest piece of work, unless something that is not timed was enqueued after it."""

    @property
    def open(self) -> bool:
        """Another piece of work may be enqueued."""
        return len(self._spans) < self._depth

    @property
    def busy(self) -> bool:
        """Something is enqueued whose end was not seen."""
        return bool(self._spans)

    @property
    def due_at(self) -> float:
        """When the oldest piece will be done if it takes as long as the last one, on the engine's clock; ∞: none is."""
        return self._oldest_at + self._usual_s if self._spans else inf

    def entered(self) -> AbstractContextManager[object]:
        """The context in which the lane's tensors are made and read; what is done in it is not timed."""
        self._last = None
        return self._entered()

    def mark(self) -> Mark:
        """A point behind everything enqueued so far."""
        if self._stream is None:
            return Mark(None, self._spare)
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return Mark(event, self._spare)

    @contextmanager
    def work(self, tell: Callable[[float], None]) -> Iterator[None]:
        """A piece of work; its seconds are told once it is done (`settle`). Work that raises is not told."""
        start, self._last = self._begin(), None
        with self._entered():
            yield
        self._last = self.mark()
        if not self._spans:
            self._oldest_at = time.perf_counter()
        self._spans.append(_Span(start, self._last, tell))

    def settle(self, wait: bool = False) -> None:
        """Tell the seconds of what is done; `wait`: until the oldest piece is."""
        if wait and self._spans:
            self._spans[0].end.wait()
        while self._spans and self._spans[0].end.reached():
            span = self._spans.popleft()
            self._oldest_at = time.perf_counter()
            self._usual_s = span.end.since(span.start)
            span.tell(self._usual_s)

    def _begin(self) -> Mark:
        """Where the next piece of work begins: behind one that still runs, at its end."""
        return self.mark() if self._last is None or self._last.reached() else self._last

    def _entered(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
