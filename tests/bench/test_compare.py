import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.compare import compared, worse
from benchmarks.gpu.__main__ import middle

ROOT = Path(__file__).parents[2]
MACHINE = {"hardware": "NVIDIA H200", "device": "cuda", "generation": "v2", "torch": "2.11.0"}
OLD = {
    **MACHINE,
    "commit": "6dcf664",
    "offline256_command": "vivavoce bench --offline",
    "offline256_throughput_audio_s_per_s": 711.0,
    "offline256_failed": 0,
    "offline256_margin_ms_min": None,
    "stream1_ttfb_ms_p50": 42.0,
    "stream1_ok": 8,
    "start_second_s": 18.0,
}


def names(new, **more):
    return [one.name for one in worse({**OLD, **more}, new)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"offline256_throughput_audio_s_per_s": 655.0}, ["offline256_throughput_audio_s_per_s"]),
        ({"offline256_throughput_audio_s_per_s": 700.0}, []),
        ({"offline256_throughput_audio_s_per_s": 900.0}, []),
        ({"stream1_ttfb_ms_p50": 45.0}, []),
        ({"stream1_ttfb_ms_p50": 66.0}, ["stream1_ttfb_ms_p50"]),
        ({"stream1_ttfb_ms_p50": 20.0}, []),
        ({"offline256_failed": 1}, ["offline256_failed"]),
        ({"stream1_ok": 4, "commit": "fcfc7d5"}, []),
        ({"start_second_s": 19.9}, []),
        ({"start_second_s": 30.0}, ["start_second_s"]),
    ],
)
def test_what_is_worse_by_more_than_its_noise_is_named(change, expected):
    assert names({**OLD, **change}) == expected


def test_a_figure_that_is_missing_is_worse():
    assert names({**MACHINE}) == compared(OLD)


def test_repeated_runs_bring_their_own_noise():
    key = "offline256_throughput_audio_s_per_s"
    new = {**OLD, key: 655.0, "spread": {key: [650.0, 656.0]}}
    assert names(new, spread={key: [710.0, 712.0]}) == [key]
    assert names(new, spread={key: [620.0, 712.0]}) == []


def test_repeated_runs_are_one_result():
    runs = [{"a_ms": value, "a_command": "bench", "a_margin_ms": None} for value in (3.0, 1.0, 2.0)]
    assert middle(runs) == {"a_ms": 2.0, "a_command": "bench", "a_margin_ms": None, "spread": {"a_ms": [1.0, 3.0]}}
    assert middle(runs[:1]) == runs[0]


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({}, 0, "0 of 4 figures are worse"),
        ({"offline256_throughput_audio_s_per_s": 527.0}, 1, "711 before, 527 now (-25.9%, noise 4.0%)"),
        ({"hardware": "NVIDIA H100"}, 2, "measure both on one machine"),
    ],
)
def test_the_command(tmp_path, change, code, said):
    places = []
    for name, figures in (("old", OLD), ("new", {**OLD, **change})):
        places.append(tmp_path / f"{name}.json")
        places[-1].write_text(json.dumps(figures))
    asked = subprocess.run(
        [sys.executable, "-m", "benchmarks.compare", *places], cwd=ROOT, capture_output=True, text=True
    )
    assert (asked.returncode, said in asked.stdout + asked.stderr) == (code, True), asked
