"""Percentiles that are values that were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest rank: the smallest of the values that at least `percent` of 100 of them do not exceed.

    Of fewer than 100 values the 99th percentile is the largest. values: not empty; percent: above 0, at most 100.
    """
    return sorted(values)[math.ceil(percent * len(values) / 100) - 1]
