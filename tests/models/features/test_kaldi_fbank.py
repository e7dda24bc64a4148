from __future__ import annotations

import numpy as np
import pytest
import torch

from vivavoce.errors import InvalidAudio
from vivavoce.models.features.kaldi_fbank import speaker_fbank


@pytest.mark.parametrize("name", ["speech_24k_float", "speech_22k_int16"])
def test_equals_the_official_values(speech, official, name):
    ours = speaker_fbank(speech(name, 16_000))[:115:5].numpy()
    theirs = official(name, "fbank")
    # Both lack the mean of their own recording, so compare without that of these frames.
    np.testing.assert_allclose(ours - ours.mean(0), theirs - theirs.mean(0), rtol=0, atol=2e-3)


def test_mean_over_time_is_zero(speech):
    features = speaker_fbank(speech("speech_24k_float", 16_000))
    torch.testing.assert_close(features.mean(0), torch.zeros(80), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("num_samples", "num_frames"), [(400, 1), (559, 1), (560, 2), (16_000, 98)])
def test_whole_frames_only(num_samples, num_frames):
    samples = torch.randn(num_samples, generator=torch.Generator().manual_seed(0))
    assert speaker_fbank(samples).shape == (num_frames, 80)


def test_same_audio_same_features(speech):
    samples = speech("speech_24k_float", 16_000)
    assert torch.equal(speaker_fbank(samples), speaker_fbank(samples))


def test_too_short():
    with pytest.raises(InvalidAudio, match=r"399 samples .* at least 400"):
        speaker_fbank(torch.zeros(399))
