"""Percentiles, playback and the flat keys, by hand."""

from __future__ import annotations

import pytest
from bench_fakes import RATE, outcome

from vivavoce.bench.figures import figures
from vivavoce.bench.outcome import Arrival, Ending
from vivavoce.bench.percentiles import percentile
from vivavoce.bench.playback import play


@pytest.mark.parametrize(
    ("percent", "expected"), [(1, 1), (20, 1), (21, 2), (50, 3), (60, 3), (80, 4), (90, 5), (99, 5), (100, 5)]
)
def test_a_percentile_is_the_nearest_rank(percent: float, expected: float) -> None:
    assert percentile([5, 3, 1, 4, 2], percent) == expected


def test_of_a_hundred_values_the_99th_is_not_the_largest() -> None:
    assert percentile(list(range(1, 101)), 99) == 99
    assert percentile(list(range(1, 100)), 99) == 99


def test_a_listener_who_is_never_kept_waiting() -> None:
    heard = play([Arrival(2.0, 1000), Arrival(2.4, 500), Arrival(3.5, 100)], RATE)
    # 1000 ms from 2.0 on: 600 left at 2.4; then 1500 from 2.0 on: nothing left at 3.5, which is just in time.
    assert heard.margins_s == pytest.approx((0.6, 0.0))
    assert (heard.underruns, heard.stall_s) == (0, 0)


def test_a_listener_who_waits_plays_on_from_there() -> None:
    heard = play([Arrival(1.0, 200), Arrival(1.5, 200), Arrival(1.6, 100), Arrival(2.0, 100)], RATE)
    # Played out at 1.2, silent until 1.5; 1.7 when the third comes, 1.8 after it: silent until 2.0.
    assert heard.margins_s == pytest.approx((-0.3, 0.1, -0.2))
    assert heard.underruns == 2
    assert heard.stall_s == pytest.approx(0.5)


def test_one_piece_leaves_nothing_to_wait_for() -> None:
    heard = play([Arrival(1.0, 200)], RATE)
    assert (heard.margins_s, heard.underruns, heard.stall_s) == ((), 0, 0)


def test_the_figures_of_a_load() -> None:
    keys = figures(
        [
            outcome((1.2, 400), (1.5, 600), start_s=1.0, end_s=1.5),
            outcome((1.4, 100), (1.7, 100), (1.75, 800), start_s=1.0, end_s=2.0),
            outcome(start_s=1.1, end_s=1.1, ending=Ending.REFUSED),
            outcome((1.3, 5000), start_s=1.2, end_s=5.0, ending=Ending.FAILED),
        ]
    )
    assert {name: keys[name] for name in ("requests", "ok", "refused", "failed", "chunks")} == {
        "requests": 4,
        "ok": 2,
        "refused": 1,
        "failed": 1,
        "chunks": 5,
    }
    expected = {
        "ttfb_ms_mean": 300,
        "ttfb_ms_p50": 200,
        "ttfb_ms_p90": 400,
        "ttfb_ms_p99": 400,
        "ttfb_ms_max": 400,
        "gap_ms_mean": 650 / 3,
        "gap_ms_p50": 300,
        "gap_ms_p99": 300,
        "gap_ms_max": 300,
        "underruns": 1,
        "underrun_requests": 1,
        "underrun_share": 0.5,
        "stall_s": 0.2,
        "margin_ms_min": -200,
        "rtf": 0.75,
        "rtf_p50": 0.5,
        "rtf_p99": 1.0,
        "audio_s": 2.0,
        "wall_s": 4.0,
        "throughput_audio_s_per_s": 0.5,
    }
    assert {name: keys[name] for name in expected} == pytest.approx(expected)


@pytest.mark.parametrize("outcomes", [[], [outcome(end_s=1.0, ending=Ending.REFUSED)]])
def test_what_was_not_measured_is_none(outcomes: list) -> None:  # type: ignore[type-arg]
    keys = figures(outcomes)
    for name in ("ttfb_ms_p50", "gap_ms_max", "rtf", "margin_ms_min", "underrun_share"):
        assert keys[name] is None
    assert (keys["ok"], keys["underruns"], keys["audio_s"]) == (0, 0, 0)
