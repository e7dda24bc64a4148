"""How encoders are opened, refused, shared out to threads and freed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import numpy as np
import pytest
from decoded import decode, encode_cut

from vivavoce.errors import InvalidRequest, MissingDependency
from vivavoce.service.audio.encode import MAX_BITRATE, MIN_BITRATE, open_encoder
from vivavoce.service.audio.formats import AudioFormat, content_type, format_of, parse_format
from vivavoce.service.audio.packets import Codec, PacketStream

FORMATS = list(AudioFormat)
LOSSY = [AudioFormat.MP3, AudioFormat.OPUS, AudioFormat.AAC]
TASKS = Path("/proc/self/task")


@pytest.fixture
def noise() -> np.ndarray:
    return (0.3 * np.random.default_rng(3).standard_normal(24_000)).astype(np.float32)


def test_formats_have_names():
    assert [parse_format(name) for name in ("mp3", "opus", "aac", "flac", "wav", "pcm")] == FORMATS
    with pytest.raises(InvalidRequest, match=r"response_format: 'MP4' is .*; choose one of mp3, opus, aac, flac, wav,"):
        parse_format("MP4")


def test_content_types():
    types = [content_type(format, 22_050) for format in FORMATS]
    assert types[:-1] == ["audio/mpeg", "audio/ogg", "audio/aac", "audio/flac", "audio/wav"]
    assert types[-1] == "audio/pcm; rate=22050; channels=1"


@pytest.mark.parametrize(
    ("path", "format"),
    [
        ("a.mp3", AudioFormat.MP3),
        (Path("x.wav/A.OPUS"), AudioFormat.OPUS),
        ("a.mp3.ogg", AudioFormat.OPUS),
        ("a.flac", AudioFormat.FLAC),
        ("a.aac", AudioFormat.AAC),
        ("a.pcm", AudioFormat.PCM),
        ("a.raw", AudioFormat.PCM),
        ("a.wav", AudioFormat.WAV),
        ("mp3", AudioFormat.WAV),
        (".mp3", AudioFormat.WAV),
        ("/dev/full", AudioFormat.WAV),
        ("-", AudioFormat.WAV),
    ],
)
def test_suffixes(path, format):
    assert format_of(path) is format


@pytest.mark.parametrize("format", FORMATS)
def test_nan_is_refused_and_nothing_of_it_is_encoded(format, noise):
    encoder = open_encoder(format, 24_000)
    data = encoder.encode(noise[:1_000])
    with pytest.raises(ValueError, match="1 of 3 samples are NaN"):
        encoder.encode(np.array([0, np.nan, 0], np.float32))
    with pytest.raises(ValueError, match=r"shape \(2, 500\), not \[n\]"):
        encoder.encode(noise[:1_000].reshape(2, 500))
    data += encoder.encode(noise[1_000:]) + encoder.finish()
    expected = decode(format, encode_cut(format, noise, 24_000, []), 24_000)
    np.testing.assert_array_equal(decode(format, data, 24_000), expected)


@pytest.mark.parametrize("format", FORMATS)
def test_nothing_follows_the_end(format, noise):
    finished, closed = open_encoder(format, 24_000), open_encoder(format, 24_000)
    finished.finish()
    closed.encode(noise)
    closed.close()
    closed.close()
    for encoder in (finished, closed):
        with pytest.raises(ValueError, match="finished or closed"):
            encoder.encode(noise)
        with pytest.raises(ValueError, match="finished or closed"):
            encoder.finish()
    finished.close()


@pytest.mark.parametrize("format", [*LOSSY, AudioFormat.FLAC])
@pytest.mark.parametrize("end", ["close", "finish"])
def test_the_codec_is_freed(format, end, noise, monkeypatch):
    opened = []

    def opening(*arguments):
        stream = PacketStream(*arguments)
        opened.append(weakref.ref(stream))
        return stream

    monkeypatch.setattr("vivavoce.service.audio.encode_av.PacketStream", opening)
    encoder = open_encoder(format, 24_000)
    encoder.encode(noise)
    assert [stream() is None for stream in opened] == [False]
    getattr(encoder, end)()
    assert [stream() is None for stream in opened] == [True]


@pytest.mark.skipif(not TASKS.exists(), reason="counts threads as Linux tells them")
@pytest.mark.parametrize("format", [*LOSSY, AudioFormat.FLAC])
def test_encoders_start_no_threads(format, noise):
    before = {task.name for task in TASKS.iterdir()}
    encoders = [open_encoder(format, 24_000) for _ in range(3)]
    for encoder in encoders:
        encoder.encode(noise)
    assert {task.name for task in TASKS.iterdir()} <= before


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="asks which processors a thread may use")
def test_the_thread_keeps_its_processors(noise):
    before = os.sched_getaffinity(0)
    open_encoder(AudioFormat.MP3, 24_000).encode(noise)
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("format", FORMATS)
def test_threads_may_take_turns(format, noise):
    encoder, parts = open_encoder(format, 24_000), []
    calls = [lambda piece=piece: parts.append(encoder.encode(piece)) for piece in np.split(noise, 4)]
    for call in (*calls, lambda: parts.append(encoder.finish())):
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
    expected = decode(format, encode_cut(format, noise, 24_000, []), 24_000)
    np.testing.assert_array_equal(decode(format, b"".join(parts), 24_000), expected)


@pytest.mark.parametrize("format", LOSSY)
def test_bitrate(format, noise):
    sizes = {}
    for bitrate in (None, MIN_BITRATE, 32_000, 96_000, MAX_BITRATE):
        encoder = open_encoder(format, 24_000, bitrate=bitrate)
        data = encoder.encode(noise) + encoder.finish()
        assert len(decode(format, data, 24_000)) >= 24_000
        sizes[bitrate] = len(data)
    assert sizes[32_000] < sizes[None] < sizes[96_000]
    assert 32_000 / 8 * 0.7 < sizes[32_000] < 32_000 / 8 * 1.3
    for bitrate in (0, MIN_BITRATE - 1, MAX_BITRATE + 1):
        with pytest.raises(InvalidRequest, match=rf"bitrate: {bitrate} bit/s is outside of 16000 … 160000; leave"):
            open_encoder(format, 24_000, bitrate=bitrate)


@pytest.mark.parametrize("format", [AudioFormat.FLAC, AudioFormat.WAV, AudioFormat.PCM])
def test_what_is_not_compressed_to_a_bitrate_has_none(format):
    with pytest.raises(InvalidRequest, match=rf"bitrate: {format.value} is not .*; leave 64000 out"):
        open_encoder(format, 24_000, bitrate=64_000)


def test_a_missing_codec_is_named():
    with pytest.raises(MissingDependency, match=r"no encoder libnothing; `pip install "):
        PacketStream(Codec("libnothing", "s16", None, {}), 24_000, None)


def test_neither_torch_nor_ffmpeg_is_imported_before_it_is_needed():
    modules = "encode", "formats", "encode_file", "encode_av", "packets"
    imports = "; ".join(f"import vivavoce.service.audio.{module}" for module in modules)
    check = f"import sys; {imports}; sys.exit(bool({{'torch', 'av'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0
