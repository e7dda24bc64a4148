"""Every format is encoded piece by piece and decoded again with FFmpeg, whole and as far as it has come."""

from __future__ import annotations

import numpy as np
import pytest
import soundfile
from decoded import as_decoded, decode, decoded_rate, encode_cut

from vivavoce.service.audio.encode import open_encoder
from vivavoce.service.audio.formats import AudioFormat
from vivavoce.service.audio.pcm import to_int16

FORMATS = list(AudioFormat)
LOSSLESS = [AudioFormat.FLAC, AudioFormat.WAV, AudioFormat.PCM]
LOSSY = [AudioFormat.MP3, AudioFormat.OPUS, AudioFormat.AAC]
RATES = [24_000, 22_050]

LEAD = {AudioFormat.MP3: 1105, AudioFormat.AAC: 1024}
"""Samples that a decoder puts first."""

FRAME = {AudioFormat.MP3: 576, AudioFormat.AAC: 1024}

DELAY_S = {
    AudioFormat.MP3: 2256 / 24_000,
    AudioFormat.AAC: 3071 / 24_000,
    AudioFormat.OPUS: 0.0265,
    AudioFormat.FLAC: 0.02,
    AudioFormat.WAV: 0.0,
    AudioFormat.PCM: 0.0,
}
"""What the table of `open_encoder` promises at 24 kHz."""


@pytest.fixture
def speech(audio_data) -> np.ndarray:
    samples, _ = soundfile.read(audio_data / "speech_24k_float.wav", dtype="float32")
    return samples


def correlation(left: np.ndarray, right: np.ndarray) -> float:
    return float(np.corrcoef(left, right)[0, 1])


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("format", LOSSY)
def test_lossy_audio_is_close_and_in_its_place(format, rate, speech):
    heard = decode(format, encode_cut(format, speech, rate, [5_000, 5_001, 20_000]), rate)
    said = as_decoded(format, speech, rate)
    lead = LEAD.get(format, 0)
    assert correlation(heard[lead : lead + len(said)], said) > 0.99
    for shift in (-2, 2):
        moved = np.roll(heard, shift)[lead : lead + len(said)]
        assert correlation(moved, said) < correlation(heard[lead : lead + len(said)], said)
    assert np.abs(heard[:lead]).max(initial=0) < 0.05
    assert np.abs(heard[lead + len(said) :]).max(initial=0) < 0.05


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("num_samples", [24_000, 23_999, 1_152, 575, 481, 100])
def test_length(num_samples, rate, speech):
    for format in LOSSY:
        heard = len(decode(format, encode_cut(format, speech[:num_samples], rate, []), rate))
        if format is AudioFormat.OPUS:
            assert heard == -(-num_samples * 48_000 // rate)
        else:
            needed = LEAD[format] + num_samples
            assert needed <= heard <= needed + 2 * FRAME[format], format


@pytest.mark.parametrize("rate", [*RATES, 16_000, 44_100])
@pytest.mark.parametrize("format", LOSSLESS)
def test_lossless_audio_is_the_16_bit_samples(format, rate, speech):
    loud = np.concatenate([speech, 3 * speech, np.array([np.inf, -np.inf, 1, -1], np.float32)])
    heard = decode(format, encode_cut(format, loud, rate, [1, 700, 30_000]), rate)
    np.testing.assert_array_equal(heard * 32768, to_int16(loud))


@pytest.mark.parametrize("format", LOSSY)
def test_lossy_audio_is_cut_at_full_scale(format, tone):
    heard = decode(format, encode_cut(format, 40 * tone(440, 24_000), 24_000, []), 24_000)
    assert 0.9 < np.abs(heard).max() < 2


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("format", FORMATS)
def test_where_samples_are_cut_is_not_heard(format, rate, speech):
    whole = decode(format, encode_cut(format, speech, rate, []), rate)
    for cuts in (
        [0, 0, 1, 2, 2, 480, 577, 1_000, 28_799],
        list(range(960, 28_800, 960)),
        sorted(np.random.default_rng(7).integers(0, 28_800, 200).tolist()),
    ):
        np.testing.assert_array_equal(decode(format, encode_cut(format, speech, rate, cuts), rate), whole)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("format", FORMATS)
def test_audio_is_heard_within_the_promised_delay(format, rate, speech):
    said = speech[:7_000]
    whole = decode(format, encode_cut(format, said, rate, []), rate)
    resampled_s = 0.001 if format is AudioFormat.OPUS and rate == 22_050 else 0
    allowed_s = resampled_s + DELAY_S[format] * (24_000 / rate if format in LEAD else 1)
    encoder, data, num_given, delays_s = open_encoder(format, rate), b"", 0, []
    for piece in np.split(said, range(61, 7_000, 61)):
        data += encoder.encode(piece)
        num_given += len(piece)
        heard = decode(format, data, rate)
        np.testing.assert_array_equal(heard, whole[: len(heard)])
        num_heard = max(0, len(heard) - LEAD.get(format, 0))
        delays_s.append(num_given / rate - num_heard / decoded_rate(format, rate))
    assert max(delays_s) <= allowed_s + 1e-9
    assert max(delays_s) >= 0.9 * allowed_s, "the documentation promises too little"


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("format", FORMATS)
def test_no_samples_at_all(format, rate):
    nothing = np.zeros(0, np.float32)
    never_asked, asked = open_encoder(format, rate), open_encoder(format, rate)
    data = asked.encode(nothing) + asked.encode(nothing) + asked.finish()
    assert never_asked.finish() == data
    assert (data != b"") == (format in (AudioFormat.FLAC, AudioFormat.WAV))
    assert len(decode(format, data, rate)) == 0


@pytest.mark.parametrize("num_samples", [1, 2, 15, 16, 17])
@pytest.mark.parametrize("format", FORMATS)
def test_a_few_samples(format, num_samples):
    data = encode_cut(format, np.full(num_samples, 0.5, np.float32), 24_000, [1])
    assert len(decode(format, data, 24_000)) >= num_samples


def test_less_than_a_millisecond_may_be_lost_when_it_is_resampled():
    data = encode_cut(AudioFormat.OPUS, np.full(1, 0.5, np.float32), 22_050, [])
    assert len(decode(AudioFormat.OPUS, data, 22_050)) <= 3


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 32_000, 44_100, 48_000, 96_000])
@pytest.mark.parametrize("format", [AudioFormat.OPUS, AudioFormat.MP3, AudioFormat.AAC, AudioFormat.FLAC])
def test_other_rates(format, rate, tone, loudest_hz):
    data = encode_cut(format, tone(1_000, rate), rate, [1_000])
    known = min(rate, 48_000) if format is AudioFormat.MP3 else rate
    heard = decode(format, data, known)
    assert len(heard) >= decoded_rate(format, known)
    assert loudest_hz(heard, decoded_rate(format, known)) == pytest.approx(1_000, rel=0.01)
