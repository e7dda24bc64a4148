"""What the benchmarks beside the package count, what they make of traces, and what docs/measuring.md shows."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from benchmarks import door_listeners, planner
from benchmarks.gpu.memory import Meter, figures
from benchmarks.gpu.report import GOALS, Goal, table
from benchmarks.gpu.stages import decode_bytes, estimator_flops, vocoder_flops
from benchmarks.gpu.trace import Span, busy_ns, summary
from benchmarks.http_overhead.loads import Load, read_load
from benchmarks.http_overhead.report import overhead, section
from benchmarks.http_overhead.trace import SPANS, mean_spans, read_traces
from tests.small_vocoder import causal_of
from vivavoce.checkpoint.config import Generation
from vivavoce.models.flow.unet import UNet
from vivavoce.models.vocoder.hift import HiFT
from vivavoce_bench.load import Outcome, Utterance
from vivavoce_bench.measure import Arrival
from vivavoce_bench.random_checkpoint import RELEASE, write_settings

DOCUMENTATION = (Path(__file__).parents[2] / "docs" / "measuring.md").read_text(encoding="utf-8")


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = re.findall(r"```python\n(.*?)```", DOCUMENTATION, re.DOTALL)
    exec(compile(code, "benchmark.md", "exec"), {})
    assert capsys.readouterr().out == "8 0\n"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """Of the release's sizes; the weights are not needed."""
    return write_settings(tmp_path_factory.mktemp("release"), Generation.V2, RELEASE[Generation.V2])


def test_the_flow_s_arithmetic_is_counted(config):
    """282 GFLOP per second of audio: ten steps over 674 frames for 500 new ones, doubled by guidance."""
    with torch.device("meta"):
        estimator = UNet(config.flow.estimator)
    assert 10 * estimator_flops(estimator, 2, 674) / 10 == pytest.approx(282e9, rel=0.01)


def test_what_has_a_past_sees_more(config):
    with torch.device("meta"):
        estimator = UNet(config.flow.estimator)
    whole, first = estimator_flops(estimator, 1, 200), estimator_flops(estimator, 1, 100)
    assert first < estimator_flops(estimator, 1, 100, past=100) < whole - first


def test_a_decode_step_s_bytes_are_counted(config):
    """363.7 million weights and 12,288 bytes per position."""
    assert decode_bytes(config.lm, 1, 274, 2) == pytest.approx(731e6, rel=0.005)
    assert decode_bytes(config.lm, 256, 274, 2) == pytest.approx(1589e6, rel=0.005)


def test_the_vocoder_s_arithmetic_is_counted(config):
    """CosyVoice3's differs from CosyVoice2's in the steps up alone, by a hundredth."""
    with torch.device("meta"):
        vocoders = HiFT(config.vocoder), causal_of(config.vocoder)
    assert [vocoder_flops(vocoder, 1.0) for vocoder in vocoders] == pytest.approx([30.61e9, 30.89e9], rel=1e-3)


def test_the_table_says_what_was_reached():
    goal = Goal("speed", "speed", 600, 1000, lower=False)
    assert [goal.row({"speed": value})[-1] for value in (500.0, 600.0, 1000.0)] == ["missed", "target", "stretch"]
    assert Goal("time", "t", 50, 30).row({"t": 40.0})[-1] == "target"
    assert goal.row({})[-1] == "not measured"
    for generation, goals in GOALS.items():
        assert table({"generation": generation.value}).count("not measured") == len(goals)


def test_a_trace_is_summed_up():
    spans = [Span(0, 10, 1, "a"), Span(5, 20, 2, "b"), Span(30, 40, 1, "a")]
    assert busy_ns(spans) == 30
    found = summary(spans)
    assert found["idle_share"] == pytest.approx(0.25)
    assert found["busy_share_by_stream"] == {"1": pytest.approx(0.5), "2": pytest.approx(0.375)}
    assert [kernel["name"] for kernel in found["kernels"]] == ["a", "b"]


def test_the_spans_of_a_request_add_up_to_its_first_byte(tmp_path: Path) -> None:
    server = {"number": 7, "id": "load1-0", "accepted": 1.01, "sent": 1.02, "came": 1.31, "written": 1.32}
    engine = {"number": 7, "received": 1.03, "submitted": 1.05, "made": 1.30}
    (tmp_path / "server.jsonl").write_text(json.dumps(server) + "\n")
    (tmp_path / "engine.jsonl").write_text(f"{json.dumps(engine)}\n{json.dumps({**engine, 'number': 8})}\n")
    outcome = Outcome(1.0, 2.0, 24_000, (Arrival(1.36, 2400), Arrival(1.9, 2400)), utterance=Utterance(0, "Hi."))
    found = mean_spans([outcome], ["load1-0"], read_traces(tmp_path))
    assert [found[f"{name}_ms"] for name in SPANS] == pytest.approx([10, 10, 10, 20, 250, 10, 10, 40])
    assert found["ttfb_ms"] == pytest.approx(1000 * outcome.ttfb_s)


