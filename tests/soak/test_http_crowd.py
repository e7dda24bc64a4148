"""The soak of a server in small; `make soak` runs it in full."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.soak.http_crowd import Memory, Plan, difference, gauge, growth, implausible, soak_http, too_much
from vivavoce_bench.texts import SENTENCES

LENGTHS = {"min_ratio": 2, "max_ratio": 2}
"""Random weights do not end by themselves."""


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from Linux' /proc")
def test_everybody_hears_his_own_text_and_nothing_is_left(babble: Path, tmp_path: Path) -> None:
    variables = {"OMP_NUM_THREADS": "1", "VIVAVOCE_MODEL_WARM_UP_S": "0", "VIVAVOCE_MODEL_TEXT_PROCESSES": "0"}
    plan = Plan(str(babble), 8, 4.0, SENTENCES[:3], 1, LENGTHS, variables)
    report = soak_http(plan, tmp_path)
    assert report.broken == [], str(report)
    assert report.audio_s > 3
    assert "all kept" in str(report)


def test_what_belongs_to_another_request_is_told_from_rounding() -> None:
    chance = np.random.default_rng(0)
    alone, other = (chance.normal(0, 3000, 24_000).astype("<i2") for _ in range(2))
    rounded = (alone + chance.integers(-40, 41, len(alone))).astype("<i2")
    assert difference(alone.tobytes(), alone.tobytes()) == 0
    assert 0 < difference(rounded.tobytes(), alone.tobytes()) < 0.02
    assert difference(alone[:1200].tobytes(), alone.tobytes()) == 0
    assert difference(other.tobytes(), alone.tobytes()) > 1
    assert difference(other[:1200].tobytes(), alone.tobytes()) > 1
    assert difference(alone.tobytes() + b"\0\0", alone.tobytes()) == float("inf")


def test_wrong_lengths_memory_that_grows_and_missing_gauges_are_noticed() -> None:
    second = bytes(48_000)
    assert implausible("Of course I will.", second) == ""
    assert "0.25 s" in implausible("Of course I will.", second[:12_000])
    assert "4.00 s" in implausible("Of course I will.", 4 * second)
    flat = [Memory(at_s, 100.0 if at_s else 60.0, 500.0) for at_s in range(100)]
    rising = [Memory(at_s, 100.0 + at_s, 500.0 + at_s) for at_s in range(200)]
    assert growth(flat) == {"server": 0.0, "engine": 0.0}
    assert list(too_much(growth(flat))) == []
    assert [line.split(":")[0] for line in too_much(growth(rising))] == ["memory of the server", "memory of the engine"]
    page = "# TYPE vivavoce_slots_used gauge\nvivavoce_slots_used 3.0\n"
    assert gauge(page, "vivavoce_slots_used") == 3
    with pytest.raises(KeyError):
        gauge(page, "vivavoce_streams_active")
