"""What the engine has done since it started, in counters and bounded histograms.

The loop writes, any thread may take a snapshot. Nothing here decides anything: see cost_model and admission for that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from threading import Lock

from vivavoce.engine.cost_model import Stage
from vivavoce.engine.histogram import SECONDS, SIZES, Histogram, HistogramSnapshot


class RequestEvent(str, Enum):
    """What happens to requests: each is either refused, or accepted and later one of the rest."""

    REFUSED = "refused"
    ACCEPTED = "accepted"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True)
class StageStatistics:
    """One stage.

    batch_size: rows of each batch; busy_s: seconds of each batch (its count is that of the batches, its total the busy
    time); queued_s: seconds that each row waited for its batch.
    """

    stage: Stage
    batch_size: HistogramSnapshot
    busy_s: HistogramSnapshot
    queued_s: HistogramSnapshot

    @property
    def batches(self) -> int:
        """Batches done."""
        return self.batch_size.count

    @property
    def rows(self) -> int:
        """Rows done, summed over the batches."""
        return int(self.batch_size.total)


@dataclass(frozen=True)
class RequestStatistics:
    """How many requests met which end."""

    refused: int
    accepted: int
    finished: int
    cancelled: int
    failed: int

    @property
    def unfinished(self) -> int:
        """Accepted and not at their end."""
        return self.accepted - self.finished - self.cancelled - self.failed


@dataclass(frozen=True)
class StreamStatistics:
    """What listeners met.

    first_chunk_s: seconds from acceptance to the first chunk; chunks: delivered ones; lateness_s: how late each chunk
    came whose listener had played all before it.
    """

    first_chunk_s: HistogramSnapshot
    chunks: int
    lateness_s: HistogramSnapshot

    @property
    def underruns(self) -> int:
        """Chunks that came after their deadline."""
        return self.lateness_s.count


@dataclass(frozen=True)
class SlotStatistics:
    """Slots taken now, the most at any time, and all there are."""

    used: int
    peak: int
    total: int


@dataclass(frozen=True)
class StatisticsSnapshot:
    """Everything at one moment.

    waiting: accepted requests that have not begun; prompt_cache_*: looked-up voices; audio_s: seconds of audio made.
    """

    stages: tuple[StageStatistics, ...]
    requests: RequestStatistics
    waiting: int
    streams: StreamStatistics
    slots: SlotStatistics
    prompt_cache_hits: int
    prompt_cache_misses: int
    audio_s: float

    def stage(self, stage: Stage) -> StageStatistics:
        """The statistics of one stage."""
        return next(entry for entry in self.stages if entry.stage is stage)


class Statistics:
    """The counters; every method may be called from any thread, and takes a lock that is held for microseconds."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._stages = {stage: _StageCounters() for stage in Stage}
        self._requests = dict.fromkeys(RequestEvent, 0)
        self._first_chunk = Histogram(SECONDS)
        self._lateness = Histogram(SECONDS)
        self._chunks = 0
        self._slots = SlotStatistics(0, 0, 0)
        self._prompt_cache_hits = 0
        self._prompt_cache_misses = 0
        self._audio_s = 0.0

    def batch(self, stage: Stage, rows: int, busy_s: float, queued_s: Iterable[float] = ()) -> None:
        """A batch of `rows` rows took `busy_s`; queued_s: what its rows waited, none for rows that never queue."""
        with self._lock:
            counters = self._stages[stage]
            counters.batch_size.observe(rows)
            counters.busy_s.observe(busy_s)
            for seconds in queued_s:
                counters.queued_s.observe(seconds)

    def request(self, event: RequestEvent) -> None:
        """Something happened to a request."""
        with self._lock:
            self._requests[event] += 1

    def first_chunk(self, seconds: float) -> None:
        """A stream got its first chunk so many seconds after its acceptance."""
        with self._lock:
            self._first_chunk.observe(seconds)
            self._chunks += 1

    def chunk(self, lateness_s: float) -> None:
        """A stream got a later chunk, so many seconds after its deadline; ≤ 0: in time."""
        with self._lock:
            self._chunks += 1
            if lateness_s > 0:
                self._lateness.observe(lateness_s)

    def audio(self, seconds: float) -> None:
        """So much audio was made, streamed or not."""
        with self._lock:
            self._audio_s += seconds

    def slots(self, used: int, total: int) -> None:
        """So many slots are taken now."""
        with self._lock:
            self._slots = SlotStatistics(used, max(used, self._slots.peak), total)

    def prompt_cache(self, hit: bool) -> None:
        """A voice's state was found in the cache, or not."""
        with self._lock:
            self._prompt_cache_hits += hit
            self._prompt_cache_misses += not hit

    def snapshot(self, waiting: int = 0) -> StatisticsSnapshot:
        """Everything so far, as of one moment, at which so many accepted requests have not begun."""
        with self._lock:
            return StatisticsSnapshot(
                stages=tuple(counters.snapshot(stage) for stage, counters in self._stages.items()),
                requests=RequestStatistics(**{event.value: count for event, count in self._requests.items()}),
                waiting=waiting,
                streams=StreamStatistics(self._first_chunk.snapshot(), self._chunks, self._lateness.snapshot()),
                slots=self._slots,
                prompt_cache_hits=self._prompt_cache_hits,
                prompt_cache_misses=self._prompt_cache_misses,
                audio_s=self._audio_s,
            )


class _StageCounters:
    def __init__(self) -> None:
        self.batch_size = Histogram(SIZES)
        self.busy_s = Histogram(SECONDS)
        self.queued_s = Histogram(SECONDS)

    def snapshot(self, stage: Stage) -> StageStatistics:
        return StageStatistics(stage, self.batch_size.snapshot(), self.busy_s.snapshot(), self.queued_s.snapshot())
