"""Joins, silence, clipping and pitch of waveforms."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from evaluate_fakes import RATE, hum, noise

from vivavoce_bench.evaluate.sound import (
    abruptness,
    abruptness_everywhere,
    clipping_share,
    join_clicks,
    pitch,
    silence,
    track_f0,
)


def speech_like():
    """Hum, hiss and pauses that come and go softly."""
    t = np.arange(4 * RATE) / RATE
    voice = hum(4.0, 130) * (0.55 + 0.45 * np.sin(2 * np.pi * 2.5 * t))
    hiss = noise(4.0, level=0.01) * (1 + np.sin(2 * np.pi * 1.3 * t))
    pauses = np.clip(2 + 3 * np.sin(2 * np.pi * 0.7 * t), 0, 1)
    return ((voice + hiss) * pauses).astype(np.float32)


PLACES = [10_000, 30_000, 50_000, 70_000, 90_000]


def test_clean_joins_are_like_any_other_place():
    whole = speech_like()
    assert len(abruptness_everywhere(whole, RATE)) == 4 * 200, "a place every 5 ms"
    found = join_clicks(abruptness(whole, RATE, PLACES), abruptness_everywhere(whole, RATE))
    assert (found.joins, found.joins_over) == (5, 0)
    assert found.join_worst_ratio is not None
    assert found.join_worst_ratio < 1
    assert found.join_median_ratio == pytest.approx(1, abs=0.5)


@pytest.mark.parametrize("kind", ["step", "spike"])
def test_planted_clicks_are_found(kind):
    whole, stream = speech_like(), speech_like()
    for place in PLACES[:3]:
        if kind == "step":
            stream[place : place + 200] += np.linspace(0.2, 0, 200, dtype=np.float32)
        else:
            stream[place] += 0.2
    found = join_clicks(abruptness(stream, RATE, PLACES), abruptness_everywhere(whole, RATE))
    assert found.joins_over == 3
    assert found.join_worst_ratio is not None
    assert found.join_worst_ratio > 1.5


def test_a_click_elsewhere_is_no_matter_of_the_join():
    whole, stream = speech_like(), speech_like()
    stream[PLACES[0] + 500] += 0.2
    assert join_clicks(abruptness(stream, RATE, PLACES), abruptness_everywhere(whole, RATE)).joins_over == 0


def test_loudness_does_not_matter():
    whole = speech_like()
    np.testing.assert_allclose(
        np.median(abruptness_everywhere(whole, RATE)), np.median(abruptness_everywhere(whole / 4, RATE)), rtol=0.1
    )


def test_no_joins_and_the_very_ends():
    whole = hum(0.1)
    found = join_clicks(abruptness(whole, RATE, []), abruptness_everywhere(whole, RATE))
    assert (found.joins, found.joins_over, found.join_worst_ratio) == (0, 0, None)
    assert np.isfinite(abruptness(whole, RATE, [0, 1, len(whole) - 1])).all()


def test_silence_is_no_measure():
    clicks = join_clicks(np.array([0.5]), np.zeros(100))
    assert (clicks.joins, clicks.join_worst_ratio, clicks.join_median_ratio) == (1, None, None)


def test_silence_is_measured_against_the_loud_level():
    quiet = np.zeros(RATE, np.float32)
    for level in (1.0, 0.01):
        found = silence(level * np.concatenate([hum(1.0), quiet, hum(1.0), quiet[: RATE // 2]]), RATE)
        assert found == pytest.approx((1.5 / 3.5, 1.0), abs=0.03)


def test_soft_speech_is_no_silence():
    soft = 10 ** (-40 / 20) * hum(1.0)
    assert silence(np.concatenate([hum(1.0), soft]), RATE)[0] == 0.0
    softer = 10 ** (-50 / 20) * hum(1.0)
    assert silence(np.concatenate([hum(1.0), softer]), RATE)[0] == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("num_samples", [0, 5, RATE])
def test_nothing_but_zeros_is_silent(num_samples):
    found = silence(np.zeros(num_samples, np.float32), RATE)
    assert found == pytest.approx((1.0, num_samples / RATE))


@pytest.mark.parametrize("ceiling", [1.0, 0.99])
def test_flat_tops_are_found(ceiling):
    loud = 2 * hum(1.0, level=1.0)
    clipped = np.clip(loud, -ceiling, ceiling)
    assert clipping_share(clipped) == pytest.approx(float((np.abs(loud) >= ceiling).mean()), abs=0.002)


def test_round_peaks_and_soft_plateaus_are_no_clipping():
    t = np.arange(RATE) / RATE
    assert clipping_share(np.sin(2 * np.pi * 100 * t).astype(np.float32)) == 0.0
    assert clipping_share(np.clip(noise(1.0), -0.05, 0.05)) == 0.0
    assert clipping_share(np.zeros(2, np.float32)) == 0.0


def harmonics(phase, numbers):
    return np.sum([np.sin(k * phase) / k for k in numbers], axis=0).astype(np.float32)


SECONDS = np.arange(2 * RATE) / RATE
WAVES = {
    **{
        f"a hum of {hz:.0f} Hz at {rate}": (hum(1.0, hz, rate), rate, [hz] * 3, 0.01)
        for hz, rate in product((70.0, 120.0, 233.0, 410.0), (16_000, 24_000))
    },
    "without its fundamental": (harmonics(2 * np.pi * 110 * SECONDS, (2, 3, 4, 5)), RATE, [110] * 3, 0.01),
    "gliding from 100 to 200 Hz": (
        harmonics(2 * np.pi * (100 * SECONDS + 25 * SECONDS**2), range(1, 8)),
        RATE,
        [105, 150, 195],
        0.03,
    ),
}


@pytest.mark.parametrize(("wave", "rate", "expected", "tolerance"), WAVES.values(), ids=WAVES)
def test_pitch(wave, rate, expected, tolerance):
    *percentiles, voiced = pitch(wave, rate).values()
    assert percentiles == pytest.approx(expected, rel=tolerance)
    assert voiced is not None
    assert voiced > 0.95


def test_only_the_voiced_part_is_voiced():
    assert (track_f0(noise(1.0), RATE) > 0).mean() < 0.05
    for silent in (np.zeros(RATE, np.float32), np.zeros(10, np.float32)):
        assert list(pitch(silent, RATE).values()) == [None, None, None, 0.0]
    track = track_f0(np.concatenate([hum(0.5, 150), noise(0.5)]), RATE)
    assert (track[:40] > 0).all()
    assert (track[55:] > 0).mean() < 0.1
