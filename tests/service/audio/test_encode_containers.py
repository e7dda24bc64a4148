"""The bytes around the packets, as other readers than FFmpeg find them."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
import soundfile
from decoded import decode, encode_cut

from vivavoce.errors import InvalidRequest
from vivavoce.service.audio.decode import decode_audio
from vivavoce.service.audio.encode import open_encoder
from vivavoce.service.audio.encode_file import encode_whole, write_audio
from vivavoce.service.audio.formats import AudioFormat
from vivavoce.service.audio.pcm import to_int16
from vivavoce.service.audio.wav import wav_header


@pytest.fixture
def noise() -> np.ndarray:
    return (0.3 * np.random.default_rng(3).standard_normal(24_000)).astype(np.float32)


def ogg_pages(data: bytes) -> list[tuple[int, int, int, int, list[int]]]:
    """(flags, position, serial, number, segments) of every page."""
    pages, at = [], 0
    while at < len(data):
        magic, version, flags, position, serial, number, _, count = struct.unpack_from("<4sBBqIIIB", data, at)
        assert (magic, version) == (b"OggS", 0)
        segments = list(data[at + 27 : at + 27 + count])
        pages.append((flags, position, serial, number, segments))
        at += 27 + count + sum(segments)
    assert at == len(data)
    return pages


def test_ogg_pages(noise):
    encoder = open_encoder(AudioFormat.OPUS, 24_000)
    parts = [encoder.encode(noise[:481]), encoder.encode(noise[481:960]), encoder.encode(noise[960:]), encoder.finish()]
    pages = ogg_pages(b"".join(parts))
    assert [page[0] for page in pages] == [2, 0, 0, 0, 0, 4]
    assert [page[3] for page in pages] == list(range(6))
    assert len({page[2] for page in pages}) == 1
    (pre_skip,) = struct.unpack_from("<H", parts[0], 28 + 10)
    assert [page[1] for page in pages] == [0, 0, 960, 1_920, 48_000, pre_skip + 48_000]
    assert len(ogg_pages(parts[2])) == 1, "a call's packets share a page"


def test_streams_have_serials_of_their_own(noise):
    serials = {ogg_pages(encode_cut(AudioFormat.OPUS, noise, 24_000, []))[0][2] for _ in range(4)}
    assert len(serials) == 4


def test_more_packets_than_a_page_holds(noise):
    long = np.tile(noise, 7)
    encoder = open_encoder(AudioFormat.OPUS, 24_000, bitrate=160_000)
    data = encoder.encode(long) + encoder.finish()
    pages = ogg_pages(data)
    assert max(len(page[4]) for page in pages) > 200
    assert max(length for page in pages for length in page[4]) == 255, "packets of several segments"
    heard, rate = soundfile.read(io.BytesIO(data))  # libogg checks the checksums
    assert rate == 24_000
    assert len(heard) == len(long)


def test_no_mp3_frame_needs_another(noise):
    data = encode_cut(AudioFormat.MP3, noise, 24_000, [])
    at, main_data_begins = 0, []
    while at < len(data):
        sync, flags = data[at : at + 2]
        assert (sync, flags) == (0xFF, 0xF3), "an MPEG-2 Layer III frame without checksum"
        padding = data[at + 2] >> 1 & 1
        assert data[at + 2] >> 4 == 8, "64 kbit/s"
        main_data_begins.append(data[at + 4])
        at += 192 + padding
    assert len(main_data_begins) > 40
    assert set(main_data_begins) == {0}
    assert b"Xing" not in data
    assert b"Info" not in data


def test_adts_headers_are_those_of_ffmpeg(noise, encode_av):
    ours = encode_cut(AudioFormat.AAC, noise, 24_000, [])
    theirs = encode_av(noise, 24_000, "adts", "aac")
    length = lambda data: int.from_bytes(data[3:6], "big") >> 5 & 0x1FFF  # noqa: E731
    assert ours[:3] == theirs[:3]
    assert ours[3] >> 2 == theirs[3] >> 2
    assert ours[5] & 0x1F == theirs[5] & 0x1F
    assert ours[6] == theirs[6]
    at = 0
    while at < len(ours):
        assert ours[at : at + 3] == theirs[:3]
        at += length(ours[at:])
    assert at == len(ours)


@pytest.mark.parametrize("format", list(AudioFormat)[:5])
def test_our_own_decoder_reads_a_stream(format, noise):
    audio = decode_audio(encode_cut(format, noise, 24_000, [100, 10_000]))
    assert audio.sample_rate == 24_000
    assert 24_000 <= len(audio.samples) <= 24_000 + 3_100


def test_the_whole_header_tells_the_length(noise):
    for format in (AudioFormat.FLAC, AudioFormat.WAV):
        encoder = open_encoder(format, 24_000)
        data = encoder.encode(noise) + encoder.finish()
        header = encoder.whole_header()
        assert data[: len(header)] != header
        whole = header + data[len(header) :]
        assert whole == encode_whole(format, noise, 24_000)
        assert soundfile.info(io.BytesIO(whole)).frames == 24_000
        heard, _ = soundfile.read(io.BytesIO(whole), dtype="int16")
        np.testing.assert_array_equal(heard, to_int16(noise))
    assert encode_whole(AudioFormat.WAV, noise, 24_000)[:44] == wav_header(24_000, 24_000)
    for format in (AudioFormat.MP3, AudioFormat.OPUS, AudioFormat.AAC, AudioFormat.PCM):
        encoder = open_encoder(format, 24_000)
        encoder.encode(noise)
        encoder.finish()
        assert encoder.whole_header() == b""


@pytest.mark.parametrize("format", AudioFormat)
def test_files_are_written_by_their_suffix(format, noise, tmp_path):
    path = tmp_path / f"speech.{format.value}"
    path.write_text("old")
    write_audio(path, noise, 24_000)
    assert len(decode(format, path.read_bytes(), 24_000)) >= 24_000
    with pytest.raises(ValueError, match="1 of 1 samples are NaN"):
        write_audio(path, np.full(1, np.nan, np.float32), 24_000)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert len(path.read_bytes()) > 1_000
    with pytest.raises(InvalidRequest, match=r"absent' does not exist; create"):
        write_audio(tmp_path / "absent" / path.name, noise, 24_000)
