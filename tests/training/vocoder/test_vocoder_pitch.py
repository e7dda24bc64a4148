import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from training.vocoder.pitch import track_pitch

SECONDS = 0.5
TIME = torch.arange(int(SECONDS * 24_000)) / 24_000


def voice(phase, amplitudes):
    return sum(a * torch.sin(k * phase + k) for k, a in enumerate(amplitudes, 1))[None]


VOICES = {
    "sine": [0.3],
    "falling": [0.2 / k for k in range(1, 15)],
    "without fundamental": [0.0, *[0.1] * 6],
    "strong second harmonic": [0.05, 0.3, 0.05, 0.05, 0.05],
    "strong third harmonic": [0.05, 0.05, 0.3, 0.05, 0.05],
}


@pytest.mark.parametrize("amplitudes", VOICES.values(), ids=VOICES)
@given(pitch=st.floats(62, 415))
@settings(max_examples=15, deadline=None)
def test_steady_voices_are_tracked_within_half_a_percent(amplitudes, pitch):
    tracked = track_pitch(voice(2 * math.pi * pitch * TIME, amplitudes))[0, 2:-2]
    torch.testing.assert_close(tracked, torch.full_like(tracked, pitch), rtol=5e-3, atol=0)


def test_frames_are_centred_where_the_mel_has_them():
    pitch = 100 + 200 * TIME
    phase = 2 * math.pi * torch.cumsum(pitch / 24_000, 0)
    tracked = track_pitch(voice(phase, VOICES["falling"]))[0]
    expected = pitch[240::480]
    assert tracked.shape == expected.shape
    torch.testing.assert_close(tracked[2:-2], expected[2:-2], rtol=5e-3, atol=0)


def test_noise_silence_and_hum_too_soft_to_hear_are_unvoiced():
    noise = 0.1 * torch.randn(1, 48_000, generator=torch.Generator().manual_seed(0))
    assert (track_pitch(noise) > 0).float().mean() < 0.02
    assert not track_pitch(torch.zeros(1, 9_600)).any()
    assert not track_pitch(voice(2 * math.pi * 120 * TIME, [3e-4])).any()


def test_a_single_strange_frame_is_mended():
    wave = voice(2 * math.pi * 150 * TIME, VOICES["falling"])
    wave[:, 6000:6300] = 0.2 * torch.randn(300, generator=torch.Generator().manual_seed(1))
    tracked = track_pitch(wave)[0, 2:-2]
    torch.testing.assert_close(tracked, torch.full_like(tracked, 150.0), rtol=0.03, atol=0)
