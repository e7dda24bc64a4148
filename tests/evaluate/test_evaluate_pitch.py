"""The fundamental frequency of signals that are known."""

from __future__ import annotations

import numpy as np
import pytest
from evaluate_fakes import RATE, hum, noise

from vivavoce.evaluate.pitch import pitch, track_f0


@pytest.mark.parametrize("hz", [70.0, 120.0, 233.0, 410.0])
@pytest.mark.parametrize("rate", [16_000, 24_000])
def test_a_steady_hum(hz: float, rate: int) -> None:
    found = pitch(hum(1.0, hz, rate), rate)
    assert found.voiced_share > 0.95
    for value in (found.low_hz, found.median_hz, found.high_hz):
        assert value == pytest.approx(hz, rel=0.01)


def test_a_missing_fundamental_is_heard_all_the_same() -> None:
    t = np.arange(RATE) / RATE
    wave = sum(np.sin(2 * np.pi * 110 * k * t) for k in (2, 3, 4, 5)).astype(np.float32)  # type: ignore[union-attr]
    assert pitch(wave, RATE).median_hz == pytest.approx(110, rel=0.01)


def test_a_glide_has_a_range() -> None:
    t = np.arange(2 * RATE) / RATE
    phase = 2 * np.pi * (100 * t + 25 * t**2)  # 100 → 200 Hz
    wave = sum(np.sin(k * phase) / k for k in range(1, 8)).astype(np.float32)  # type: ignore[union-attr]
    found = pitch(wave, RATE)
    assert found.low_hz == pytest.approx(105, rel=0.03)
    assert found.median_hz == pytest.approx(150, rel=0.03)
    assert found.high_hz == pytest.approx(195, rel=0.03)


def test_noise_and_silence_have_none() -> None:
    assert pitch(noise(1.0), RATE).voiced_share < 0.05
    silent = pitch(np.zeros(RATE, np.float32), RATE)
    assert (silent.median_hz, silent.voiced_share) == (None, 0.0)
    assert pitch(np.zeros(10, np.float32), RATE).median_hz is None


def test_only_the_voiced_part_is_voiced() -> None:
    track = track_f0(np.concatenate([hum(0.5, 150), noise(0.5)]), RATE)
    assert (track[:40] > 0).all()
    assert (track[55:] > 0).mean() < 0.1
