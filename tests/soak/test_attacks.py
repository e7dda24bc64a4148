"""The verdict on an attacker; `make soak` lets them loose."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.soak.attacks import Figures, broken
from vivavoce_bench.measure import Arrival, PlaybackTrace


def figures(**different: object) -> Figures:
    """Of a while in which all was well."""
    given = {"first_s": [0.2, 0.3], "asked": Counter(newcomer=9, upload=9, listener=2)}
    memory = {"server": [100.0, 150.0, 105.0], "engine": [1000.0, 1200.0, 1090.0]}
    return Figures(**{**given, "streams": [stream(0.0)], "memory_mb": memory, **different})  # type: ignore[arg-type]


def stream(silence_s: float) -> PlaybackTrace:
    """Three seconds, of which the second one comes so late."""
    times = (0.0, 1.0 + silence_s, 2.0 + silence_s)
    return PlaybackTrace(0.0, 3.0, 24_000, tuple(Arrival(at_s, 24_000) for at_s in times))


def test_who_takes_nothing_is_not_accused() -> None:
    assert broken(figures(), figures()) == []
    # What was as bad before is none of his doing.
    bad = {"streams": [stream(2.0)], "first_s": [4.0], "lost": Counter({"upload 429": 9})}
    assert broken(figures(**bad), figures(**bad)) == []
    assert broken(figures(), figures(streams=[stream(0.05)], first_s=[0.5, 0.7])) == []


@pytest.mark.parametrize(
    ("taken", "told"),
    [
        ({"streams": [stream(0.5)]}, "listeners: 1 silences instead of 0, 0.5 s"),
        ({"first_s": [0.2, 0.9]}, "newcomers: first audio (p90) comes 0.60 s later"),
        ({"first_s": [0.8, 0.9]}, "newcomers: first audio (p50) comes 0.60 s later"),
        ({"first_s": []}, "newcomers: nobody was heard"),
        ({"lost": Counter({"newcomer 503": 3})}, "newcomers: 3 of 9 were turned away, 0 of 9 before"),
        ({"lost": Counter({"upload 429": 9})}, "uploads: 9 of 9 were turned away"),
        ({"health_s": {"live": 3.0, "ready": 0.1}}, "health: /health/live took 3.0 s"),
        ({"memory_mb": {"server": [100.0, 900.0, 111.0]}}, "memory: the server had 100 MB and keeps 111 MB"),
        ({"log_mb": 20.0}, "log: 20.0 MB"),
        ({"came": {"it broke: ValueError()": 1}}, "attacker: it broke: ValueError()"),
    ],
)
def test_what_an_attacker_takes_is_told(taken: dict[str, object], told: str) -> None:
    assert any(line.startswith(told) for line in broken(figures(), figures(**taken)))
