"""Recordings decoded in another process: what comes back, and what a hostile one can do; see `hostile_decoder`."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest

from tests.frontend.audio import hostile_decoder
from vivavoce.errors import InvalidAudio, MissingDependency
from vivavoce.frontend.audio.decode import decode_audio
from vivavoce.frontend.audio.decoding_process import DecodingProcess

MODULE = "vivavoce.frontend.audio.decoding_process"


@pytest.fixture(scope="module")
def decoding():
    process = DecodingProcess()
    yield process
    process.close()


@pytest.fixture(scope="module")
def hostile():
    process = DecodingProcess((sys.executable, hostile_decoder.__file__))
    yield process
    process.close()


def test_every_format_is_what_it_is_here(decoding, tone, encode, encode_av):
    wave = tone(440, 48_000)
    recordings = [
        *(encode(wave, 48_000, kind) for kind in ("WAV", "FLAC", "MP3", "AIFF")),
        *(encode(wave, 48_000, "OGG", codec) for codec in ("VORBIS", "OPUS")),
        *(encode_av(wave, 48_000, *kind) for kind in (("mp4", "aac"), ("adts", "aac"), ("webm", "libopus"))),
    ]
    for recording in recordings:
        here, there = decode_audio(recording), decoding.decode(recording)
        assert there.sample_rate == here.sample_rate
        assert np.array_equal(there.samples, here.samples)
        assert there.samples.flags.writeable


@pytest.mark.parametrize("recording", [b"no audio", b"", b"RIFF\x00\x00\x00\x00WAVE", bytes(100)])
def test_what_is_wrong_with_one_is_told_in_the_same_words(decoding, recording):
    with pytest.raises(InvalidAudio) as here:
        decode_audio(recording, field="source audio")
    with pytest.raises(InvalidAudio) as there:
        decoding.decode(recording, field="source audio")
    assert str(there.value) == str(here.value)


def test_one_that_is_too_long_is_refused(decoding, tone, encode):
    with pytest.raises(InvalidAudio, match=r"the limit is 0\.5 s"):
        decoding.decode(encode(tone(440, 8_000), 8_000), max_seconds=0.5)


def test_a_hostile_one_opens_neither_file_nor_socket_and_keeps_its_limits(hostile):
    with pytest.raises(InvalidAudio, match=r"^done: \[\]$"):
        hostile.decode(b"t")


@pytest.mark.parametrize(
    ("recording", "told"),
    [(b"m", "more than 1024 MiB"), *((what, "breaks") for what in (b"k", b"g", b"i", b"n", b"u"))],
)
def test_one_that_takes_too_much_or_breaks_the_decoder_is_refused_and_the_next_is_decoded(
    hostile, tone, encode, recording, told
):
    with pytest.raises(InvalidAudio, match=told) as error:
        hostile.decode(recording)
    assert "\n" not in str(error.value)
    assert "WAV" in str(error.value)
    assert len(hostile.decode(encode(tone(440, 8_000), 8_000)).samples) == 8_000


@pytest.mark.parametrize("recording", [b"l", b"c"])
def test_one_that_lasts_is_given_up(hostile, tone, encode, monkeypatch, recording):
    hostile.decode(encode(tone(440, 8_000), 8_000))
    monkeypatch.setattr(f"{MODULE}.DECODE_S", 0.5)
    began = time.monotonic()
    with pytest.raises(InvalidAudio, match="takes too long"):
        hostile.decode(recording)
    assert time.monotonic() - began < hostile_decoder.LASTS_S / 2
    monkeypatch.undo()
    assert len(hostile.decode(encode(tone(440, 8_000), 8_000)).samples) == 8_000


def test_one_that_comes_after_the_process_was_ended_is_not_blamed(hostile, tone, encode):
    hostile._process.kill()
    hostile._process.wait()
    assert len(hostile.decode(encode(tone(440, 8_000), 8_000)).samples) == 8_000


def test_one_that_cannot_start_blames_no_recording():
    decoding = DecodingProcess((sys.executable, "-c", "import no_such_library"))
    with pytest.raises(MissingDependency, match="does not start"):
        decoding.check()
    decoding.close()
