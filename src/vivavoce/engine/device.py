"""The engine's device and process: queues of work, CUDA graphs, copies to the device, threads, garbage collection."""

from __future__ import annotations

import ctypes
import gc
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.engine.cost_model import ShortBatches
from vivavoce.models.layers import in_turn
from vivavoce_kernels.layouts import SHORT_FRAMES, SHORT_ROWS

T = TypeVar("T")
Launch = Callable[[], None]
"""Work for a CUDA graph: it uses tensors at fixed addresses, never waits, and makes the same launches each time."""

MOST_ROWS, LEAST_ROWS = 256, 8
"""Most and least rows of a common batch size (`BatchSizes`)."""
BLOCK = 64
"""The positions of a batch beyond the largest common size are rounded up to a multiple of this number."""
DEPTH = 2
"""Pieces of work queued ahead on a CUDA device: with more it idles less, with fewer urgent work starts sooner."""


@dataclass(eq=False)
class QueueEvent:
    """A point in a queue's order, reached once all work before it is done; on a CPU it is reached at once.

    at: the time at which it was reached, in seconds of the host's clock.
    """

    at: float

    def reached(self, wait: bool = False) -> bool:
        """Return whether the device has finished the work queued before the event; wait: block until it has."""
        return True

    def seconds_until(self, end: QueueEvent) -> float:
        return end.at - self.at


