from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vivavoce.service.audio import resample as module
from vivavoce.service.audio.decode import decode_audio
from vivavoce.service.audio.resample import resample, resample_sinc

RATES = st.sampled_from([8_000, 11_025, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000, 192_000])


@pytest.mark.parametrize(
    ("name", "to_rate", "golden"),
    [
        ("speech_24k_float", 16_000, "wave16k_head"),
        ("speech_22k_int16", 16_000, "wave16k_head"),
        ("speech_22k_int16", 24_000, "wave24k_head"),
    ],
)
def test_prompt_path_equals_the_official_samples(audio_data, name, to_rate, golden):
    audio = decode_audio(audio_data / f"{name}.wav")
    resampled = resample_sinc(audio.samples, audio.sample_rate, to_rate)
    with np.load(audio_data / "goldens.npz") as goldens:
        official = goldens[f"{name}/{golden}"]
    # 1e-7 is a few units of the last place. More would show in mel bins that hold almost nothing.
    np.testing.assert_allclose(resampled[: len(official)].numpy(), official, rtol=0, atol=1e-7)


@given(RATES, RATES, st.integers(0, 3_000))
@settings(max_examples=60, deadline=None)
def test_length_and_leading_axes(from_rate, to_rate, num_samples):
    resampled = resample_sinc(torch.zeros(2, 3, num_samples), from_rate, to_rate)
    assert resampled.shape == (2, 3, math.ceil(num_samples * to_rate / from_rate))
    assert resampled.dtype == torch.float32


@given(st.integers(7_990, 8_010), st.integers(15_990, 16_010), st.integers(0, 3_000))
@settings(max_examples=40, deadline=None)
def test_length_holds_for_rates_without_a_common_factor(from_rate, to_rate, num_samples):
    resampled = resample_sinc(torch.zeros(num_samples), from_rate, to_rate)
    assert resampled.shape == (-(-num_samples * to_rate // from_rate),)


@pytest.mark.parametrize("from_rate", [8_000, 22_050, 24_000, 44_101, 96_000])
@pytest.mark.parametrize("to_rate", [16_000, 24_000])
def test_tone_keeps_pitch_level_and_time(tone, from_rate, to_rate):
    expected = tone(1000, to_rate)
    margin = to_rate // 50
    for method in (resample_sinc, resample):
        heard = np.asarray(method(tone(1000, from_rate), from_rate, to_rate))
        length = min(len(heard), len(expected))
        np.testing.assert_allclose(heard[margin : length - margin], expected[margin : length - margin], atol=2e-3)


def test_nothing_above_the_new_bandwidth_remains(tone):
    assert resample_sinc(tone(11_000, 24_000), 24_000, 16_000)[200:-200].abs().max() < 5e-3


def test_batch_equals_single():
    batch = torch.randn(3, 4_000, generator=torch.Generator().manual_seed(0))
    together = resample_sinc(batch, 22_050, 24_000)
    alone = torch.stack([resample_sinc(row, 22_050, 24_000) for row in batch])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)


def test_equal_rates_change_nothing(tone):
    samples = tone(440, 24_000)
    np.testing.assert_array_equal(resample_sinc(samples, 24_000, 24_000).numpy(), samples)
    assert resample(samples, 24_000, 24_000) is samples


def test_rates_without_a_common_factor_build_no_kernel(tone, monkeypatch):
    def refuse(old: int, new: int) -> torch.Tensor:
        raise AssertionError(f"a kernel for {old} → {new} would take gigabytes")

    monkeypatch.setattr(module, "_sinc_kernels", refuse)
    assert len(resample_sinc(tone(440, 44_101), 44_101, 24_000)) == 24_000


@given(RATES, RATES, st.integers(0, 3_000))
@settings(max_examples=40, deadline=None)
def test_soxr_length(from_rate, to_rate, num_samples):
    resampled = resample(np.zeros(num_samples, np.float32), from_rate, to_rate)
    assert resampled.dtype == np.float32
    assert abs(len(resampled) - num_samples * to_rate / from_rate) <= 1
