from __future__ import annotations

import io
import os
import re
from pathlib import Path

import numpy as np
import pytest
import soundfile

from vivavoce.errors import InvalidAudio
from vivavoce.service.audio import source as source_module
from vivavoce.service.audio.decode import decode_audio
from vivavoce.service.audio.wav import wav_header

SOUNDFILE_CASES = [
    (8_000, "WAV", "PCM_16"),
    (24_000, "WAV", "FLOAT"),
    (96_000, "WAV", "PCM_24"),
    (44_100, "AIFF", "PCM_16"),
    (48_000, "FLAC", "PCM_16"),
    (44_100, "MP3", None),
    (24_000, "OGG", "VORBIS"),
    (48_000, "OGG", "OPUS"),
]
AV_CASES = [(44_100, "ipod", "aac"), (48_000, "webm", "libopus"), (16_000, "adts", "aac"), (24_000, "ipod", "alac")]


def amplitude(samples: np.ndarray) -> float:
    """Amplitude of a sine, away from its ends, where lossy encoders overshoot."""
    middle = samples[len(samples) // 4 : -len(samples) // 4]
    return float(np.sqrt(2 * np.mean(middle**2)))


@pytest.mark.parametrize(("sample_rate", "container", "subtype"), SOUNDFILE_CASES)
def test_tone_survives_what_libsndfile_reads(tmp_path, tone, loudest_hz, sample_rate, container, subtype):
    path = tmp_path / "tone"
    soundfile.write(path, tone(440, sample_rate), sample_rate, format=container, subtype=subtype)
    audio = decode_audio(path)
    assert audio.sample_rate == sample_rate
    assert audio.samples.dtype == np.float32
    assert audio.duration_s == pytest.approx(1.0, abs=0.05)
    assert loudest_hz(audio.samples, sample_rate) == pytest.approx(440, abs=3)
    assert amplitude(audio.samples) == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(("sample_rate", "container", "codec"), AV_CASES)
def test_tone_survives_what_ffmpeg_reads(tone, encode_av, loudest_hz, sample_rate, container, codec):
    audio = decode_audio(encode_av(tone(440, sample_rate), sample_rate, container, codec))
    assert audio.sample_rate == sample_rate
    assert audio.samples.dtype == np.float32
    assert audio.duration_s == pytest.approx(1.0, abs=0.15)
    assert loudest_hz(audio.samples, sample_rate) == pytest.approx(440, abs=3)
    assert amplitude(audio.samples) == pytest.approx(0.5, rel=0.05)


def test_channels_are_averaged(tone, encode):
    left, right = tone(300, 24_000), tone(700, 24_000)
    audio = decode_audio(encode(np.stack([left, right], 1), 24_000, "WAV", "FLOAT"))
    np.testing.assert_array_equal(audio.samples, (left + right) / 2)


def test_samples_beyond_full_scale_are_kept(encode):
    loud = np.array([1.5, -2.0] * 500, np.float32)
    np.testing.assert_array_equal(decode_audio(encode(loud, 16_000, "WAV", "FLOAT")).samples, loud)


def test_long_file_is_read_in_blocks_without_seams(encode):
    noise = np.random.default_rng(0).standard_normal(700_001).astype(np.float32)
    np.testing.assert_array_equal(decode_audio(encode(noise, 48_000, "WAV", "FLOAT")).samples, noise)


def test_every_kind_of_source_gives_the_same(tmp_path, tone, encode):
    content = encode(tone(440, 24_000), 24_000)
    path = tmp_path / "tone.wav"
    path.write_bytes(content)
    with path.open("rb") as file:
        sources = [str(path), path, content, io.BytesIO(content), file]
        decoded = [decode_audio(source).samples for source in sources]
    for samples in decoded:
        np.testing.assert_array_equal(samples, decoded[0])


def test_source_may_give_less_than_asked(tone, encode):
    content = encode(tone(440, 24_000), 24_000)

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(100)

    assert len(decode_audio(Slow(content)).samples) == 24_000


def test_wav_of_unknown_length_is_read_to_its_end():
    ramp = np.arange(12_000, dtype="<i2")
    audio = decode_audio(wav_header(24_000, None) + ramp.tobytes())
    np.testing.assert_array_equal(audio.samples, ramp / np.float32(32768))


def refusal(source, **options) -> str:
    with pytest.raises(InvalidAudio) as caught:
        decode_audio(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert re.search(r"; \w+", message), "the message must end with what to do"
    return message


def test_missing_file_is_named_without_its_folder(tmp_path):
    message = refusal(tmp_path / "absent.wav", field="source audio")
    assert message.startswith("source audio: 'absent.wav' does not exist")
    assert str(tmp_path) not in message


def test_directory(tmp_path):
    assert "is a directory" in refusal(tmp_path)


@pytest.mark.parametrize("path", ["a\0b.wav", "\ud800.wav"])
def test_impossible_file_name(path):
    assert "not a possible file name" in refusal(path)


def test_file_name_too_long():
    assert "cannot be read" in refusal("x" * 5000)


def test_empty_file(tmp_path):
    path = tmp_path / "empty.wav"
    path.touch()
    assert "'empty.wav' is empty (0 bytes)" in refusal(path)


def test_text_named_wav(tmp_path):
    path = tmp_path / "text.wav"
    path.write_text("not a sound\n" * 100)
    assert "'text.wav' is not an audio file" in refusal(path)


def test_random_bytes():
    assert "not an audio file" in refusal(np.random.default_rng(1).bytes(20_000))


def test_playlist_cannot_make_us_open_other_files(tmp_path, monkeypatch, tone):
    soundfile.write(tmp_path / "secret.wav", tone(440, 24_000), 24_000)
    monkeypatch.chdir(tmp_path)
    assert "not an audio file" in refusal(b"ffconcat version 1.0\nfile secret.wav\n")


@pytest.mark.parametrize(
    ("container", "subtype"),
    [("WAV", "PCM_16"), ("WAV", "FLOAT"), ("AIFF", None), ("FLAC", None), ("OGG", "VORBIS"), ("MP3", None)],
)
def test_truncated_file(tone, encode, container, subtype):
    content = encode(tone(440, 24_000), 24_000, container, subtype)
    refusal(content[: len(content) // 2])
    refusal(content[:100])


@pytest.mark.parametrize(("container", "codec"), [("ipod", "aac"), ("webm", "libopus"), ("adts", "aac")])
def test_truncated_ffmpeg_file(tone, encode_av, container, codec):
    content = encode_av(tone(440, 48_000), 48_000, container, codec)
    refusal(content[: len(content) // 2])
    refusal(content[:100])


def test_truncation_is_told_in_seconds(tone, encode):
    content = encode(tone(440, 24_000), 24_000)
    assert "its header promises 1.00 s, 0.50 s are there" in refusal(content[: 44 + 24_000])


@pytest.mark.parametrize(("container", "subtype"), [("FLAC", None), ("OGG", "VORBIS"), ("MP3", None)])
def test_corrupt_middle(tone, encode, container, subtype, capfd):
    content = bytearray(encode(tone(440, 24_000), 24_000, container, subtype))
    middle = len(content) // 2
    content[middle : middle + 400] = np.random.default_rng(0).bytes(400)
    refusal(bytes(content))
    assert "Traceback" not in capfd.readouterr().err


def test_corrupt_ffmpeg_file(tone, encode_av):
    content = bytearray(encode_av(tone(440, 48_000), 48_000, "ipod", "aac"))
    middle = len(content) // 2
    content[middle : middle + 400] = np.random.default_rng(0).bytes(400)
    assert "damaged" in refusal(bytes(content))


def test_zero_samples(encode):
    assert "holds 0 samples" in refusal(encode(np.zeros(0, np.float32), 24_000))


def test_samples_that_are_not_finite_are_counted(tone, encode):
    samples = tone(440, 24_000)
    samples[5:8], samples[9] = np.nan, np.inf
    assert "has 4 of 24000 samples that are NaN or infinite" in refusal(encode(samples, 24_000, "WAV", "FLOAT"))


def test_channels_whose_sum_overflows_are_refused(encode):
    huge = np.full((1000, 2), 3e38, np.float32)
    assert "1000 of 1000 samples" in refusal(encode(huge, 24_000, "WAV", "FLOAT"))


@pytest.mark.parametrize("sample_rate", [4_000, 7_999, 192_001, 384_000])
def test_sample_rate_out_of_limits(encode, sample_rate):
    message = refusal(encode(np.zeros(1000, np.float32), sample_rate))
    assert f"sample rate of {sample_rate} Hz" in message
    assert "8000 and 192000" in message


def test_too_long_by_its_header(tone, encode):
    message = refusal(encode(tone(440, 24_000, 3.5), 24_000), max_seconds=3)
    assert "lasts 3.5 s; the limit is 3 s" in message
    assert len(decode_audio(encode(tone(440, 24_000, 3), 24_000), max_seconds=3).samples) == 72_000


def test_too_long_without_a_trusted_header_stops_at_the_limit(tone, encode_av, monkeypatch):
    decoded = []
    real = np.concatenate
    monkeypatch.setattr(np, "concatenate", lambda blocks: decoded.append(len(blocks)) or real(blocks))
    content = encode_av(tone(440, 16_000, 5), 16_000, "adts", "aac")
    assert "lasts more than 1 s; the limit is 1 s" in refusal(content, max_seconds=1)
    assert not decoded


def test_compressed_hours_are_refused_by_their_header(encode):
    hours = encode(np.zeros(8_000 * 3600, np.int16), 8_000, "FLAC")
    assert len(hours) < 1_000_000
    assert "lasts 3600.0 s; the limit is 600 s" in refusal(hours)


def test_too_many_bytes(monkeypatch):
    monkeypatch.setattr(source_module, "MAX_FILE_BYTES", 1 << 20)
    assert "larger than 1 MiB" in refusal(bytes((1 << 20) + 1))


def test_endless_source_is_not_read_to_the_end():
    class Endless(io.RawIOBase):
        given = 0

        def read(self, size: int = -1) -> bytes:
            self.given += size
            return bytes(size)

    endless = Endless()
    assert "larger than 64 MiB" in refusal(endless)
    assert endless.given <= source_module.MAX_FILE_BYTES + (1 << 21)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(tmp_path: Path):
    path = tmp_path / "locked.wav"
    path.touch(mode=0o000)
    assert "Permission denied" in refusal(path)
