from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from vivavoce.checkpoint.config import MelConfig
from vivavoce.errors import InvalidAudio
from vivavoce.models.features.mel import prompt_mel

V2 = MelConfig(24_000, n_fft=1920, win_size=1920, hop=480, num_bins=80, fmin_hz=0.0, fmax_hz=8_000.0)
V3 = replace(V2, fmax_hz=12_000.0)
V1 = MelConfig(22_050, n_fft=1024, win_size=1024, hop=256, num_bins=80, fmin_hz=0.0, fmax_hz=8_000.0)


@pytest.mark.parametrize("name", ["speech_24k_float", "speech_22k_int16"])
@pytest.mark.parametrize(
    ("feature", "config", "last", "step"), [("mel_v1", V1, 110, 5), ("mel_v2", V2, 58, 3), ("mel_v3", V3, 58, 3)]
)
def test_equals_the_official_values(speech, official, name, feature, config, last, step):
    mel = prompt_mel(speech(name, 24_000)[None], config)[0, :last:step]
    np.testing.assert_allclose(mel.numpy(), official(name, feature), rtol=0, atol=1e-4)


def test_batch_equals_single(speech):
    whole = speech("speech_24k_float", 24_000)
    batch = torch.stack([whole[:12_000], whole[12_000:24_000]])
    together = prompt_mel(batch, V2)
    for row, samples in zip(together, batch, strict=True):
        torch.testing.assert_close(row, prompt_mel(samples[None], V2)[0], rtol=0, atol=1e-5)


def test_part_equals_whole_away_from_its_edges(speech):
    whole = speech("speech_24k_float", 24_000)
    part = prompt_mel(whole[None, 10 * V2.hop : 40 * V2.hop], V2)[0]
    torch.testing.assert_close(part[2:-2], prompt_mel(whole[None], V2)[0, 12:38], rtol=0, atol=1e-4)


@pytest.mark.parametrize("num_samples", [721, 960, 959, 24_000, 24_479])
def test_one_frame_per_hop(num_samples):
    assert prompt_mel(torch.zeros(2, num_samples), V2).shape == (2, num_samples // 480, 80)


def test_silence_is_the_floor():
    # sqrt(1e-9) of magnitude in every bin: the floor of 1e-5 lies above what the filters make of it.
    assert prompt_mel(torch.zeros(1, 4_800), V2).max() == pytest.approx(np.log(1e-5), abs=1e-6)


@pytest.mark.parametrize("num_samples", [0, 1, 479, 720])
def test_too_short(num_samples):
    with pytest.raises(InvalidAudio, match=rf"{num_samples} samples .* at least 721 .*; use a longer recording"):
        prompt_mel(torch.zeros(1, num_samples), V2)
