"""Clicks at joins: planted ones are found, clean joins are not."""

from __future__ import annotations

import numpy as np
import pytest
from evaluate_fakes import RATE, hum, noise

from vivavoce.evaluate.joins import abruptness, abruptness_everywhere, join_clicks


def speech_like() -> np.ndarray:
    """Hum, hiss and pauses that come and go softly."""
    t = np.arange(4 * RATE) / RATE
    voice = hum(4.0, 130) * (0.55 + 0.45 * np.sin(2 * np.pi * 2.5 * t))
    hiss = noise(4.0, level=0.01) * (1 + np.sin(2 * np.pi * 1.3 * t))
    pauses = np.clip(2 + 3 * np.sin(2 * np.pi * 0.7 * t), 0, 1)
    return ((voice + hiss) * pauses).astype(np.float32)


PLACES = [10_000, 30_000, 50_000, 70_000, 90_000]


def test_clean_joins_are_like_any_other_place() -> None:
    whole = speech_like()
    found = join_clicks(abruptness(whole, RATE, PLACES), abruptness_everywhere(whole, RATE))
    assert (found.joins, found.over) == (5, 0)
    assert found.worst_ratio is not None
    assert found.worst_ratio < 1
    assert found.median_ratio == pytest.approx(1, abs=0.5)


@pytest.mark.parametrize("kind", ["step", "spike"])
def test_planted_clicks_are_found(kind: str) -> None:
    whole, stream = speech_like(), speech_like()
    for place in PLACES[:3]:
        if kind == "step":
            stream[place : place + 200] += np.linspace(0.2, 0, 200, dtype=np.float32)
        else:
            stream[place] += 0.2
    found = join_clicks(abruptness(stream, RATE, PLACES), abruptness_everywhere(whole, RATE))
    assert found.over == 3
    assert found.worst_ratio is not None
    assert found.worst_ratio > 1.5


def test_a_click_elsewhere_is_no_matter_of_the_join() -> None:
    whole, stream = speech_like(), speech_like()
    stream[PLACES[0] + 500] += 0.2
    assert join_clicks(abruptness(stream, RATE, PLACES), abruptness_everywhere(whole, RATE)).over == 0


def test_loudness_does_not_matter() -> None:
    whole = speech_like()
    np.testing.assert_allclose(
        np.median(abruptness_everywhere(whole, RATE)), np.median(abruptness_everywhere(whole / 4, RATE)), rtol=0.1
    )


def test_no_joins_and_the_very_ends() -> None:
    whole = hum(0.1)
    found = join_clicks(abruptness(whole, RATE, []), abruptness_everywhere(whole, RATE))
    assert (found.joins, found.over, found.worst_ratio) == (0, 0, None)
    assert np.isfinite(abruptness(whole, RATE, [0, 1, len(whole) - 1])).all()


def test_silence_is_no_measure() -> None:
    clicks = join_clicks(np.array([0.5]), np.zeros(100))
    assert (clicks.joins, clicks.worst_ratio, clicks.median_ratio) == (1, None, None)
