from __future__ import annotations

from pathlib import Path

import pytest
import torch

from training.speaker.fbank import Fbank
from vivavoce.models.features.kaldi_fbank import speaker_fbank
from vivavoce.service.audio.decode import decode_audio
from vivavoce.service.audio.resample import resample_sinc

AUDIO = Path(__file__).parents[2] / "data" / "audio"


@pytest.fixture(scope="module")
def speech() -> torch.Tensor:
    audio = decode_audio(AUDIO / "speech_24k_float.wav")
    return resample_sinc(audio.samples, audio.sample_rate, 16_000)


@pytest.mark.parametrize("gain", [1.0, 0.01])
def test_equals_kaldi(speech: torch.Tensor, gain: float) -> None:
    ours = Fbank()((gain * speech)[None])[0]
    torch.testing.assert_close(ours, speaker_fbank(gain * speech), rtol=0, atol=1e-3)


@pytest.mark.parametrize("samples", [400, 559, 560, 4000])
def test_as_many_frames_as_kaldi(samples: int) -> None:
    noise = torch.randn(3, samples, generator=torch.Generator().manual_seed(0))
    ours = Fbank()(noise)
    assert ours.shape == (3, (samples - 400) // 160 + 1, 80)
    torch.testing.assert_close(ours[2], speaker_fbank(noise[2]), rtol=0, atol=1e-3)


def test_silence_is_the_same_everywhere() -> None:
    energies = Fbank()(torch.zeros(1, 4000))
    torch.testing.assert_close(energies, torch.zeros(1, 23, 80), rtol=0, atol=1e-5)
