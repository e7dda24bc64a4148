"""One comparison: how far ours is from the golden, and how far it may be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Check:
    """`error` beyond `tolerance`, or no number at all, is a failure."""

    name: str
    error: float
    tolerance: float
    note: str = ""

    @property
    def passed(self) -> bool:
        return self.error <= self.tolerance

    def line(self) -> str:
        verdict = "ok  " if self.passed else "FAIL"
        return f"{verdict} {self.name:<72} error {self.error:<10.3g} tolerance {self.tolerance:g} {self.note}".rstrip()


@dataclass(frozen=True)
class Skip:
    """A golden that was not compared, and why."""

    name: str
    why: str


def guarded(name: str, outcomes: Iterable[Check | Skip]) -> Iterator[Check | Skip]:
    """The outcomes of one case; an exception is that case's failure and does not end the run."""
    try:
        yield from outcomes
    except Exception as error:
        yield Check(name, float("inf"), 0, f"{type(error).__name__}: {error}".splitlines()[0])


def close(name: str, ours: ArrayLike, golden: ArrayLike, tolerance: float) -> Check:
    """Largest absolute difference; infinite where only one of the two is, or where shapes differ."""
    a, b = np.asarray(ours, np.float64), np.asarray(golden, np.float64)
    if a.shape != b.shape:
        return Check(name, float("inf"), tolerance, f"shape {a.shape} instead of {b.shape}")
    if a.size == 0:
        return Check(name, 0.0, tolerance)
    same = a == b  # equal infinities
    difference = np.where(same, 0.0, np.abs(np.where(same, 0.0, a) - np.where(same, 0.0, b)))
    return Check(name, float(np.where(np.isnan(difference), np.inf, difference).max()), tolerance)


def close_rms(name: str, ours: ArrayLike, golden: ArrayLike, tolerance: float) -> Check:
    """Root of the mean squared difference."""
    a, b = np.asarray(ours, np.float64), np.asarray(golden, np.float64)
    if a.shape != b.shape:
        return Check(name, float("inf"), tolerance, f"shape {a.shape} instead of {b.shape}")
    error = float(np.sqrt(np.square(a - b).mean()))
    return Check(name, error if np.isfinite(error) else float("inf"), tolerance)


def equal_ids(name: str, ours: Sequence[int], golden: Sequence[int]) -> Check:
    """How many ids differ, length differences included."""
    a, b = list(map(int, ours)), list(map(int, golden))
    wrong = sum(x != y for x, y in zip(a, b, strict=False)) + abs(len(a) - len(b))
    first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return Check(name, wrong, 0, f"first at {first}" if wrong else "")


def equal(name: str, ours: object, golden: object) -> Check:
    """0 or 1."""
    same = ours == golden
    return Check(name, 0 if same else 1, 0, "" if same else f"{str(ours)[:80]!r} instead of {str(golden)[:80]!r}")
