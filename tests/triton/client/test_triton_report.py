"""The arithmetic of a load's report."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vivavoce_bench.load import Ending, Outcome
from vivavoce_bench.measure import Arrival
from vivavoce_triton.client.report import (
    Report,
    difference,
    figures,
    parse_statistics,
    statistics_text,
)
from vivavoce_triton.client.utterance import Utterance

RATE = 1000
DOCUMENTATION = (Path(__file__).parents[3] / "docs" / "triton.md").read_text(encoding="utf-8")

times = st.floats(0, 100, allow_nan=False)


def outcome(start_s, end_s, arrivals=(), problem=""):
    ending = Ending.FAILED if problem else Ending.OK
    return Outcome(start_s, end_s, RATE, arrivals, utterance=Utterance("a", "text"), ending=ending, problem=problem)


@st.composite
def outcomes(draw):
    start_s = draw(times)
    chunks = draw(st.lists(st.tuples(st.floats(0, 10), st.integers(1, 5000)), min_size=1, max_size=6))
    at_s, arrivals = start_s, []
    for gap_s, count in chunks:
        at_s += gap_s
        arrivals.append(Arrival(at_s, count))
    problem = draw(st.sampled_from(["", "", "it broke"]))
    end_s = at_s + draw(st.floats(0, 1))
    return outcome(start_s, end_s, tuple(arrivals), problem)


@settings(max_examples=50, deadline=None)
@given(st.lists(outcomes(), max_size=12))
def test_figures_hold_together(found):
    keys, ok = figures(found), [outcome for outcome in found if outcome.ok]
    assert keys["ok"] + keys["failed"] == keys["requests"] == len(found)
    assert keys["first_chunk_ms_n"] == keys["total_ms_n"] == len(ok)
    assert keys["gap_ms_n"] == keys["chunks"] - len(ok)
    assert keys["audio_s"] == pytest.approx(sum(one.num_samples for out in ok for one in out.arrivals) / RATE)
    if ok:
        assert keys["first_chunk_ms_avg"] <= keys["total_ms_avg"] + 1e-6
        assert keys["rtf"] == pytest.approx(keys["wall_s"] / keys["audio_s"])
        assert all(keys["wall_s"] >= outcome.total_s - 1e-6 for outcome in ok)
    assert keys["underrun_requests"] <= keys["underruns"]
    assert (keys["stall_s"] > 0) == (keys["underruns"] > 0)


def test_a_stream_that_is_known():
    arrivals = (Arrival(10.1, 100), Arrival(10.15, 100), Arrival(10.5, 300))
    keys = figures([outcome(10.0, 10.6, arrivals)])
    expected = {
        "first_chunk_ms_avg": 100,
        "second_chunk_ms_p99": 150,
        "total_ms_p50": 600,
        "gap_ms_avg": 200,
        "request_rtf_avg": 1.2,
        "underruns": 1,
        "stall_s": 0.2,
        "margin_ms_min": -200,
        "audio_s": 0.5,
        "wall_s": 0.6,
        "rtf": 1.2,
        "throughput_requests_per_s": 1 / 0.6,
    }
    assert {key: keys[key] for key in expected} == pytest.approx(expected)


def test_a_report_of_failures_alone_can_be_read():
    report = Report({"model": "m"}, [outcome(0, 1, problem="it broke")], {})
    assert report.problems() == ["1 of 1 requests failed: it broke"]
    assert report.text().startswith("RTF: –\n")
    assert report.scored(lambda _: {"wer_free": 0}).keys()["failed"] == 1
    assert statistics_text(report.statistics) == "the server counted nothing"


def test_the_documentation_names_every_key():
    documented = set(re.findall(r"`(\w+)`", DOCUMENTATION))
    stems = {re.sub(r"_(avg|p\d+|n)$", "", key) for key in figures([])}
    assert stems <= documented


def one_model(count, **others):
    duration = {"count": str(count), "ns": str(count * 1_000_000)}
    stats = {"success": duration, "queue": duration, "compute_infer": duration}
    batch = {"batch_size": "4", "compute_input": {}, "compute_infer": duration}
    return {
        "name": "m",
        "version": "1",
        "inference_count": str(count),
        "execution_count": str(count),
        "inference_stats": stats,
        "batch_stats": [batch],
        **others,
    }


def test_statistics_are_subtracted_and_models_that_rest_left_out():
    idle = one_model(3, name="idle")
    busy = {"batch_size": 8, "compute_infer": {"count": 1, "ns": 5}}
    new = one_model(1, name="new", batch_stats=[busy, {"batch_size": 2}])
    before = parse_statistics({"model_stats": [one_model(2), idle]})
    after = parse_statistics({"model_stats": [idle, one_model(5), new]})
    added = difference(after, before)
    assert [name for name, _ in added] == ["m", "new"]
    found, new_one = Report({}, [], added).to_json()["models"]
    assert list(new_one["batches"]) == ["8"]
    assert found["inferences"] == found["executions"] == found["success"] == 3
    assert (found["queue_ms_avg"], found["compute_output_ms_avg"]) == (1.0, None)
    assert found["batches"]["4"]["executions"] == 3
    assert "  batch size 4: 3 executions, each compute input –, compute infer 1.000 ms" in statistics_text(added)
