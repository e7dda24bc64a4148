"""Silence and clipping."""

from __future__ import annotations

import numpy as np
import pytest
from evaluate_fakes import RATE, hum, noise

from vivavoce.evaluate.levels import clipping_share, silence


def test_silence_is_measured_against_the_loud_level() -> None:
    quiet = np.zeros(RATE, np.float32)
    for level in (1.0, 0.01):
        found = silence(level * np.concatenate([hum(1.0), quiet, hum(1.0), quiet[: RATE // 2]]), RATE)
        assert found.ratio == pytest.approx(1.5 / 3.5, abs=0.01)
        assert found.longest_s == pytest.approx(1.0, abs=0.03)


def test_soft_speech_is_no_silence() -> None:
    soft = 10 ** (-40 / 20) * hum(1.0)
    assert silence(np.concatenate([hum(1.0), soft]), RATE).ratio == 0.0
    softer = 10 ** (-50 / 20) * hum(1.0)
    assert silence(np.concatenate([hum(1.0), softer]), RATE).ratio == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("num_samples", [0, 5, RATE])
def test_nothing_but_zeros_is_silent(num_samples: int) -> None:
    found = silence(np.zeros(num_samples, np.float32), RATE)
    assert found.ratio == 1.0
    assert found.longest_s == pytest.approx(num_samples / RATE)


@pytest.mark.parametrize("ceiling", [1.0, 0.99])
def test_flat_tops_are_found(ceiling: float) -> None:
    loud = 2 * hum(1.0, level=1.0)
    clipped = np.clip(loud, -ceiling, ceiling)
    assert clipping_share(clipped) == pytest.approx(float((np.abs(loud) >= ceiling).mean()), abs=0.002)


def test_round_peaks_and_soft_plateaus_are_no_clipping() -> None:
    t = np.arange(RATE) / RATE
    assert clipping_share(np.sin(2 * np.pi * 100 * t).astype(np.float32)) == 0.0
    assert clipping_share(np.clip(noise(1.0), -0.05, 0.05)) == 0.0
    assert clipping_share(np.zeros(2, np.float32)) == 0.0
