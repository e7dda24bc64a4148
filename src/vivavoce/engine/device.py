"""The engine's device and its process: queues of work, copies to the device, callers' threads,
garbage collections.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.models.layers import in_turn

T = TypeVar("T")
DEPTH = 2
"""Pieces of work that wait for a CUDA device: more hide the host's time, fewer let urgent work in sooner."""


@dataclass(eq=False)
class QueueEvent:
    """A point in a queue's order: reached once everything before it is done. On a host that is so at once.

    at: when it was reached, on the host's clock.
    """

    at: float

    def reached(self, wait: bool = False) -> bool:
        """Whether the device has finished the work queued before the event; wait: block until then."""
        return True

    def seconds_until(self, end: QueueEvent) -> float:
        return end.at - self.at


class CudaEvent(QueueEvent):
    """A point in a CUDA stream. Its event returns to `spare` for reuse, because timing events are slow to create."""

    def __init__(self, event: torch.cuda.Event, spare: list[torch.cuda.Event]) -> None:
        super().__init__(0.0)
        self._event, self._spare = event, spare

    def __del__(self) -> None:
        self._spare.append(self._event)

    def reached(self, wait: bool = False) -> bool:
        if self._event.query():
            return True
        if wait:
            self._event.synchronize()
        return wait

    def seconds_until(self, end: QueueEvent) -> float:
        assert isinstance(end, CudaEvent)
        return self._event.elapsed_time(end._event) / 1000


class DeviceQueue:
    """Work that is launched through a queue runs in its order; two queues of one CUDA device overlap.

    Args:
        device: CUDA, where the queue is a stream of its own, or another, where a launch is done when it returns.
        urgent: its work goes before that of other queues.
        clock: seconds of the host.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        urgent: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._stream = torch.cuda.Stream(device, priority=-1 if urgent else 0) if device.type == "cuda" else None
        self.on_cuda = self._stream is not None
        self._depth = DEPTH if self.on_cuda else 1
        self.clock = clock
        self._spans: deque[tuple[QueueEvent, QueueEvent, Callable[[float], None]]] = deque()
        """Where each piece begins and ends, and what is told its seconds."""
        self._spare: list[torch.cuda.Event] = []
        self.open = True
        """It takes another piece of work now."""
        self._usual_s = 0.0
        """Seconds of the newest piece that is done."""
        self._oldest_at = 0.0
        """Since when the oldest piece is taken to be on the device, on the host's clock."""
        self._last: QueueEvent | None = None
        """End of the newest piece of work, unless something that is not timed was enqueued after it."""

    @property
    def busy(self) -> bool:
        """Something was launched whose end was not seen."""
        return bool(self._spans)

    @property
    def due_at(self) -> float:
        """When the oldest piece will be done if it takes as long as the last one, on the host's clock; ∞: none is."""
        return self._oldest_at + self._usual_s if self._spans else inf

    def entered(self) -> AbstractContextManager[object]:
        """The context in which the queue's tensors are made and read; what is done in it is not timed."""
        self._last = None
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def mark(self) -> QueueEvent:
        """A point behind everything launched so far."""
        if self._stream is None:
            return QueueEvent(self.clock())
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return CudaEvent(event, self._spare)

    def launch(self, work: Callable[[], T], on_done: Callable[[float], None]) -> T:
        """A piece of work; `on_done` gets its seconds once it is done (`settle`), unless it raises."""
        # It begins behind a piece that still runs at that one's end.
        start = self.mark() if self._last is None or self._last.reached() else self._last
        with self.entered():
            made = work()
        self._last = self.mark()
        if not self._spans:
            self._oldest_at = self.clock()
        self._spans.append((start, self._last, on_done))
        self.open = len(self._spans) < self._depth
        return made

    def settle(self, wait: bool = False) -> None:
        """Report the seconds of what is done; `wait`: block until the oldest piece is."""
        while self._spans and self._spans[0][1].reached(wait):
            wait = False
            start, end, on_done = self._spans.popleft()
            self.open = True
            self._oldest_at = self.clock()
            self._usual_s = start.seconds_until(end)
            on_done(self._usual_s)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """A copy that a CUDA device makes in its own time: from pinned memory, so that the host goes on."""
    if device.type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def upload(arrays: Sequence[NDArray[Any]], device: torch.device, dtype: torch.dtype = torch.int64) -> list[Tensor]:
    """The arrays on the device, integers of this width, in one copy that the host does not wait for."""
    sizes = [array.size for array in arrays]
    # Only from pinned memory is a copy asynchronous.
    staged = torch.empty(sum(sizes), dtype=dtype, pin_memory=device.type == "cuda")
    np.concatenate([array.ravel() for array in arrays], out=staged.numpy(), casting="same_kind")
    whole = staged.to(device, non_blocking=True)
    return [part.view(array.shape) for part, array in zip(torch.split(whole, sizes), arrays, strict=True)]


