"""Counters and bounded histograms of the engine's work since its start; they influence no decision."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from threading import RLock

from vivavoce.engine.cost_model import Stage


def log_bounds(low: float, high: float, per_decade: int) -> tuple[float, ...]:
    """Return upper bounds of buckets from `low` up to at least `high`, `per_decade` for each factor of ten."""
    bounds = [low]
    while bounds[-1] < high * (1 - 1e-9):
        bounds.append(low * 10 ** (len(bounds) / per_decade))
    return tuple(bounds)


SECONDS = log_bounds(1e-5, 1e3, per_decade=5)
"""Histogram bounds for times: 10 µs … 1000 s; each bound is 1.58 times the bound before."""
SIZES = tuple(float(2**power) for power in range(13))
"""Histogram bounds for the number of rows in a batch: 1, 2, 4 … 4096."""


@dataclass
class Histogram:
    """Values ≥ 0, counted by bucket. `bounds`: inclusive upper bounds; the last of `counts` counts larger values."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0
    maximum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def __repr__(self) -> str:
        return f"<{self.count} values, {self.total:.4g} in all, {self.maximum:.4g} at most>"

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times
        self.maximum = max(self.maximum, value)


_seconds = partial(Histogram, SECONDS)


@dataclass
class StageStatistics:
    """Statistics of one stage: rows and seconds of each batch, and the seconds that each row waited for its batch."""

    stage: Stage
    batch_size: Histogram = field(default_factory=partial(Histogram, SIZES))
    busy_s: Histogram = field(default_factory=_seconds)
    queued_s: Histogram = field(default_factory=_seconds)

    @property
    def batches(self) -> int:
        return self.batch_size.count

    @property
    def rows(self) -> int:
        return int(self.batch_size.total)


@dataclass
class RequestStatistics:
    """Requests by outcome: each is either refused, or accepted and later finished, cancelled or failed."""

    refused: int = 0
    accepted: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0

    @property
    def unfinished(self) -> int:
        return self.accepted - self.finished - self.cancelled - self.failed


@dataclass
class StreamStatistics:
    """Seconds until first chunks, number of chunks, and for late chunks the seconds by which they were late."""

    first_chunk_s: Histogram = field(default_factory=_seconds)
    chunks: int = 0
    lateness_s: Histogram = field(default_factory=_seconds)

    @property
    def underruns(self) -> int:
        return self.lateness_s.count


@dataclass
class SlotStatistics:
    used: int = 0
    peak: int = 0
    total: int = 0


@dataclass
class StatisticsSnapshot:
    """All counters at one moment; waiting: accepted, not yet started; prompt_cache_*: lookups of voices' prompts."""

    stages: tuple[StageStatistics, ...] = field(default_factory=lambda: tuple(map(StageStatistics, Stage)))
    requests: RequestStatistics = field(default_factory=RequestStatistics)
    waiting: int = 0
    streams: StreamStatistics = field(default_factory=StreamStatistics)
    slots: SlotStatistics = field(default_factory=SlotStatistics)
    prompt_cache_hits: int = 0
    prompt_cache_misses: int = 0
    audio_s: float = 0.0

    def stage(self, stage: Stage) -> StageStatistics:
        return next(entry for entry in self.stages if entry.stage is stage)


class Statistics:
    """Holds the counters (`now`). Any thread may change or copy them while it holds `lock`, for microseconds."""

    def __init__(self) -> None:
        # Reentrant: while a thread counts, garbage collection in it may end a request, which is counted, too.
        self.lock, self.now = RLock(), StatisticsSnapshot()
        self._stages = {entry.stage: entry for entry in self.now.stages}

    def batch(self, stage: Stage, rows: int, busy_s: float, queued_s: Iterable[float] = (), batches: int = 1) -> None:
        """Count batches of `rows` rows that took `busy_s` each; queued_s: waiting times of queued rows."""
        with self.lock:
            counted = self._stages[stage]
            counted.batch_size.observe(rows, batches)
            counted.busy_s.observe(busy_s, batches)
            for seconds in queued_s:
                counted.queued_s.observe(seconds)

    def snapshot(self, waiting: int = 0) -> StatisticsSnapshot:
        """Return a copy of all counters; waiting: number of accepted requests that have not started."""
        with self.lock:
            copy = deepcopy(self.now)
        copy.waiting = waiting
        return copy
