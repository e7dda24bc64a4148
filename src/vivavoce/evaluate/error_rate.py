"""Error rates over utterances, each with its 95 % interval."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vivavoce.evaluate.edits import Edits, align
from vivavoce.evaluate.wording import characters, words

_RESAMPLES = 2000
_LARGEST_DRAW = 1 << 20
"""Utterances drawn at a time: memory is bounded, and thousands of small draws would be slow."""
_TAIL = 0.025
_SEED = 0


@dataclass(frozen=True)
class Interval:
    """A figure and the bounds of its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ErrorRate:
    """Errors over all units of all utterances; `low` and `high` bound the 95 % interval of `rate`."""

    errors: int
    total: int
    low: float
    high: float

    @property
    def rate(self) -> float:
        """Errors per unit that was to be said: 0 is perfect, and what was never said can take it above 1."""
        return self.errors / self.total


def word_errors(pairs: Iterable[tuple[str, str]]) -> ErrorRate:
    """The word error rate of (what was to be said, what was heard); texts are compared as `words` gives them.

    Raises:
        ValueError: no words were to be said at all.
    """
    return pooled(_counts(pairs, words))


def character_errors(pairs: Iterable[tuple[str, str]]) -> ErrorRate:
    """The same by `characters`, for Chinese."""
    return pooled(_counts(pairs, characters))


def _counts(pairs: Iterable[tuple[str, str]], split: Callable[[str], list[str]]) -> list[tuple[int, int]]:
    edits: list[Edits] = [align(split(said), split(heard)) for said, heard in pairs]
    return [(edit.errors, edit.total) for edit in edits]


def pooled(counts: Sequence[tuple[int, int]]) -> ErrorRate:
    """One rate of the (errors, units) of all utterances, its interval by bootstrap over the utterances.

    Utterances and not words are drawn anew because errors come in company. If there is no error at all, drawing shows
    none either: the upper bound is then the exact one for `total` independent units, 1 − 0.025^(1/total).
    """
    errors = np.array([count[0] for count in counts], dtype=float)
    totals = np.array([count[1] for count in counts], dtype=float)
    if not totals.sum():
        raise ValueError("nothing was to be said")
    low, high = _bootstrap(errors, totals)
    total = int(totals.sum())
    if not errors.any():
        high = 1 - _TAIL ** (1 / total)
    return ErrorRate(int(errors.sum()), total, low, high)


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of one value per utterance, with its interval by bootstrap."""
    figures = np.array(values, dtype=float)
    low, high = _bootstrap(figures, np.ones_like(figures))
    return Interval(float(figures.mean()), low, high)


def _bootstrap(numerators: NDArray[np.float64], denominators: NDArray[np.float64]) -> tuple[float, float]:
    """2.5th and 97.5th percentile of Σ numerators / Σ denominators over utterances drawn with replacement (Efron)."""
    generator, num = np.random.default_rng(_SEED), len(numerators)
    ratios = np.empty(_RESAMPLES)
    step = max(1, _LARGEST_DRAW // num)
    for first in range(0, _RESAMPLES, step):
        drawn = generator.integers(0, num, (min(step, _RESAMPLES - first), num))
        totals = np.maximum(denominators[drawn].sum(axis=1), 1.0)
        ratios[first : first + step] = numerators[drawn].sum(axis=1) / totals
    low, high = np.quantile(ratios, [_TAIL, 1 - _TAIL])
    return float(low), float(high)
