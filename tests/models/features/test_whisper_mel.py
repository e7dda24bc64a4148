from __future__ import annotations

import numpy as np
import pytest
import torch

from vivavoce.errors import InvalidAudio
from vivavoce.models.features.whisper_mel import whisper_log_mel


@pytest.mark.parametrize("name", ["speech_24k_float", "speech_22k_int16"])
def test_equals_the_official_values_above_the_floor(speech, official, name):
    ours = whisper_log_mel(speech(name, 16_000))[:, :115:5].numpy()
    theirs = official(name, "whisper")
    # The floor follows the loudest value, which the whole recording has elsewhere.
    above = theirs > max(ours.min(), theirs.min()) + 1e-3
    assert above.mean() > 0.4
    np.testing.assert_allclose(ours[above], theirs[above], rtol=0, atol=1e-4)


@pytest.mark.parametrize("num_samples", [201, 319, 320, 16_000, 16_159])
def test_one_frame_per_10_ms(num_samples):
    samples = torch.randn(num_samples, generator=torch.Generator().manual_seed(0))
    assert whisper_log_mel(samples).shape == (128, num_samples // 160)
    assert whisper_log_mel(samples, num_bins=80).shape == (80, num_samples // 160)


def test_range_is_eight_decades_below_the_loudest(speech):
    features = whisper_log_mel(speech("speech_24k_float", 16_000))
    assert features.max() - features.min() == pytest.approx(2.0, abs=1e-6)


def test_level_shifts_all_values_alike(speech):
    samples = speech("speech_24k_float", 16_000)
    difference = whisper_log_mel(samples) - whisper_log_mel(samples / 10)
    torch.testing.assert_close(difference, torch.full_like(difference, 0.5), rtol=0, atol=1e-4)


@pytest.mark.parametrize("num_samples", [0, 200])
def test_too_short(num_samples):
    with pytest.raises(InvalidAudio, match="at least 201"):
        whisper_log_mel(torch.zeros(num_samples))


def test_recordings_side_by_side_are_computed_alone(speech):
    samples = speech("speech_24k_float", 16_000)[:16_000]
    together = whisper_log_mel(torch.stack([samples, samples / 100, samples.flip(0)]).view(3, 1, -1))
    assert together.shape == (3, 1, 128, 100)
    for row, alone in zip(together, (samples, samples / 100, samples.flip(0)), strict=True):
        torch.testing.assert_close(row[0], whisper_log_mel(alone), rtol=0, atol=1e-5)