def copy_into(target: Tensor, values: Tensor) -> None:
    """Overwrite a tensor that stays where it is; as `to_device`, the host goes on."""
    target.copy_(values.pin_memory() if target.device.type == "cuda" else values, non_blocking=True)


class HostThreads:
    """The threads that compute on a host without a GPU: the engine's own, and one helper that shares its work.

    torch's own threads wait for one another at every operation, and busily. Beside other busy processes each wait lasts
    until the processor is given back: a short sentence took 15 s and more there. So on two processors each thread
    computes alone, and they meet some forty times in a sentence and not fifty thousand times. On more, each of the two
    has its share of torch's threads.

    A `vivavoce.models.layers.Both` within its context, whose end ends the helper.

    count: threads of torch in all; None: as many as torch has in this thread.
    """

    def __init__(self, count: int | None = None) -> None:
        count = torch.get_num_threads() if count is None else count
        self._share = max(1, count // 2)
        self._helper = ThreadPoolExecutor(1, "vivavoce-helper", self.__enter__) if count > 1 else None

    def __enter__(self) -> None:
        torch.set_num_threads(self._share)

    def __exit__(self, *_: object) -> None:
        if self._helper is not None:
            self._helper.shutdown()

    def __call__(self, first: Callable[[], Tensor], second: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        if self._helper is None:
            return in_turn(first, second)
        later = self._helper.submit(torch.inference_mode()(second))
        try:
            return first(), later.result()
        finally:
            wait((later,))


_freezing = RLock()
"""Reentrant: a collection may end an engine that is not used any more, and so withdraw its wish."""
_frozen_by: set[int] = set()


class GcFreeze:
    """One engine's wish that garbage collections pass over what lives now; it holds until no engine wishes it any more.

    A full collection visits every object of the process while no Python runs: 0.2 s for the 320,000 that torch and an
    engine bring, again and again, and every stream waits. What lives once an engine is warm stays for as long as it
    serves, so it is frozen; collections then see what requests have left, and take next to no time.
    """

    def begin(self) -> None:
        """Collect once more, and freeze what is left; again: what has come since, too."""
        with _freezing:
            gc.collect()
            gc.freeze()
            _frozen_by.add(id(self))

    def end(self) -> None:
        """Nothing happens where it never began, or has ended."""
        with _freezing:
            if id(self) in _frozen_by:
                _frozen_by.remove(id(self))
                if not _frozen_by:
                    gc.unfreeze()


_SOFT = 1
"""`omp_pause_soft`: threads are freed, settings stay (OpenMP 5.0, section 3.2.44)."""


def release_idle_team() -> None:
    """Free the calling thread's OpenMP threads; nothing happens where torch brings no GNU OpenMP.

    torch's CPU operations run in teams of OpenMP threads, and every Python thread that ever ran one keeps its team.
    GNU's library counts them all: once there are more than processors, none of them waits actively any more, and each
    of the thousand short operations of a decode step pays for going to sleep. An engine beside one idle caller was half
    as fast. So callers give their teams back when they submit work; the next operation of theirs makes a new one.
    """
    pause = _omp_pause()
    if pause is not None:
        pause(_SOFT)


@cache
def _omp_pause() -> Any:
    folder = Path(torch.__file__).parent
    for path in (*folder.glob("lib/libgomp*"), *folder.parent.glob("torch.libs/libgomp*")):
        try:
            return ctypes.CDLL(str(path)).omp_pause_resource_all
        except (OSError, AttributeError):  # not loadable, or older than OpenMP 5
            continue
    return None
