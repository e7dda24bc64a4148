"""An order of work on the device, and what it took: a CUDA stream of its own, or the host's own order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch


class Mark:
    """A point in a lane's order: reached once everything before it is done."""

    def __init__(self, event: torch.cuda.Event | None) -> None:
        self._event = event
        self._at = time.perf_counter()

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


@dataclass(frozen=True)
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

    @property
    def open(self) -> bool:
        """Another piece of work may be enqueued."""
        return len(self._spans) < self._depth

    @property
    def busy(self) -> bool:
        """Something is enqueued whose end was not seen."""
        return bool(self._spans)

    def entered(self) -> AbstractContextManager[object]:
        """The context in which the lane's tensors are made and read."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def mark(self) -> Mark:
        """A point behind everything enqueued so far."""
        if self._stream is None:
            return Mark(None)
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return Mark(event)

    @contextmanager
    def work(self, tell: Callable[[float], None]) -> Iterator[None]:
        """A piece of work; its seconds are told once it is done (`settle`). Work that raises is not told."""
        with self.entered():
            start = self.mark()
            yield
            self._spans.append(_Span(start, self.mark(), tell))

    def settle(self, wait: bool = False) -> None:
        """Tell the seconds of what is done; `wait`: until the oldest piece is."""
        if wait and self._spans:
            self._spans[0].end.wait()
        while self._spans and self._spans[0].end.reached():
            span = self._spans.popleft()
            span.tell(span.end.since(span.start))
