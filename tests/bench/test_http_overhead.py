"""What benchmarks/http_overhead makes of its measurements."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.http_overhead.loads import Load, read_load
from benchmarks.http_overhead.report import overhead, section
from benchmarks.http_overhead.trace import SPANS, mean_spans, read_traces
from vivavoce.bench.outcome import Arrival, Outcome
from vivavoce.bench.target import Utterance


def test_the_spans_of_a_request_add_up_to_its_first_byte(tmp_path: Path) -> None:
    server = {"number": 7, "id": "load1-0", "accepted": 1.01, "sent": 1.02, "came": 1.31, "written": 1.32}
    engine = {"number": 7, "received": 1.03, "submitted": 1.05, "made": 1.30}
    (tmp_path / "server.jsonl").write_text(json.dumps(server) + "\n")
    (tmp_path / "engine.jsonl").write_text(f"{json.dumps(engine)}\n{json.dumps({**engine, 'number': 8})}\n")
    outcome = Outcome(Utterance(0, "Hi."), 24_000, 1.0, 2.0, (Arrival(1.36, 2400), Arrival(1.9, 2400)))
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
