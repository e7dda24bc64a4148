"""Clicks where a stream's chunks meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_NEAR_S = 0.002
_AROUND_S = 0.025
_HOP_S = 0.005
_STRONG = 0.9
"""Quantile of the bends on one side that stands for its strong ones: pulses of the voice, or hiss."""
_FLOOR = 1e-4
"""Of second differences: rounding to 16 bits makes as much, so that nothing stands out in digital silence."""
_QUANTILE = 0.999
_BLOCK = 1000
"""Places that are looked at together; bounds the memory for long speech."""


@dataclass(frozen=True)
class JoinClicks:
    """How abrupt a stream is at its joins, beside whole speech of the same texts and seeds."""

    joins: int
    over: int
    """Joins more abrupt than 99.9 % of all places in whole speech; about 0.1 % of clean joins are."""
    worst_ratio: float | None
    """The most abrupt join over that 99.9th percentile: above 1 it stands out. None: there are no joins, or
    nothing but silence to compare with."""
    median_ratio: float | None
    """The median join over the median place in whole speech; 1 where joins are like any other place."""


def abruptness(samples: NDArray[np.float32], sample_rate: int, places: Sequence[int]) -> NDArray[np.float64]:
    """How much the sharpest bend within 2 ms of each place stands out of the 25 ms before and after: [places].

    A bend is the second difference |x₊ − 2x + x₋|: a step or a spike shows in it, speech's own slow waves hardly.
    The sharpest is divided by the strong bends (90th percentile, plus 1e-4) of the side that has the stronger ones, so
    that neither a hissing sound nor the start of a sound after silence counts as a click.
    """
    near, around = round(_NEAR_S * sample_rate), round(_AROUND_S * sample_rate)
    bends = np.abs(np.diff(samples.astype(np.float64), n=2))
    # After padding, the bend at sample p stands at p + around.
    padded = np.pad(bends, (around + 1, around + 1), mode="edge" if len(bends) else "constant")
    rows = np.lib.stride_tricks.sliding_window_view(padded, 2 * around + 1)
    found = np.zeros(len(places))
    for first in range(0, len(places), _BLOCK):
        some = rows[np.asarray(places[first : first + _BLOCK])]
        sharpest = some[:, around - near : around + near + 1].max(axis=1)
        before = np.quantile(some[:, : around - near], _STRONG, axis=1)
        after = np.quantile(some[:, around + near + 1 :], _STRONG, axis=1)
        found[first : first + _BLOCK] = sharpest / (np.maximum(before, after) + _FLOOR)
    return found


def abruptness_everywhere(samples: NDArray[np.float32], sample_rate: int) -> NDArray[np.float64]:
    """The same at a place every 5 ms: what is usual in this audio."""
    return abruptness(samples, sample_rate, range(0, len(samples), round(_HOP_S * sample_rate)))


def join_clicks(at_joins: NDArray[np.float64], usual: NDArray[np.float64]) -> JoinClicks:
    """Compare the abruptness at joins [joins] with that of all places in whole speech [places]."""
    if not len(at_joins) or not len(usual):
        return JoinClicks(len(at_joins), 0, None, None)
    limit, middle = float(np.quantile(usual, _QUANTILE)), float(np.median(usual))
    return JoinClicks(
        joins=len(at_joins),
        over=int((at_joins > limit).sum()),
        worst_ratio=float(at_joins.max()) / limit if limit else None,
        median_ratio=float(np.median(at_joins)) / middle if middle else None,
    )
