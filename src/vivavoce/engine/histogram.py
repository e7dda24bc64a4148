"""Histograms over fixed, logarithmic buckets: bounded memory, whatever is counted and for however long."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass


def log_bounds(low: float, high: float, per_decade: int) -> tuple[float, ...]:
    """Upper bounds of buckets from `low` until `high` is reached, `per_decade` for each factor of ten."""
    bounds = [low]
    while bounds[-1] < high * (1 - 1e-9):
        bounds.append(low * 10 ** (len(bounds) / per_decade))
    return tuple(bounds)


SECONDS = log_bounds(1e-5, 1e3, per_decade=5)
"""10 µs … 1000 s; a bucket is 1.58 times as wide as the one before."""
SIZES = tuple(float(2**power) for power in range(13))
"""1, 2, 4 … 4096."""


@dataclass(frozen=True)
class HistogramSnapshot:
    """What was counted.

    bounds: upper bounds of the buckets, inclusive; counts: values per bucket, one more than bounds, for what lies above
    the last; total: sum of the values; maximum: the largest, 0 where there is none.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float
    maximum: float

    @property
    def count(self) -> int:
        """Values counted."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Mean value; 0 where there is none."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """A value that at least `share` (0 … 1) of the values do not exceed: its bucket's bound, or the maximum."""
        if not 0 <= share <= 1:
            raise ValueError(f"quantile: {share} is outside of 0 … 1")
        needed, seen = share * self.count, 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            seen += count
            if count and seen >= needed:
                return min(bound, self.maximum)
        return self.maximum


class Histogram:
    """Counts values, ≥ 0, in one thread at a time."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0
        self._maximum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value
        self._maximum = max(self._maximum, value)

    def snapshot(self) -> HistogramSnapshot:
        """What was counted so far."""
        return HistogramSnapshot(self._bounds, tuple(self._counts), self._total, self._maximum)
