from __future__ import annotations

import numpy as np
import pytest

from vivavoce.errors import InvalidAudio
from vivavoce.service.audio.checks import MAX_REFERENCE_S, MIN_REFERENCE_S, check_reference
from vivavoce.service.audio.types import Audio

RATE = 8_000


def noise(seconds: float, peak: float = 0.5) -> Audio:
    samples = np.random.default_rng(0).uniform(-1, 1, round(seconds * RATE))
    return Audio((samples / np.abs(samples).max() * peak).astype(np.float32), RATE)


@pytest.mark.parametrize("seconds", [MIN_REFERENCE_S, 3.0, MAX_REFERENCE_S])
def test_usable_reference(seconds):
    check_reference(noise(seconds))


@pytest.mark.parametrize(
    ("audio", "words"),
    [
        (noise(0.4), "lasts 0.40 s; at least 0.5 s"),
        (Audio(np.zeros(0, np.float32), RATE), "lasts 0.00 s"),
        (noise(30.2), "lasts 30.2 s; the limit is 30 s"),
        (noise(1, peak=5e-4), "is silent (peak 0.0005"),
        (Audio(np.zeros(RATE, np.float32), RATE), "is silent (peak 0,"),
        (noise(1, peak=30_000), "peak of 3e+04"),
        (Audio(np.full(RATE, np.nan, np.float32), RATE), "8000 of 8000 samples"),
    ],
)
def test_refused_reference(audio, words):
    with pytest.raises(InvalidAudio) as caught:
        check_reference(audio, field="prompt_audio")
    assert str(caught.value).startswith("prompt_audio: ")
    assert words in str(caught.value)


def test_audio_is_mono_float32():
    with pytest.raises(ValueError, match="float64"):
        Audio(np.zeros(10), RATE)
    with pytest.raises(ValueError, match="float32"):
        Audio(np.zeros((10, 2), np.float32), RATE)
    with pytest.raises(ValueError, match="sample_rate is 0"):
        Audio(np.zeros(10, np.float32), 0)
