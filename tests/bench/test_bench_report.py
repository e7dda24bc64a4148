"""The forms in which figures leave: JSON, rows, a picture."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest
from bench_fakes import outcome

from vivavoce.bench.outcome import Ending
from vivavoce.bench.picture import draw
from vivavoce.bench.report import Report
from vivavoce.bench.table import figure_rows, latency_rows
from vivavoce.errors import InvalidRequest, MissingDependency

OUTCOMES = [
    outcome((0.1, 300), (0.5, 500)),
    outcome((0.2, 300), (0.3, 500), start_s=0.1),
    outcome(end_s=0.4, ending=Ending.REFUSED),
    outcome(end_s=0.4, ending=Ending.FAILED, problem="no"),
]


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
    assert rows[0] == ["first audio (ms)", "100.0", "100.0", "100.0", "100.0", "100.0", "2"]
    assert rows[1] == ["between chunks (ms)", "250.0", "100.0", "400.0", "400.0", "400.0", "2"]
    assert {len(row) for row in rows} == {len(header)}
    figures = dict(figure_rows(keys))
    assert figures["requests"] == "2 of 4 spoken, 1 refused, 1 failed"
    assert figures["underruns"] == "1 in 1 of 2 requests, 0.100 s silent"
    assert figures["GPU memory"] == "1.00 GiB used at most, 2.00 GiB reserved"
    assert "WER, free" not in figures


def test_nothing_measured_leaves_dashes() -> None:
    keys = Report({}, []).to_json()
    assert latency_rows(keys)[1][0][1:] == ["–"] * 5 + ["0"]
    assert dict(figure_rows(keys))["requests"] == "0 of 0 spoken"


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
