"""The load of the entry process: its pieces, their times, and a small run of all protocols."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.entry import __main__ as entry
from benchmarks.entry.pace import LETTERS_PER_S, RATE, Listening, pieces, read_stamp, stamped, text_of
from vivavoce.frontend.audio.samples import to_int16

AT_S = 1_234_567.891_011


def test_a_text_is_cut_as_a_stream_is() -> None:
    sizes = pieces(len(text_of(10.0)))
    assert [size / RATE for size in sizes] == [0.6, 0.6, 1.0, 2.0, 2.0, 2.0, 1.8]
    for letters in (1, LETTERS_PER_S, 400):
        assert sum(pieces(letters)) == letters * RATE // LETTERS_PER_S
        assert min(pieces(letters)) >= 4


def test_a_time_survives_the_way_to_the_listener() -> None:
    assert read_stamp(to_int16(stamped(np.zeros(100, np.float32), AT_S)).tobytes()) == pytest.approx(AT_S, abs=1e-5)


def test_a_piece_has_come_with_its_last_byte() -> None:
    sizes = [1_000, 2_000]
    audio = b"".join(to_int16(stamped(np.zeros(size, np.float32), AT_S + size)).tobytes() for size in sizes)
    hearing = Listening(sizes, asked_s=AT_S)
    for place in range(0, len(audio), 700):
        assert not hearing.is_whole
        hearing.take(audio[place : place + 700], AT_S + place)
    assert hearing.is_whole
    assert hearing.first == [pytest.approx(1_400)]
    assert hearing.pieces == [
        (pytest.approx(AT_S + 1_000), AT_S + 1_400, 1_000 / RATE),
        (pytest.approx(AT_S + 2_000), AT_S + 5_600, 2_000 / RATE),
    ]


def test_the_largest_load_counts_up_to_the_first_that_failed() -> None:
    def load(listeners: int, late_ms: float | None, **failures: int) -> dict[str, object]:
        return {"protocol": "http", "listeners": listeners, "late_ms_p99": late_ms, "failures": failures}

    assert entry.carried([load(20, 5.0), load(10, 5.0), load(40, 101.0), load(80, 1.0)]) == {"http": 20}
    assert entry.carried([load(10, 5.0), load(20, 5.0, cut=1)]) == {"http": 10}
    assert entry.carried([load(10, None)]) == {"http": 0}


@pytest.mark.process
def test_each_protocol_carries_a_few_listeners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "found" / "entry.json"
    wanted = {"--listeners": "20", "--engines": "2", "--clients": "2", "--seconds": "8", "--arriving": "1"}
    flags = [word for pair in wanted.items() for word in pair]
    monkeypatch.setattr("sys.argv", ["entry", *flags, "--out", str(out)])
    entry.main()
    found = json.loads(out.read_text(encoding="utf-8"))
    assert [load["protocol"] for load in found["loads"]] == ["http", "websocket", "grpc"]
    for load in found["loads"]:
        assert not load["failures"]
        assert load["pieces"] > 0
        assert 0 < load["loop_share"] <= load["cpu_share"]
        assert load["late_ms_p50"] > 0
    assert sum(load["whole_speeches"] for load in found["loads"]) > 0
    assert found["command"].startswith("python -m benchmarks.entry --listeners 20")
    assert found["hardware"]
