"""Each format shows the tag to FFmpeg and other readers, and no sample changes."""

from __future__ import annotations

import io
import re
import struct
import wave

import av
import numpy as np
import pytest
import soundfile

from vivavoce.frontend.audio.decode import decode_audio
from vivavoce.frontend.audio.encode import AudioFormat, encode_whole, open_encoder, write_audio
from vivavoce.frontend.audio.encoders import wav_header
from vivavoce.frontend.audio.samples import to_int16
from vivavoce.frontend.audio.tag import AudioTag, new_tag
from vivavoce.version import __version__

TAG = AudioTag("模型 CosyVoice2", "2026-01-31T12:00:00Z")
SHOWN = {
    "artist": "模型 CosyVoice2",
    "comment": "AI-generated speech",
    "date": "2026-01-31T12:00:00Z",
    "encoder": f"vivavoce {__version__}",
}
BARE = (AudioFormat.PCM, AudioFormat.ULAW, AudioFormat.ALAW)
TAGGED = [format for format in AudioFormat if format not in BARE]
CUTS = [0, 1, 2, 480, 577, 1_000, 9_600]


@pytest.fixture
def noise() -> np.ndarray:
    return (0.3 * np.random.default_rng(3).standard_normal(12_000)).astype(np.float32)


def heard(data: bytes) -> tuple[np.ndarray, dict[str, str]]:
    """The samples and the tag, as FFmpeg finds them without being told the format."""
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.audio[0]
        frames = [frame.to_ndarray() for frame in container.decode(stream)]
        found = {**stream.metadata, **container.metadata}
    return np.concatenate(frames, axis=-1), {name.lower(): value for name, value in found.items()}


def streamed(format: AudioFormat, samples: np.ndarray, tag: AudioTag | None) -> bytes:
    encoder = open_encoder(format, 24_000, tag=tag)
    return b"".join(encoder.encode(piece) for piece in np.split(samples, CUTS)) + encoder.finish()


@pytest.mark.parametrize("format", TAGGED)
@pytest.mark.parametrize(
    "make", [streamed, lambda format, samples, tag: encode_whole(format, samples, 24_000, tag=tag)]
)
def test_the_tag_is_shown_and_the_samples_stay(format, make, noise):
    tagged, plain = make(format, noise, TAG), make(format, noise, None)
    samples, shown = heard(tagged)
    expected, untagged = heard(plain)
    np.testing.assert_array_equal(samples, expected)
    wanted = {**SHOWN, "date": "2026-01-31T12:00:00"} if format in ("mp3", "aac") else SHOWN
    assert {name: shown.get(name) for name in wanted} == wanted
    assert "comment" not in untagged
    ours, theirs = decode_audio(tagged), decode_audio(plain)
    np.testing.assert_array_equal(ours.samples, theirs.samples)
    assert len(tagged) - len(plain) < 300


@pytest.mark.parametrize("format", [*TAGGED, *BARE])
def test_speech_of_no_length(format):
    nothing = np.zeros(0, np.float32)
    encoder = open_encoder(format, 24_000, tag=TAG)
    data = encoder.encode(nothing) + encoder.encode(nothing) + encoder.finish()
    if format in ("wav", "flac"):
        whole = encode_whole(format, nothing, 24_000, tag=TAG)
        for one in (data, whole):
            with av.open(io.BytesIO(one)) as container:
                assert not any(frame.samples for frame in container.decode(audio=0))
                assert b"AI-generated speech" in one
    else:
        assert data == b"", "decoders refuse a tag alone"


@pytest.mark.parametrize("format", BARE)
def test_samples_without_a_header_have_no_tag(format, noise):
    assert streamed(format, noise, TAG) == streamed(format, noise, None)


def test_wav_for_other_readers(noise):
    data = encode_whole(AudioFormat.WAV, noise, 24_000, tag=TAG)
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getframerate(), file.getnframes()) == (24_000, len(noise))
        assert file.readframes(len(noise)) == to_int16(noise).tobytes()
    assert struct.unpack_from("<I", data, 4) == (len(data) - 8,)
    header = wav_header(24_000, None, TAG)
    assert data[8:36] == header[8:36] == wav_header(24_000, None)[8:36], "what simple readers look at stays in place"
    assert len(header) % 2 == 0, "samples begin at an even byte"
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        assert (file.comment, file.artist) == (SHOWN["comment"], SHOWN["artist"])


def test_the_rewritten_header_of_a_stream(noise):
    for format in (AudioFormat.WAV, AudioFormat.FLAC):
        encoder = open_encoder(format, 24_000, tag=TAG)
        data = encoder.encode(noise) + encoder.finish()
        header = encoder.whole_header()
        assert header + data[len(header) :] == encode_whole(format, noise, 24_000, tag=TAG)


def test_answers_one_after_the_other_are_heard_to_the_end(noise):
    one, plain = (encode_whole(AudioFormat.AAC, noise, 24_000, tag=tag) for tag in (TAG, None))
    np.testing.assert_array_equal(heard(one + one)[0], heard(plain + plain)[0])


@pytest.mark.parametrize("format", TAGGED)
def test_odd_names_of_models(format, noise):
    name = "a\0b\n\ud800" + "é" * 500
    _, shown = heard(encode_whole(format, noise, 24_000, tag=AudioTag(name, TAG.made)))
    assert shown["artist"] == "ab" + "é" * 198
    _, shown = heard(encode_whole(format, noise, 24_000, tag=AudioTag("", TAG.made)))
    assert shown["comment"] == SHOWN["comment"]


def test_a_new_tag_has_the_time():
    tag = new_tag("mini")
    assert tag.model == "mini"
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", tag.made)


def test_a_file_is_tagged(tmp_path, noise):
    write_audio(tmp_path / "a.flac", noise, 24_000, tag=TAG)
    assert heard((tmp_path / "a.flac").read_bytes())[1]["comment"] == SHOWN["comment"]
