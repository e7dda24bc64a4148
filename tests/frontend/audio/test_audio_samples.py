"""Resampling, and samples as integers and references."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from vivavoce.errors import InvalidAudio
from vivavoce.frontend.audio import resample as module
from vivavoce.frontend.audio.decode import decode_audio
from vivavoce.frontend.audio.resample import resample_sinc
from vivavoce.frontend.audio.samples import (
    MAX_REFERENCE_S,
    MIN_REFERENCE_S,
    Audio,
    amplified,
    check_reference,
    improved,
    to_int16,
)

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


@given(RATES | st.integers(7_990, 8_010), RATES | st.integers(15_990, 16_010), st.integers(0, 3_000))
@settings(max_examples=100, deadline=None)
def test_length_and_leading_axes(from_rate, to_rate, num_samples):
    resampled = resample_sinc(torch.zeros(2, 3, num_samples), from_rate, to_rate)
    assert resampled.shape == (2, 3, math.ceil(num_samples * to_rate / from_rate))
    assert resampled.dtype == torch.float32


@pytest.mark.parametrize("from_rate", [8_000, 22_050, 24_000, 44_101, 96_000])
@pytest.mark.parametrize("to_rate", [16_000, 24_000])
def test_tone_keeps_pitch_level_and_time(tone, from_rate, to_rate):
    expected = tone(1000, to_rate)
    margin = to_rate // 50
    heard = np.asarray(resample_sinc(tone(1000, from_rate), from_rate, to_rate))
    length = min(len(heard), len(expected))
    np.testing.assert_allclose(heard[margin : length - margin], expected[margin : length - margin], atol=2e-3)


def test_nothing_above_the_new_bandwidth_remains(tone):
    assert resample_sinc(tone(11_000, 24_000), 24_000, 16_000)[200:-200].abs().max() < 5e-3


def test_batch_equals_single():
    batch = torch.randn(3, 4_000, generator=torch.Generator().manual_seed(0))
    together = resample_sinc(batch, 22_050, 24_000)
    alone = torch.stack([resample_sinc(row, 22_050, 24_000) for row in batch])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)


def test_rates_without_a_common_factor_build_no_kernel(tone, monkeypatch):
    def refuse(old: int, new: int) -> torch.Tensor:
        raise AssertionError(f"a kernel for {old} → {new} would take gigabytes")

    monkeypatch.setattr(module, "_sinc_kernels", refuse)
    assert len(resample_sinc(tone(440, 44_101), 44_101, 24_000)) == 24_000


RATE = 8_000


def noise(seconds: float, peak: float = 0.5) -> Audio:
    samples = np.random.default_rng(0).uniform(-1, 1, round(seconds * RATE))
    return Audio((samples / np.abs(samples).max() * peak).astype(np.float32), RATE)


def test_usable_references():
    for seconds in (MIN_REFERENCE_S, 3.0, MAX_REFERENCE_S):
        check_reference(noise(seconds))


@pytest.mark.parametrize(
    ("audio", "words"),
    [
        (noise(0.4), "lasts 0.40 s; at least 0.5 s"),
        (Audio(np.zeros(0, np.float32), RATE), "lasts 0.00 s"),
        (noise(30.2), "lasts 30.2 s; the limit is 30 s"),
        (noise(1, peak=5e-4), "is silent (its samples span 0.00"),
        (Audio(np.full(RATE, 0.5, np.float32), RATE), "is silent (its samples span 0,"),
        (Audio(np.zeros(RATE, np.float32), RATE), "is silent (its samples span 0,"),
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
    for samples, rate, problem in (
        (np.zeros(10), RATE, "float64"),
        (np.zeros((10, 2), np.float32), RATE, "float32"),
        (np.zeros(10, np.float32), 0, "sample_rate is 0"),
    ):
        with pytest.raises(ValueError, match=problem):
            Audio(samples, rate)


FLOATS = arrays.arrays(np.float32, st.integers(0, 50), elements=st.floats(-4, 4, width=32))


@given(FLOATS)
def test_within_half_a_step_or_saturated(samples):
    integers = to_int16(samples)
    assert integers.dtype == np.int16
    assert np.all(np.abs(integers.astype(np.int64)) <= 32767)
    expected = np.clip(samples.astype(np.float64) * 32768, -32767, 32767)
    assert np.all(np.abs(integers - expected) <= 0.5)


def test_all_16_bit_samples_come_back():
    integers = np.arange(-32767, 32768, dtype=np.int16)
    np.testing.assert_array_equal(to_int16(integers / np.float32(32768)), integers)


def test_nan_is_an_error():
    with pytest.raises(ValueError, match="2 of 4 samples are NaN"):
        to_int16(np.array([0, np.nan, 0.5, np.nan], np.float32))


@pytest.fixture
def speech(audio_data):
    """2 s of a recording, without silence at its ends."""
    whole = decode_audio(audio_data.parent / "mini" / "unheard.flac")
    return Audio(whole.samples[whole.sample_rate // 2 : whole.sample_rate * 5 // 2], whole.sample_rate)


def changed(samples, rate=24_000):
    return improved(Audio(samples.astype(np.float32), rate))


@pytest.mark.parametrize("snr_db", [None, 60, 40, 25])
@pytest.mark.parametrize(("before_s", "after_s"), [(0, 1), (1, 0), (2, 3)])
def test_silence_and_noise_at_the_ends_are_trimmed_to_a_margin(speech, snr_db, before_s, after_s):
    rate = speech.sample_rate
    samples = np.pad(speech.samples, (before_s * rate, after_s * rate))
    if snr_db is not None:
        noise = np.random.default_rng(0).normal(size=len(samples)) * np.sqrt(np.mean(speech.samples**2))
        samples = samples + noise * 10 ** (-snr_db / 20)
    left = changed(samples, rate)
    margins = 0.2 * ((before_s > 0) + (after_s > 0))
    assert 1.6 < left.duration_s <= 2 + margins + 0.02
    assert left.samples.tobytes() in samples.astype(np.float32).tobytes()  # nothing else is changed


def test_a_click_is_not_speech_and_a_pause_is(speech):
    rate = speech.sample_rate
    parts = speech.samples[:rate], np.zeros(rate), speech.samples[rate:], np.zeros(2 * rate)
    samples = np.concatenate(parts)
    samples[-rate // 2 : -rate // 2 + 100] = 0.8
    assert 2.6 < changed(samples, rate).duration_s < 3.25


@pytest.mark.parametrize("gain_db", [-50, -35])
def test_quiet_speech_is_brought_up(speech, gain_db):
    quiet, usual = changed(speech.samples * 10 ** (gain_db / 20)), changed(speech.samples)
    rms = [np.sqrt(np.mean(one.samples**2)) for one in (quiet, usual)]
    assert 20 * np.log10(rms[1] / rms[0]) < 20
    assert len(quiet.samples) == len(usual.samples)
    np.testing.assert_array_equal(usual.samples, changed(usual.samples).samples)


def test_speech_beyond_full_scale_is_brought_down(speech):
    loud = improved(Audio(speech.samples * 50, speech.sample_rate))
    assert round(float(np.abs(loud.samples).max()), 4) == 1.0


@pytest.mark.parametrize("sounding_s", [0.02, 0.2, 0.5])
def test_a_short_sound_leaves_what_an_extractor_needs(tone, sounding_s):
    samples = np.concatenate([np.zeros(24_000), tone(440, 24_000, sounding_s), np.zeros(24_000)])
    left = changed(samples)
    check_reference(left)
    assert np.abs(left.samples).max() <= 1


@pytest.mark.parametrize("gain", [0.0, 0.5, 2.0])
def test_louder_samples_stay_below_full_scale_and_in_their_order(gain: float) -> None:
    samples = np.linspace(-1, 1, 2_001, dtype=np.float32)
    louder = amplified(samples, gain)
    assert louder.dtype == np.float32
    assert np.abs(louder).max() <= min(1.0, gain)
    linear = np.abs(samples * gain) <= (0.8 if gain > 1 else 1.0)
    assert louder[linear] == pytest.approx(samples[linear] * gain)
    steps = np.diff(louder)
    assert steps.min() >= 0  # no sample is folded back
    assert steps.max() <= 1.001 * gain * 0.001 + 1e-6  # and none jumps
