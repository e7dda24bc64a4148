"""Halves of a model by the clock, in batches and in chunks, and what is made of it: the halves are fakes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from vivavoce.errors import InvalidRequest, StageFailed
from vivavoce_bench.batches import HEADER, BatchFigures, Job, batch_report, draw_batches, measure_batches
from vivavoce_bench.chunked import (
    ChunkedSpeech,
    Cut,
    Strategy,
    TokenSpeech,
    chunk_figures,
    chunk_rows,
    cuts,
    near_places,
    speak_chunked,
    spectral_distance,
)

RATE = 24_000


def jobs(number: int, most: int = 10) -> list[Job]:
    return [Job(f"text{place}", most, None, place) for place in range(number)]


class Halves:
    """As many tokens as the prompt says, in a second a batch (a hundred for the first); 100 samples a token, in half a
    second a batch. The clock stands still but for what they take.
    """

    sampling = "as it likes"

    def __init__(self) -> None:
        self.now = 0.0
        self.batches: list[int] = []
        self.parts: list[int] = []
        self.kept: list[tuple[str, int]] = []

    def generate(self, prompts: Sequence[int]) -> list[list[int]]:
        self.now += 1.0 if self.batches else 100.0
        self.batches.append(len(prompts))
        return [[0] * prompt for prompt in prompts]

    def waves(self, part: Sequence[Job], tokens: Sequence[Sequence[int]]) -> list[np.ndarray]:
        self.now += 0.5
        self.parts.append(len(part))
        return [np.full(100 * len(one), 0.5, np.float32) for one in tokens]

    def measure(self, given: list[Job], batch_size: int, token2wav_batch_size: int) -> BatchFigures:
        def keep(job: Job, samples: np.ndarray) -> None:
            self.kept.append((job.id, len(samples)))

        model, sides = cast(Any, self), (batch_size, token2wav_batch_size)
        return measure_batches("torch", model, self.waves, 1000, given, *sides, keep, lambda: self.now)


def figures(**changed: float | str) -> BatchFigures:
    values = {
        "backend": "torch",
        "sampling": "as it likes",
        "batch_size": 4,
        "token2wav_batch_size": 2,
        "texts": 5,
        "tokens": 50,
        "audio_s": 5.0,
        "llm_time_seconds": 2.0,
        "token2wav_time_seconds": 1.5,
    }
    return BatchFigures(**{**values, **changed})  # type: ignore[arg-type]


def test_batches_are_timed_after_one_that_warms_up() -> None:
    halves = Halves()
    assert halves.measure(jobs(5), 4, 2) == figures()
    assert (halves.batches, halves.parts) == ([4, 4, 1], [2, 2, 2, 2, 1]), "the first batch twice"
    assert halves.kept == [(f"text{place}", 1000) for place in range(5)], "the warm-up leaves nothing"


def test_a_text_without_speech_is_told() -> None:
    with pytest.raises(StageFailed, match="backend: torch gave no speech for text text0"):
        Halves().measure(jobs(1, most=0), 1, 1)


def test_a_report_has_a_row_and_keys_for_each_run() -> None:
    row = dict(zip(HEADER, figures().row(), strict=True))
    assert list(row.values()) == ["torch", "4", "5", "50", "5.0", "2.00", "1.50", "3.50", "0.700", "25"]
    keys = batch_report({"model": "fake", "ratio": 1 / 3}, [figures(), figures(batch_size=1)])
    assert (keys["schema"], keys["model"], keys["ratio"]) == ("vivavoce-bench-offline-1", "fake", 0.333333)
    assert [run["batch_size"] for run in keys["runs"]] == [4, 1]
    assert keys["runs"][0]["total_time_seconds"] == 3.5


def test_a_picture_shows_all_runs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra eval")
    sizes = count(1)
    draw_batches(
        [figures(batch_size=next(sizes), backend=name) for name in ("torch", "torch", "vllm")], tmp_path / "a.png"
    )
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def tone(hertz: float, samples: int = RATE) -> np.ndarray:
    return np.sin(2 * np.pi * hertz * np.arange(samples) / RATE).astype(np.float32)


@pytest.mark.parametrize(
    ("num_tokens", "strategy", "lookahead", "expected"),
    [
        (10, "equal", 3, [(10, 10)]),
        (27, "equal", 3, [(27, 27)]),
        (28, "equal", 3, [(25, 28), (3, 28)]),
        (80, "equal", 3, [(25, 28), (25, 53), (25, 78), (5, 80)]),
        (25, "equal", 0, [(25, 25)]),
        (26, "equal", 0, [(25, 25), (1, 26)]),
        (178, "exponential", 3, [(25, 28), (50, 78), (100, 178), (3, 178)]),
        (177, "exponential", 3, [(25, 28), (50, 78), (102, 177)]),
    ],
)
def test_cuts(num_tokens: int, strategy: str, lookahead: int, expected: list[tuple[int, int]]) -> None:
    found = cuts(num_tokens, 25, Strategy(strategy), lookahead)
    last = len(expected) - 1
    assert found == [Cut(hop, seen, place == last) for place, (hop, seen) in enumerate(expected)]

    for size in (4, 1001):
        with pytest.raises(InvalidRequest, match=r"^chunk_size: "):
            cuts(100, size, Strategy.EQUAL, 3)


def test_a_change_is_seen_where_it_is() -> None:
    changed = tone(440)
    changed[12_000:12_240] = tone(3000, 240)
    distance = spectral_distance(tone(440), changed, RATE)
    near = near_places(len(distance), RATE, [12_120])
    assert distance[near].mean() > 5.0
    assert distance[~near].mean() < 0.5
    assert np.flatnonzero(near).tolist() == [50, 51], "centred within half a frame"
    assert near_places(len(distance), RATE, [12_120], 480).sum() == 4, "20 ms more"


def test_distance_is_in_decibels() -> None:
    distance = spectral_distance(tone(440), tone(440) / 10, RATE)
    assert 0 < distance.max() <= 20.0 + 1e-6
    assert not spectral_distance(tone(440), tone(440), RATE).any()
    assert len(spectral_distance(tone(440), tone(440)[:4800], RATE)) == 21
    assert len(spectral_distance(tone(440)[:0], tone(440), RATE)) == 0
    assert len(spectral_distance(tone(440)[:100], tone(440)[:100], RATE)) == 1


class Slow:
    """A token is 40 ms of sound; the seconds that each chunk takes are given."""

    sample_rate = RATE

    def __init__(self, seconds: Sequence[float]) -> None:
        self.now, self._seconds = 0.0, seconds

    def clock(self) -> float:
        return self.now

    def whole(self, speech: TokenSpeech) -> np.ndarray:
        self.now += 1.0
        return np.zeros(960 * len(speech.tokens), np.float32)

    def chunks(self, speech: TokenSpeech, cut: Sequence[Cut]) -> Iterator[np.ndarray]:
        for one, seconds in zip(cut, self._seconds, strict=True):
            self.now += seconds
            yield np.zeros(960 * one.hop, np.float32)


def streamed(*seconds: float) -> ChunkedSpeech:
    slow = Slow(seconds)
    speech = TokenSpeech("0001", (0,) * (25 * len(seconds)), None, 0)
    cut = [Cut(25, 0, place == len(seconds) - 1) for place in range(len(seconds))]
    return speak_chunked(slow, speech, cut, slow.clock)


def test_chunks_and_the_whole_are_timed() -> None:
    one = streamed(0.5, 0.25, 0.25)
    assert one.chunks_s == [0.5, 0.25, 0.25]
    assert (one.whole_s, one.audio_s) == (1.0, 3.0)
    assert one.rtf == pytest.approx(1 / 3)
    assert one.joins == [24_000, 48_000]
    assert len(one.samples) == len(one.whole) == 72_000
    assert one.margins_s == pytest.approx([0.75, 1.5])


def test_figures_of_all_speeches() -> None:
    found = chunk_figures([streamed(0.5, 0.25, 0.25), streamed(0.5, 2.0)])
    expected = {
        "texts": 2,
        "tokens": 125,
        "chunks": 5,
        "first_chunk_ms_mean": 500.0,
        "chunk_ms_p50": 500.0,
        "chunk_ms_max": 2000.0,
        "audio_s": 5.0,
        "rtf": 0.7,
        "whole_rtf": 0.4,
        "underruns": 1,
        "margin_ms_min": -1000.0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    assert streamed(0.5, 0.5).to_json()["chunk_ms"] == [500.0, 500.0]


def test_one_chunk_leaves_places_empty_and_a_table_all_the_same() -> None:
    keys = chunk_figures([streamed(0.5)])
    assert (keys["underruns"], keys["margin_ms_min"]) == (0, None)
    names = ("joins", "join_clicks", "join_click_worst", "join_click_median")
    joins = dict.fromkeys((*names, "spectral_db_joins", "spectral_db_elsewhere"))
    header, rows = chunk_rows({**keys, **joins})
    assert all(len(row) == len(header) for row in rows)
    assert ["smallest margin (ms)", "–", *6 * [""]] in rows
