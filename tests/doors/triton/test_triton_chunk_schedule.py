"""The documents' rules, as a table."""

from __future__ import annotations

import pytest

from vivavoce.doors.triton.models.chunk_schedule import ChunkSchedule
from vivavoce.engine.chunk_policy import ChunkPolicy


def hops(rule: str, tokens: int) -> list[int]:
    """Chunks of a sequence whose tokens are all there from the start."""
    schedule = ChunkSchedule(ChunkPolicy.parse(rule), 3, 25)
    found, spoken = [], 0
    while True:
        hop = schedule.hop(chunks=len(found), spoken=spoken, pending=tokens - spoken, prompt_tokens=50, elapsed_s=1.0)
        if tokens - spoken < hop + schedule.lookahead:
            return [*found, tokens - spoken]
        found, spoken = [*found, hop], spoken + hop


@pytest.mark.parametrize(
    ("rule", "tokens", "expected"),
    [
        ("exponential", 17, [17]),
        ("exponential", 18, [15, 3]),
        ("exponential", 750, [15, 25, 50, 100, 200, 360]),
        ("equal", 27, [27]),
        ("equal", 28, [25, 3]),
        ("equal", 100, [25, 25, 25, 25]),
        ("time_based", 60, [15, 15, 15, 15]),
    ],
)
def test_hops(rule: str, tokens: int, expected: list[int]) -> None:
    assert hops(rule, tokens) == expected


@pytest.mark.parametrize(
    ("chunks", "spoken", "pending", "elapsed_s", "expected"),
    [
        (0, 0, 500, 0.0, 15),  # the first two are 15 whatever is there
        (1, 15, 500, 0.01, 15),
        (2, 30, 70, 0.1, 75),  # 1.2 s made in 0.1 s: 22 chunks ahead, (70 // 15 + 1) · 15
        (2, 30, 70, 0.35, 75),  # m = 4.86
        (2, 30, 70, 0.4, 60),  # m = 4 exactly, which is not more: 70 // 15 · 15
        (2, 30, 70, 0.59, 60),  # m = 2.07
        (2, 30, 70, 0.6, 15),  # m = 2 exactly
        (2, 30, 70, 5.0, 15),  # behind the clock
        (2, 30, 14, 0.59, 15),  # never below 15
        (2, 30, 14, 0.0, 15),  # a clock that has not moved
        (3, 60, 15, 0.1, 30),
    ],
)
def test_time_based(chunks: int, spoken: int, pending: int, elapsed_s: float, expected: int) -> None:
    schedule = ChunkSchedule(ChunkPolicy.time_based(), 3, 25)
    asked = {"chunks": chunks, "spoken": spoken, "pending": pending, "prompt_tokens": 0, "elapsed_s": elapsed_s}
    assert schedule.hop(**asked) == expected
