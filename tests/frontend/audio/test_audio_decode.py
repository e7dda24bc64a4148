from __future__ import annotations

import io
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile

from vivavoce.errors import InvalidAudio
from vivavoce.frontend.audio.decode import MAX_FILE_BYTES, decode_audio, mp3_has_index
from vivavoce.frontend.audio.encoders import wav_header
from vivavoce.frontend.audio.samples import audio_of


@pytest.mark.parametrize(
    ("by", "sample_rate", "container", "codec"),
    [
        ("libsndfile", 8_000, "WAV", "PCM_16"),
        ("libsndfile", 24_000, "WAV", "FLOAT"),
        ("libsndfile", 96_000, "WAV", "PCM_24"),
        ("libsndfile", 44_100, "AIFF", "PCM_16"),
        ("libsndfile", 48_000, "FLAC", "PCM_16"),
        ("libsndfile", 44_100, "MP3", None),
        ("libsndfile", 24_000, "OGG", "VORBIS"),
        ("libsndfile", 48_000, "OGG", "OPUS"),
        ("FFmpeg", 44_100, "ipod", "aac"),
        ("FFmpeg", 48_000, "webm", "libopus"),
        ("FFmpeg", 16_000, "adts", "aac"),
        ("FFmpeg", 24_000, "ipod", "alac"),
    ],
)
def test_a_tone_survives(tone, encode, encode_av, loudest_hz, by, sample_rate, container, codec):
    write = encode if by == "libsndfile" else encode_av
    audio = decode_audio(write(tone(440, sample_rate), sample_rate, container, codec))
    assert audio.sample_rate == sample_rate
    assert audio.samples.dtype == np.float32
    assert audio.duration_s == pytest.approx(1.0, abs=0.05 if by == "libsndfile" else 0.15)
    assert loudest_hz(audio.samples, sample_rate) == pytest.approx(440, abs=3)
    middle = audio.samples[len(audio.samples) // 4 : -len(audio.samples) // 4]  # lossy encoders overshoot at the ends
    assert np.sqrt(2 * np.mean(middle**2)) == pytest.approx(0.5, rel=0.05)


def test_channels_are_averaged(tone, encode):
    left, right = tone(300, 24_000), tone(700, 24_000)
    audio = decode_audio(encode(np.stack([left, right], 1), 24_000, "WAV", "FLOAT"))
    np.testing.assert_array_equal(audio.samples, (left + right) / 2)


@pytest.mark.parametrize(("container", "subtype"), [("WAV", "FLOAT"), ("FLAC", "PCM_16"), ("OGG", "VORBIS")])
def test_channels_that_cancel_each_other_are_one(tone, encode, container, subtype):
    left = tone(300, 24_000)
    heard = decode_audio(encode(np.stack([left, -left], 1), 24_000, container, subtype)).samples
    np.testing.assert_allclose(heard[2_000:-2_000], left[2_000:-2_000], atol=0.03)
    np.testing.assert_array_equal(audio_of((np.stack([left, -left]), 24_000)).samples, left)
    right = tone(700, 24_000)
    np.testing.assert_array_equal(audio_of((np.stack([left, right], 1), 24_000)).samples, (left + right) / 2)


def test_samples_beyond_full_scale_are_kept(encode):
    loud = np.array([1.5, -2.0] * 500, np.float32)
    np.testing.assert_array_equal(decode_audio(encode(loud, 16_000, "WAV", "FLOAT")).samples, loud)


def test_every_kind_of_source_gives_the_same(tmp_path, tone, encode):
    content = encode(tone(440, 24_000), 24_000)
    path = tmp_path / "tone.wav"
    path.write_bytes(content)
    with path.open("rb") as file:
        sources = [str(path), path, content, io.BytesIO(content), file]
        decoded = [decode_audio(source).samples for source in sources]
    for samples in decoded:
        np.testing.assert_array_equal(samples, decoded[0])


def test_wav_of_unknown_length_is_read_to_its_end():
    ramp = np.arange(12_000, dtype="<i2")
    audio = decode_audio(wav_header(24_000, None) + ramp.tobytes())
    np.testing.assert_array_equal(audio.samples, ramp / np.float32(32768))


@pytest.mark.parametrize("riff_size", [0, 36, 36 + 24_000, 0xFFFFFFFF])
@pytest.mark.parametrize("data_size", [0, 0xFFFFFFFF])
def test_wav_that_was_written_as_a_stream_is_read_to_its_end(riff_size, data_size):
    ramp = np.arange(12_000, dtype="<i2").tobytes()
    head = bytearray(wav_header(24_000, None))
    struct.pack_into("<I", head, 4, riff_size)
    struct.pack_into("<I", head, 40, data_size)
    np.testing.assert_array_equal(decode_audio(bytes(head) + ramp).samples * 32768, np.arange(12_000))


@pytest.mark.parametrize(
    "listed",
    [
        b"LIST" + struct.pack("<I", 4) + b"INFO",
        b"bext" + struct.pack("<I", 3) + b"abc" + b"\0id3 \0\0\0\0",
        b"cue \1\0\0\0a",
    ],
)
def test_wav_without_samples_has_none_after_it(listed):
    head = bytearray(wav_header(24_000, 0) + listed)
    struct.pack_into("<I", head, 4, len(head) - 8)
    with pytest.raises(InvalidAudio, match="holds 0 samples"):
        decode_audio(bytes(head))


@pytest.mark.parametrize(
    ("container", "codec"), [("ipod", "aac"), ("adts", "aac"), ("mp3", "libmp3lame"), ("webm", "libopus")]
)
def test_padding_of_an_encoder_does_not_exceed_the_limit(tone, encode_av, container, codec):
    content = encode_av(tone(440, 48_000, 2.0), 48_000, container, codec)
    content = content.replace(b"Xing", b"????").replace(b"Info", b"????")
    assert 1.9 < decode_audio(content, max_seconds=2).duration_s <= 2
    assert "the limit is 1.8 s" in refusal(content, max_seconds=1.8)


def refusal(source, **options) -> str:
    with pytest.raises(InvalidAudio) as caught:
        decode_audio(source, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert re.search(r"; \w+", message), "the message must end with what to do"
    return message


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
    message = refusal(content[: len(content) // 2])
    assert subtype != "PCM_16" or "its header promises 1.00 s, but it has 0.50 s" in message
    refusal(content[:100])


@pytest.mark.parametrize(("container", "subtype"), [("FLAC", None), ("OGG", "VORBIS"), ("MP3", None)])
def test_corrupt_middle(tone, encode, container, subtype, capfd):
    content = bytearray(encode(tone(440, 24_000), 24_000, container, subtype))
    middle = len(content) // 2
    content[middle : middle + 400] = np.random.default_rng(0).bytes(400)
    refusal(bytes(content))
    assert "Traceback" not in capfd.readouterr().err


def test_samples_that_are_not_finite_are_counted(tone, encode):
    samples = tone(440, 24_000)
    samples[5:8], samples[9] = np.nan, np.inf
    assert "has 4 of 24000 samples that are NaN or infinite" in refusal(encode(samples, 24_000, "WAV", "FLOAT"))
    overflowing = np.full((1000, 2), 3e38, np.float32)  # as the channels are summed
    assert "1000 of 1000 samples" in refusal(encode(overflowing, 24_000, "WAV", "FLOAT"))


@pytest.mark.parametrize("subtype", ["VORBIS", "OPUS"])
def test_ogg_streams_one_after_the_other_are_all_read(tone, encode, loudest_hz, subtype):
    audio = decode_audio(b"".join(encode(tone(hz, 48_000), 48_000, "OGG", subtype) for hz in (440, 700)))
    assert audio.duration_s == pytest.approx(2.0, abs=0.1)
    half = len(audio.samples) // 2
    assert loudest_hz(audio.samples[:half], audio.sample_rate) == pytest.approx(440, abs=3)
    assert loudest_hz(audio.samples[half:], audio.sample_rate) == pytest.approx(700, abs=3)


@pytest.mark.parametrize("sample_rate", [4_000, 7_999, 192_001, 384_000])
def test_sample_rate_out_of_limits(encode, sample_rate):
    message = refusal(encode(np.zeros(1000, np.float32), sample_rate))
    assert f"sample rate of {sample_rate} Hz" in message
    assert "8000 and 192000" in message


def test_too_long_by_its_header(tone, encode):
    message = refusal(encode(tone(440, 24_000, 3.5), 24_000), max_seconds=3)
    assert "lasts 3.5 s; the limit is 3 s" in message
    assert len(decode_audio(encode(tone(440, 24_000, 3), 24_000), max_seconds=3).samples) == 72_000
    hours = encode(np.zeros(8_000 * 3600, np.int16), 8_000, "FLAC")
    assert len(hours) < 1_000_000
    assert "lasts 3600.0 s; the limit is 600 s" in refusal(hours)


def test_too_long_without_a_trusted_header_stops_at_the_limit(tone, encode_av, monkeypatch):
    decoded = []
    real = np.concatenate
    monkeypatch.setattr(np, "concatenate", lambda blocks: decoded.append(len(blocks)) or real(blocks))
    content = encode_av(tone(440, 16_000, 5), 16_000, "adts", "aac")
    assert "lasts more than 1 s; the limit is 1 s" in refusal(content, max_seconds=1)
    assert not decoded


def test_endless_source_is_not_read_to_the_end():
    class Endless(io.RawIOBase):
        given = 0

        def read(self, size: int = -1) -> bytes:
            self.given += size
            return bytes(size)

    endless = Endless()
    assert "larger than 64 MiB" in refusal(endless)
    assert endless.given <= MAX_FILE_BYTES + (1 << 21)


def test_index_of_an_mp3_is_found_behind_its_tags(encode):
    content = encode(np.zeros(24_000, np.float32), 24_000, "MP3")
    tags = b"ID3\x04\0\0" + bytes([0, 0, 2, 5]) + bytes(2 * 128 + 5)
    assert mp3_has_index(content)
    assert mp3_has_index(tags + content)
    assert not mp3_has_index(content.replace(b"Xing", b"????").replace(b"Info", b"????"))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("absent.wav", None, "'absent.wav' does not exist"),
        ("", None, "is a directory"),
        ("empty.wav", b"", "'empty.wav' is empty (0 bytes)"),
        ("text.wav", b"not a sound\n" * 100, "'text.wav' is not an audio file"),
        ("a\0b.wav", None, "not a possible file name"),
        ("\ud800.wav", None, "not a possible file name"),
        ("x" * 5000, None, "cannot be read"),
    ],
)
def test_unusable_paths(tmp_path, name, content, words):
    path = f"{tmp_path}/{name}"
    if content is not None:
        Path(path).write_bytes(content)
    message = refusal(path, field="source audio")
    assert message.startswith("source audio: ")
    assert words in message
    assert not name or str(tmp_path) not in message