def test_a_load_is_the_same_in_another_process() -> None:
    load = Load("load1", 2, [Utterance(0, "Hi.", "anna", 3), Utterance(1, "No.", None, 4)], "equal", {"Hi.": 2.5})
    assert read_load(json.loads(json.dumps(asdict(load)))) == load
    assert load.own_fields(load.utterances[0])["sampling"] == {"min_ratio": 2.5, "max_ratio": 2.5}
    assert load.own_fields(load.utterances[1]) == {"seed": 4, "chunk_policy": "equal", "sampling": {}}


def test_the_table_says_what_the_door_adds() -> None:
    engine = {"ttfb_ms_p50": 50.0, "ttfb_ms_p99": 80.0, "whole_ms_p50": 400.0, "whole_ms_p99": 500.0}
    door = {"ttfb_ms_p50": 53.0, "ttfb_ms_p99": 78.0, "whole_ms_p50": 404.0, "whole_ms_p99": 510.0}
    rest = {"throughput_audio_s_per_s": 20.0, "front_ms": 5.0, "engine_ms": 45.0}
    spans = {f"{name}_ms": 1.5 for name in SPANS} | {"ttfb_ms": 12.0}
    text = section(
        {
            **{"hardware": "a chip", "model": "mini", "dtype": "float32", "admission": "all", "policy": "equal"},
            **{"exact_tokens": 100, "command": "python -m x", "users": [4], "clients": ["raw"]},
            **{"engine_4": {**engine, **rest}, "raw_4": {**door, **rest}, "raw_4_adds": overhead(door, engine)},
            "spans_4": spans,
        }
    )
    assert "a chip, model mini, float32, 100 speech tokens a request; admission all, chunks equal" in text
    assert "| 4 | HTTP (httpx) | 53 / 78 | +3.0 (+6 %) / -2.0 (-2 %) | 404 / 510 | +4.0 (+1 %) / +10.0 (+2 %)" in text
    assert "| all of it | 12.00 |" in text


@pytest.mark.parametrize("name", ["pcm", "mp3"])
@pytest.mark.slow
def test_each_listener_is_counted(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["door_listeners", "--format", name, "--listeners", "3", "--seconds", "1"])
    door_listeners.main()
    line = capsys.readouterr().out
    assert line.startswith(f"{name}, 3 listeners: first pieces late by ")
    assert "nan" not in line


def test_memory_that_was_taken_is_split_into_what_the_plan_counts():
    found = {"allowed_bytes": 1000, "weights_bytes": 100, "plan": {"slots_bytes": 200, "state_bytes": 300}}
    kept = figures(found, took=990, reserved=900)
    assert (kept["took_share"], kept["kept"], kept["batches_bytes"], kept["cuda_bytes"]) == (0.99, True, 300, 90)
    assert not figures(found, took=1001, reserved=900)["kept"]
    assert not figures(found, took=960, reserved=900)["kept"]


def test_a_meter_remembers_the_most_that_was_taken():
    taken = iter((3, 9, *[5] * 1_000_000))
    meter = Meter(lambda: next(taken))
    meter.look()
    with meter.running():
        pass
    assert (meter.first, meter.most) == (3, 9)


def test_a_load_is_foretold_within_limits_and_the_limit_is_where_listeners_wait() -> None:
    loads = [
        {"listeners": size, "requests": 100, "ttfb_ms_p50": 100.0, "ttfb_ms_p99": p99, "underrun_requests": 0}
        for size, runs in ((64, (150.0, 160.0, 260.0)), (300, (290.0, 295.0, 299.0)), (450, (500.0,)))
        for p99 in runs
    ]
    said = {64: (114.0, 250.0), 300: (116.0, 301.0), 450: (90.0, 600.0)}
    simulated = [
        {"ttfb_ms_p50": said[run["listeners"]][0], "ttfb_ms_p99": said[run["listeners"]][1], "underrun_requests": 0}
        for run in loads
    ]
    rows, limits = planner.compared({"loads": loads, "simulated": {"here": simulated}}, 300.0)
    assert [(row["listeners"], row["within"], row["within "]) for row in rows] == [
        (64, "yes", "yes"),
        (300, "NO", "yes"),
        (450, "yes", "yes"),
    ]
    assert limits == {"measured": 300, "here": 64}


def test_stages_that_were_measured_alone_become_costs() -> None:
    figures = json.loads(Path("benchmarks/results/gpu/h200.json").read_text(encoding="utf-8"))
    costs = planner.alone({"stages": figures, "generation": "v2", "tiny": False})
    for stage, size, seconds in planner.batches(figures):
        assert costs[stage].seconds(size) == pytest.approx(seconds, rel=0.15), (stage, size)
