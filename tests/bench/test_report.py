"""Percentiles, playback, the flat keys of a load by hand, and the forms in which they leave: JSON, rows, a picture."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_fakes import outcome

from vivavoce.errors import InvalidRequest, MissingDependency
from vivavoce_bench.load import Ending, first_sound
from vivavoce_bench.measure import Arrival, PlaybackTrace, percentile
from vivavoce_bench.report import Report, draw, figure_rows, figures, latency_rows

OUTCOMES = [
    outcome((0.1, 300), (0.5, 500)),
    outcome((0.2, 300), (0.3, 500), start_s=0.1),
    outcome(end_s=0.4, ending=Ending.REFUSED),
    outcome(end_s=0.4, ending=Ending.FAILED, problem="no"),
]


@pytest.mark.parametrize(
    ("percent", "expected"), [(1, 1), (20, 1), (21, 2), (50, 3), (60, 3), (80, 4), (90, 5), (99, 5), (100, 5)]
)
def test_a_percentile_is_the_nearest_rank(percent: float, expected: float) -> None:
    assert percentile([5, 3, 1, 4, 2], percent) == expected


@pytest.mark.parametrize(
    ("pieces", "margins_s"),
    [
        # 1000 ms from 2.0 on: 600 left at 2.4; then 1500 from 2.0 on: nothing left at 3.5, which is just in time.
        ([(2.0, 1000), (2.4, 500), (3.5, 100)], [0.6, 0.0]),
        # Played out at 1.2, silent until 1.5; 1.7 when the third comes, 1.8 after it: silent until 2.0.
        ([(1.0, 200), (1.5, 200), (1.6, 100), (2.0, 100)], [-0.3, 0.1, -0.2]),
    ],
)
def test_a_listener_who_is_never_kept_waiting_and_one_who_plays_on(
    pieces: list[tuple[float, int]], margins_s: list[float]
) -> None:
    assert outcome(*pieces).margins_s == pytest.approx(margins_s)


@pytest.mark.parametrize(
    ("sounds_at", "heard_s"),
    [((0,), 0.5), ((100,), 0.6), ((None, 50), 0.75), ((None, None, 0), 1.5), ((None,) * 3, None)],
)
def test_the_first_sound_is_heard_when_the_silence_before_it_was_played(
    sounds_at: tuple[int | None, ...], heard_s: float | None
) -> None:
    """The second piece comes while the first one is played, the third one too late."""
    pieces = zip((1.5, 1.6, 2.5), (200, 100, 100), (*sounds_at, 0, 0), strict=False)
    trace = PlaybackTrace(1.0, 3.0, 1000, tuple(Arrival(at_s, count, sound_at=place) for at_s, count, place in pieces))
    assert trace.sound_s == pytest.approx(heard_s)


def test_the_place_of_the_first_sound() -> None:
    samples = np.zeros(1000, np.float32)
    samples[0], samples[500:] = 0.02, -0.004
    assert (first_sound(samples), first_sound(samples[:480]), first_sound(samples[:0])) == (480, None, None)
    assert first_sound(samples[500:510] * 100) == 0


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


def report(**settings: Any) -> Report:
    return Report({"model": "mini", "concurrency": 2}, OUTCOMES, **settings)


def test_the_json_is_flat_and_says_its_form(tmp_path: Path) -> None:
    report(resources={"rss_bytes": 5}, quality={"wer_free": 0.12345678}).save(tmp_path / "bench.json")
    keys = json.loads((tmp_path / "bench.json").read_text())
    assert keys["schema"] == "vivavoce-bench-1"
    assert not [name for name, value in keys.items() if isinstance(value, (dict, list))]
    assert keys["ttfb_ms_p99"] == 100.0
    assert (keys["model"], keys["concurrency"], keys["rss_bytes"]) == ("mini", 2, 5)
    assert keys["wer_free"] == 0.123457


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"json: .* cannot be written"):
        report().save(tmp_path / "missing" / "bench.json")
    with pytest.raises(InvalidRequest, match=r"plot: .* cannot be written"):
        draw(OUTCOMES, tmp_path / "missing" / "bench.png")


def test_rows_show_each_figure_once() -> None:
    keys = report(
        resources={"rss_bytes": 2**31, "gpu_memory_bytes": 2**30, "gpu_memory_reserved_bytes": 2**31}
    ).to_json()
    header, rows = latency_rows(keys)
    assert header[-1] == "n"
    assert rows[0] == ["first audio (ms)", *6 * ["100.0"], "2"]
    assert rows[1] == ["first sound (ms)", *6 * ["100.0"], "2"]
    assert rows[2] == ["between chunks (ms)", "250.0", "100.0", *4 * ["400.0"], "2"]
    assert {len(row) for row in rows} == {len(header)}
    figures = dict(figure_rows(keys))
    assert figures["requests"] == "2 of 4 spoken, 1 refused, 1 failed"
    assert figures["underruns"] == "1 in 1 of 2 requests, 0.100 s silent"
    assert figures["GPU memory"] == "1.00 GiB used at most, 2.00 GiB reserved"
    assert "WER, free" not in figures


@pytest.mark.parametrize("outcomes", [OUTCOMES, [], OUTCOMES[2:]])
def test_a_picture_is_drawn(outcomes: list, tmp_path: Path) -> None:  # type: ignore[type-arg]
    pytest.importorskip("matplotlib", reason="needs the extra eval")
    draw(outcomes, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_a_missing_matplotlib_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependency, match=r"plot: .* pip install 'vivavoce\[eval\]'"):
        draw([], tmp_path / "bench.png")