class CudaEvent(QueueEvent):
    """A point in a CUDA stream. When it is deleted, its event returns to `spare`: timing events are slow to create."""

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
    """A queue of work that runs in the order of its launches; two queues of one CUDA device overlap.

    Args:
        device: on CUDA the queue has its own stream; on another device a launch is done when it returns.
        urgent: the device prefers this queue's work to the work of other queues.
        clock: returns the host's time in seconds.
    """

    def __init__(
        self, device: torch.device, *, urgent: bool = False, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._stream = torch.cuda.Stream(device, priority=-1 if urgent else 0) if device.type == "cuda" else None
        self.on_cuda = self._stream is not None
        self._depth = DEPTH if self.on_cuda else 1
        self.clock = clock
        self._spans: deque[tuple[QueueEvent, QueueEvent, Callable[[float], None]]] = deque()
        """Start and end of each piece of work, and the callback that gets its seconds."""
        self._spare: list[torch.cuda.Event] = []
        self.open = True
        self._usual_s = 0.0
        """Seconds that the newest finished piece of work took."""
        self._oldest_at = 0.0
        """The estimated time on the host's clock at which the device began the oldest unfinished piece of work."""
        self._last: QueueEvent | None = None
        """End of the newest piece of work; None if untimed work was enqueued after it."""

    @property
    def busy(self) -> bool:
        """Whether any launched work has not been reported as finished by `settle`."""
        return bool(self._spans)

    @property
    def due_at(self) -> float:
        """The estimated end of the oldest unfinished piece of work, on the host's clock; ∞ if all work is finished."""
        return self._oldest_at + self._usual_s if self._spans else inf

    def entered(self) -> AbstractContextManager[object]:
        """Return the context in which the queue's tensors are made and read; work in it is not timed."""
        self._last = None
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def mark(self) -> QueueEvent:
        """Return an event that is reached after all work that was launched so far."""
        if self._stream is None:
            return QueueEvent(self.clock())
        event = self._spare.pop() if self._spare else torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return CudaEvent(event, self._spare)

    def launch(self, work: Callable[[], T], on_done: Callable[[float], None]) -> T:
        """Launch a piece of work; once it is done, `settle` calls `on_done` with its seconds."""
        # Work that is launched while earlier work runs starts when the earlier work ends.
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
        """Report the seconds of finished pieces; `wait`: block until the oldest piece is finished."""
        while self._spans and self._spans[0][1].reached(wait):
            wait = False
            start, end, on_done = self._spans.popleft()
            self.open = True
            self._oldest_at = self.clock()
            self._usual_s = start.seconds_until(end)
            on_done(self._usual_s)


def fitting(sizes: Sequence[int], count: int) -> int | None:
    """Return the smallest of the ascending `sizes` that is at least `count`; None if all sizes are smaller."""
    return next((size for size in sizes if size >= count), None)


def rounded(size: int, to: int) -> int:
    return -(-size // to) * to


def sizes_within(sizes: Sequence[int], most: int | None) -> tuple[int, ...]:
    """Return the ascending `sizes` up to `most`, and always the smallest size; if `most` is None, all sizes."""
    return tuple(size for size in sizes if most is None or size <= max(most, sizes[0]))


def sizes_for(sizes: Sequence[int], most: int | None) -> tuple[int, ...]:
    """Return the ascending `sizes` to which counts from 1 to `most` can be rounded up; if `most` is None, all sizes."""
    smaller = (0, *sizes)
    return tuple(size for size, before in zip(sizes, smaller, strict=False) if most is None or before < most)


def in_order_of_recording(sizes: Sequence[int], most: int | None) -> tuple[int, ...]:
    """Return the largest size, then `sizes_for` in descending order. If the largest size's graph is recorded first, the
    intermediate tensors of all other graphs fit into its memory, even if they are recorded much later.
    """
    return tuple(dict.fromkeys((sizes[-1], *reversed(sizes_for(sizes, most)))))


@dataclass(frozen=True)
class Bucket:
    """The padded size of a packed batch, whether rows have pages of state, and whether all rows are short."""

    positions: int
    rows: int
    paged: bool
    short: bool = False


@dataclass(frozen=True)
class BatchSizes:
    """Ascending sizes in positions. Each has room for positions / `per_row` rows, within LEAST_ROWS … MOST_ROWS."""

    positions: tuple[int, ...]
    per_row: int

    def within(self, most: int | None) -> BatchSizes:
        """Return the sizes up to `most` positions, and always the smallest size; if `most` is None, all sizes."""
        return BatchSizes(sizes_within(self.positions, most), self.per_row)

    def common(self, positions: int, paged: bool) -> Bucket:
        return Bucket(positions, min(max(positions // self.per_row, LEAST_ROWS), MOST_ROWS), paged)

    def bucket(self, positions: int, rows: int, paged: bool) -> Bucket:
        """Return the smallest common size with room for this batch; for a larger batch, its own size rounded up."""
        for size in self.positions:
            common = self.common(size, paged)
            if positions <= size and rows <= common.rows:
                return common
        return Bucket(rounded(positions, BLOCK), rounded(rows, LEAST_ROWS), paged)

    def is_common(self, bucket: Bucket) -> bool:
        """Return whether this is a common size, which many batches share."""
        common = self.common(bucket.positions, bucket.paged)
        return bucket.positions in self.positions and bucket == replace(common, short=bucket.short)


TOKEN_SIZES = BatchSizes((32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192), 8)
"""Batch sizes, in tokens, for which graphs of the flow's encoder are recorded."""
FRAME_SIZES = BatchSizes(
    (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 10240, 12288, 16384), 16
)
"""Batch sizes, in mel frames, for which graphs of the flow's estimator are recorded."""
SHORT_BATCHES = ShortBatches(SHORT_FRAMES, SHORT_ROWS)
"""Limits of short batches in a flow that has kernels for short batches."""


class Graphs:
    """CUDA graphs of one queue. They share the memory of their intermediate tensors, so they must run one at a time.

    On devices other than CUDA nothing is recorded, and the work itself runs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self.captured = 0

    def capture(self, work: Launch) -> Launch:
        """Record `work`, and return a function that does the same in one launch.

        The work runs once before it is recorded, so that libraries have chosen their kernels and compilers are done.
        Its results must not depend on the number of runs. Call this on the queue's own stream.
        """
        self.captured += 1
        if self._device.type != "cuda":
            return work
        stream = torch.cuda.current_stream(self._device)
        work()
        # The stream finishes the first run, and the set-up of libraries in it, before the recording begins.
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as one that loads a voice, may use the device meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            work()
        return graph.replay


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Return a copy on the device; to CUDA it is copied asynchronously, from pinned memory."""
    if device.type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def upload(arrays: Sequence[NDArray[Any]], device: torch.device, dtype: torch.dtype = torch.int64) -> list[Tensor]:
    """Return the arrays on the device, as integers of type `dtype`; they are sent in one asynchronous copy."""
    sizes = [array.size for array in arrays]
    staged = torch.empty(sum(sizes), dtype=dtype, pin_memory=device.type == "cuda")
    np.concatenate([array.ravel() for array in arrays], out=staged.numpy(), casting="same_kind")
    whole = staged.to(device, non_blocking=True)
    return [part.view(array.shape) for part, array in zip(torch.split(whole, sizes), arrays, strict=True)]


def copy_into(target: Tensor, values: Tensor) -> None:
    """Overwrite `target` with `values`; like `to_device`, do not wait for the device."""
    target.copy_(values.pin_memory() if target.device.type == "cuda" else values, non_blocking=True)


class HostThreads:
    """The threads that compute on a host without a GPU: the engine's own thread, and a helper that shares its work.

    torch's own threads wait for one another in a busy loop at every operation. While other processes are busy, each
    wait lasts until the processor is free again: a short sentence took 15 s and more. So on two processors each of our
    two threads computes alone, and they wait for each other about 40 times in a sentence instead of 50,000 times. With
    more processors each of our two threads has half of torch's threads.

    Within its context the object is a `PairRunner` (`vivavoce.models.layers`); leaving the context ends the helper.

    count: the number of torch's threads for both together; None: the number that torch uses in the calling thread.
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
        try:
            later = self._helper.submit(torch.inference_mode()(second))
        except RuntimeError:  # the interpreter is ending (Ctrl-C), and its executors take no more work
            return in_turn(first, second)
        try:
            return first(), later.result()
        finally:
            wait((later,))


_freezing = RLock()
"""Reentrant, because a collection may finalize an unused engine, and the finalizer calls `GcFreeze.end`."""
_frozen_by: set[int] = set()


class GcFreeze:
    """Keeps garbage collections from visiting long-lived objects, until every engine that asked for it has ended.

    A full collection stops all Python code, and so every stream, while it visits each object of the process: 0.2 s for
    the 320,000 objects of torch and an engine. The objects of a warm engine stay until it is closed, so they are
    frozen: collections then visit only newer objects, and take very little time.
    """

    def begin(self) -> None:
        """Collect garbage, then freeze all objects that are left; a second call freezes newer objects, too."""
        with _freezing:
            gc.collect()
            gc.freeze()
            _frozen_by.add(id(self))

    def end(self) -> None:
        """Unfreeze the objects, unless another engine still needs them frozen; a second call does nothing."""
        with _freezing:
            if id(self) in _frozen_by:
                _frozen_by.remove(id(self))
                if not _frozen_by:
                    gc.unfreeze()


_SOFT = 1
"""OpenMP's constant `omp_pause_soft`: threads are freed, settings are kept (OpenMP 5.0, section 3.2.44)."""


def release_idle_team() -> None:
    """Free the calling thread's OpenMP threads; without GNU OpenMP do nothing.

    torch's CPU operations run in teams of OpenMP threads, and every Python thread that ran such an operation keeps its
    team. GNU's library counts the threads of all teams. If they outnumber the processors, they sleep instead of waiting
    actively, and waking them slows each of the thousand short operations of a decode step: with one idle caller an
    engine was half as fast. So callers free their teams when they submit work; their next operation makes a new team.
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
