"""Speakers fill their ranges evenly, and test speakers are strangers."""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import numpy as np
import pytest

from training.data.flite import VOICES
from training.data.speakers import MIN_DISTANCE, PITCH, TEMPO, TRACT, place, test_speakers, train_speakers

SQUARES = 4


@pytest.mark.parametrize("seed", [0, 1, 17])
def test_ranges_are_filled_evenly(seed: int) -> None:
    speakers = train_speakers(320, seed)
    assert len({speaker.name for speaker in speakers}) == 320
    assert Counter(speaker.voice for speaker in speakers) == dict.fromkeys(VOICES, 80)
    for bounds, values in (
        (TRACT, [speaker.tract for speaker in speakers]),
        (PITCH, [speaker.pitch for speaker in speakers]),
        (TEMPO, [speaker.tempo for speaker in speakers]),
    ):
        shares = np.log(np.array(values) / bounds[0]) / math.log(bounds[1] / bounds[0])
        assert shares.min() >= -0.001
        assert shares.max() <= 1.001
        counts, _ = np.histogram(shares, bins=10, range=(0, 1))
        assert counts.min() >= 20  # 32 on average
    for voice in VOICES:
        squares = Counter(
            tuple(min(SQUARES - 1, int(share * SQUARES)) for share in place(speaker))
            for speaker in speakers
            if speaker.voice == voice
        )
        assert len(squares) == SQUARES**2
        assert max(squares.values()) <= 9  # 5 on average


@pytest.mark.parametrize("seed", [0, 1, 17])
def test_test_speakers_are_strangers(seed: int) -> None:
    for known in train_speakers(1000, seed):
        for stranger in test_speakers():
            if known.voice == stranger.voice:
                assert math.dist(place(known), place(stranger)) >= MIN_DISTANCE - 0.005  # values are rounded


def test_test_speakers_differ() -> None:
    strangers = test_speakers()
    assert len({speaker.name for speaker in strangers}) == len(strangers) == 20
    assert Counter(speaker.voice for speaker in strangers[:8]) == dict.fromkeys(VOICES, 2)
    for one, other in combinations(strangers, 2):
        if one.voice == other.voice:
            assert math.dist(place(one), place(other)) > 2 * MIN_DISTANCE
    for one, other in combinations(strangers[:8], 2):
        if one.voice == other.voice:
            assert math.dist(place(one), place(other)) > 0.5


def test_speakers_depend_on_the_seed_alone() -> None:
    assert train_speakers(40, 3) == train_speakers(80, 3)[:40]
    assert train_speakers(40, 3) != train_speakers(40, 4)
    assert test_speakers() == test_speakers()
