"""Cuts, spectra and the figures of chunked synthesis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from vivavoce.bench.chunking import Cut, Strategy, cuts
from vivavoce.bench.spectra import near_places, spectral_distance
from vivavoce.bench.streaming import Speech, Streamed, figures, stream
from vivavoce.bench.streaming_table import rows_of, texts_of
from vivavoce.errors import InvalidRequest

RATE = 24_000


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


@pytest.mark.parametrize("size", [4, 1001])
def test_a_chunk_of_no_use_is_refused(size: int) -> None:
    with pytest.raises(InvalidRequest, match=f"chunk_size: {size} is outside of 5"):
        cuts(100, size, Strategy.EQUAL, 3)


def test_equal_sounds_are_no_distance_apart() -> None:
    assert not spectral_distance(tone(440), tone(440), RATE).any()


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


def test_the_shorter_one_and_nothing_set_the_length() -> None:
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

    def whole(self, speech: Speech) -> np.ndarray:
        self.now += 1.0
        return np.zeros(960 * len(speech.tokens), np.float32)

    def chunks(self, speech: Speech, cut: Sequence[Cut]) -> Iterator[np.ndarray]:
        for one, seconds in zip(cut, self._seconds, strict=True):
            self.now += seconds
            yield np.zeros(960 * one.hop, np.float32)


def streamed(*seconds: float, first: int = 25) -> Streamed:
    slow = Slow(seconds)
    speech = Speech("0001", (0,) * (25 * len(seconds)), None, 0)
    cut = [Cut(first if place == 0 else 25, 0, place == len(seconds) - 1) for place in range(len(seconds))]
    return stream(slow, speech, cut, slow.clock)


def test_chunks_and_the_whole_are_timed() -> None:
    one = streamed(0.5, 0.25, 0.25)
    assert one.chunks_s == (0.5, 0.25, 0.25)
    assert (one.first_chunk_s, one.total_s, one.whole_s, one.audio_s) == (0.5, 1.0, 1.0, 3.0)
    assert one.joins == [24_000, 48_000]
    assert len(one.joined) == len(one.whole) == 72_000
    assert one.margins_s == pytest.approx((0.75, 1.5))


def test_a_chunk_that_gives_nothing_is_no_join_and_no_first_sound() -> None:
    one = streamed(0.5, 0.25, 0.25, first=0)
    assert one.first_chunk_s == 0.75
    assert one.joins == [24_000]


def test_figures_of_all_speeches() -> None:
    found = figures([streamed(0.5, 0.25, 0.25), streamed(0.5, 2.0)])
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
    assert texts_of([streamed(0.5, 0.5)])[0]["chunk_ms"] == [500.0, 500.0]


def test_one_chunk_leaves_places_empty_and_a_table_all_the_same() -> None:
    keys = figures([streamed(0.5)])
    assert (keys["underruns"], keys["margin_ms_min"]) == (0, None)
    names = ("joins", "join_clicks", "join_click_worst", "join_click_median")
    joins = dict.fromkeys((*names, "spectral_db_joins", "spectral_db_elsewhere"))
    header, rows = rows_of({**keys, **joins})
    assert all(len(row) == len(header) for row in rows)
    assert ["smallest margin (ms)", "–", "", "", "", "", ""] in rows
