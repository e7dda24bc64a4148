"""Every format is encoded piece by piece and decoded again with FFmpeg and other readers."""

from __future__ import annotations

import io
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import av
import numpy as np
import pytest
import soundfile
import soxr

from vivavoce.errors import InvalidRequest, MissingDependency
from vivavoce.frontend.audio.encode import (
    MAX_BITRATE,
    MAX_BITRATE_ABOVE,
    MIN_BITRATE,
    SAMPLE_RATES,
    AudioFormat,
    OutputFormat,
    encode_whole,
    format_of,
    open_encoder,
    parse_format,
    write_audio,
)
from vivavoce.frontend.audio.encoders import Encoder, Resampler, wav_header
from vivavoce.frontend.audio.samples import to_int16

TELEPHONY = [AudioFormat.ULAW, AudioFormat.ALAW]
FORMATS = [format for format in AudioFormat if format not in TELEPHONY]
LOSSY = [AudioFormat.MP3, AudioFormat.OPUS, AudioFormat.AAC]
LOSSLESS = [AudioFormat.FLAC, AudioFormat.WAV, AudioFormat.PCM]
RATES = [24_000, 22_050]
PAIRS = [(format, 24_000) for format in FORMATS] + [(format, 22_050) for format in LOSSY]
"""Without loss, a rate is but a number in the header."""

LEAST_BYTES = {AudioFormat.MP3: 300}
"""FFmpeg wants to see two MP3 frames before it believes in one."""
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


def decoded_rate(format: AudioFormat, sample_rate: int) -> int:
    """Opus is always decoded at 48 kHz."""
    return 48_000 if format is AudioFormat.OPUS else sample_rate


def decode(format: AudioFormat, data: bytes, sample_rate: int) -> np.ndarray:
    """All samples that `data` holds, [n] float32, at `decoded_rate`; `data` may end anywhere."""
    if format is AudioFormat.PCM:
        return np.frombuffer(data, "<i2").astype(np.float32) / 32768
    if len(data) < LEAST_BYTES.get(format, 1):
        return np.zeros(0, np.float32)
    blocks = []
    name = {AudioFormat.OPUS: "ogg", AudioFormat.ULAW: "mulaw"}.get(format, format.value)
    options = {"sample_rate": str(sample_rate)} if format in TELEPHONY else {}
    with av.open(io.BytesIO(data), format=name, options=options) as container:
        stream = container.streams.audio[0]
        to_float = av.AudioResampler(format="fltp", rate=stream.rate)
        for frame in container.decode(stream):
            blocks += [planar.to_ndarray()[0] for planar in to_float.resample(frame)]
    assert stream.rate == decoded_rate(format, sample_rate)
    return np.concatenate(blocks) if blocks else np.zeros(0, np.float32)


def encode_cut(
    format: AudioFormat, samples: np.ndarray, sample_rate: int, cuts: list[int], to_rate: int | None = None
) -> bytes:
    """The file of `samples`, given in pieces that end at `cuts`."""
    encoder = open_encoder(format, sample_rate, to_rate=to_rate)
    return b"".join(encoder.encode(piece) for piece in np.split(samples, cuts)) + encoder.finish()


@pytest.fixture
def speech(audio_data) -> np.ndarray:
    samples, _ = soundfile.read(audio_data / "speech_24k_float.wav", dtype="float32")
    return samples


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("format", LOSSY)
def test_lossy_audio_is_close_and_in_its_place(format, rate, speech):
    heard = decode(format, encode_cut(format, speech, rate, [5_000, 5_001, 20_000]), rate)
    said = np.asarray(soxr.resample(speech, rate, decoded_rate(format, rate), quality="VHQ"))
    lead = LEAD.get(format, 0)

    def correlation(shift: int) -> float:
        return float(np.corrcoef(np.roll(heard, shift)[lead : lead + len(said)], said)[0, 1])

    assert correlation(0) > 0.99
    assert max(correlation(-2), correlation(2)) < correlation(0)
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


@pytest.mark.parametrize(("format", "rate"), PAIRS)
def test_where_samples_are_cut_is_not_heard(format, rate, speech):
    whole = decode(format, encode_cut(format, speech, rate, []), rate)
    for cuts in (
        [0, 0, 1, 2, 2, 480, 577, 1_000, 28_799],
        list(range(960, 28_800, 960)),
        sorted(np.random.default_rng(7).integers(0, 28_800, 200).tolist()),
    ):
        np.testing.assert_array_equal(decode(format, encode_cut(format, speech, rate, cuts), rate), whole)


@pytest.mark.parametrize(("format", "rate"), PAIRS)
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


@pytest.mark.parametrize(("format", "rate"), PAIRS)
def test_no_samples_at_all(format, rate):
    nothing = np.zeros(0, np.float32)
    never_asked, asked = open_encoder(format, rate), open_encoder(format, rate)
    data = asked.encode(nothing) + asked.encode(nothing) + asked.finish()
    assert never_asked.finish() == data
    assert (data != b"") == (format in (AudioFormat.FLAC, AudioFormat.WAV))
    assert len(decode(format, data, rate)) == 0


CUTS = [0, 0, 1, 2, 2, 480, 577, 1_000, 9_600, 28_799]


@pytest.mark.parametrize(
    ("rate", "to_rate"),
    [*((24_000, rate) for rate in SAMPLE_RATES), *((22_050, rate) for rate in (8_000, 24_000, 48_000))],
)
def test_another_rate_has_no_seams_and_shifts_nothing(rate, to_rate, speech):
    data = encode_cut(AudioFormat.PCM, speech, rate, CUTS, to_rate)
    heard = decode(AudioFormat.PCM, data, to_rate)
    assert len(heard) == -(-len(speech) * to_rate // rate)
    whole = decode(AudioFormat.PCM, encode_cut(AudioFormat.PCM, speech, rate, [], to_rate), to_rate)
    assert np.abs(heard - whole).max() <= 1 / 32768, "a sum in another order may round otherwise"
    said = np.asarray(soxr.resample(speech, rate, to_rate, quality="VHQ"))
    error = np.linalg.norm(heard[: len(said)] - said) / np.linalg.norm(said)
    # The filter leaves out the last tenth below the lower Nyquist frequency, and speech has little there.
    assert error < 0.05


@pytest.mark.parametrize(
    ("format", "to_rate"),
    [
        *((AudioFormat.MP3, rate) for rate in (8_000, 16_000, 44_100)),  # MPEG-2.5, MPEG-2, MPEG-1
        *((AudioFormat.OPUS, rate) for rate in (16_000, 44_100, 48_000)),  # its own rates and one that it lacks
        *((AudioFormat.AAC, rate) for rate in (8_000, 48_000)),
        (AudioFormat.FLAC, 44_100),
        (AudioFormat.WAV, 16_000),
    ],
)
def test_all_formats_are_made_at_the_rate_that_was_asked_for(format, to_rate, speech):
    data = encode_cut(format, speech, 24_000, CUTS, to_rate)
    heard = decode(format, data, to_rate)  # which checks the file's rate
    said = np.asarray(soxr.resample(speech, 24_000, min(to_rate, decoded_rate(format, to_rate)), quality="VHQ"))
    if format is AudioFormat.OPUS and to_rate != 48_000:
        said = np.asarray(soxr.resample(said, to_rate, 48_000, quality="VHQ"))
    heard, begin = heard[: len(said)], said[: len(said) // 2]
    products = np.fft.irfft(np.fft.rfft(heard) * np.fft.rfft(begin, len(heard)).conj(), len(heard))
    likeness = products[: len(heard) - len(begin) + 1].max()
    loudness = np.linalg.norm(begin)
    assert likeness > 0.9 * loudness**2


@pytest.mark.parametrize("to_rate", [8_000, 16_000, 22_050])
def test_nothing_folds_back_below_a_lower_rate(to_rate):
    time = np.arange(24_000) / 24_000
    high = (0.5 * np.sin(2 * np.pi * (to_rate / 2 + 300) * time)).astype(np.float32)
    low = (0.5 * np.sin(2 * np.pi * to_rate / 2 * 0.85 * time)).astype(np.float32)
    middle = slice(to_rate // 4, to_rate * 3 // 4)
    for tone, level in ((high, 0.0), (low, 0.5 / 2**0.5)):
        resampler = Resampler(24_000, to_rate)
        heard = np.concatenate([resampler.push(tone), resampler.finish()])[middle]
        assert abs(float(np.sqrt(np.mean(heard**2))) - level) < 1e-4


@pytest.mark.parametrize("to_rate", [rate for rate in SAMPLE_RATES if rate != 24_000])
def test_another_rate_holds_little_back(to_rate, speech):
    encoder, delays_s, num_given, num_made = open_encoder(AudioFormat.PCM, 24_000, to_rate=to_rate), [], 0, 0
    for piece in np.split(speech, range(61, 7_000, 61)):
        num_given, num_made = num_given + len(piece), num_made + len(encoder.encode(piece)) // 2
        delays_s.append(num_given / 24_000 - num_made / to_rate)
    assert 0.005 < max(delays_s[:-1]) <= 0.013  # of which 2.5 ms are the piece


@pytest.mark.parametrize("format", TELEPHONY)
def test_the_bytes_of_telephony(format, speech):
    codes = bytes(range(256))
    levels = decode(format, codes, 8_000)
    # Both of the zeros of the μ-law mean the same.
    assert open_encoder(format, 8_000).encode(levels) == codes.replace(
        b"\x7f", b"\xff" if format == "ulaw" else b"\x7f"
    )
    loud = np.linspace(-1.1, 1.1, 70_001, dtype=np.float32)
    heard = decode(format, open_encoder(format, 8_000).encode(loud), 8_000)
    assert (np.abs(heard - loud.clip(-1, 1)) <= np.maximum(np.abs(loud) / 30, 2e-3)).all()
    data = encode_cut(format, speech, 24_000, CUTS)  # at 8 kHz, whatever the speech is
    said = np.asarray(soxr.resample(speech, 24_000, 8_000, quality="VHQ"))
    assert len(data) == len(said)
    assert float(np.corrcoef(decode(format, data, 8_000), said)[0, 1]) > 0.99


def test_rates_that_are_not_made():
    with pytest.raises(InvalidRequest, match=r"sample_rate: 11025 Hz is not supported; choose one of 8000, 16000, "):
        parse_format("wav", 11_025)
    assert OutputFormat(AudioFormat.MP3, 44_100, 192_000).open(24_000).finish() == b""
    with pytest.raises(InvalidRequest, match=r"bitrate: 192000 bit/s is outside of 16000 … 160000"):
        OutputFormat(AudioFormat.MP3, 22_050, 192_000)
    with pytest.raises(InvalidRequest, match=rf"… {MAX_BITRATE_ABOVE};"):
        OutputFormat(AudioFormat.OPUS, 48_000, 400_000)


@pytest.mark.parametrize("format", FORMATS)
def test_a_few_samples(format):
    for num_samples in (1, 2, 15, 16, 17):
        data = encode_cut(format, np.full(num_samples, 0.5, np.float32), 24_000, [1])
        assert len(decode(format, data, 24_000)) >= num_samples


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
    assert [page[0] for page in pages] == [2, 0, 0, 0, 0, 0, 4]
    assert [page[3] for page in pages] == list(range(7))
    assert len({page[2] for page in pages}) == 1
    (pre_skip,) = struct.unpack_from("<H", parts[0], 28 + 10)
    assert [page[1] for page in pages] == [0, 0, 960, 1_920, 42_240, 48_000, pre_skip + 48_000]
    assert len(ogg_pages(parts[2])) == 2, "a call's packets share pages of 42"


def test_more_packets_than_a_page_holds(noise):
    long = np.tile(noise, 7)
    encoder = open_encoder(AudioFormat.OPUS, 24_000, bitrate=160_000)
    data = encoder.encode(long) + encoder.finish()
    pages = ogg_pages(data)
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


@pytest.mark.parametrize("format", FORMATS)
def test_the_whole_header_tells_the_length(format, noise):
    encoder = open_encoder(format, 24_000)
    data = encoder.encode(noise) + encoder.finish()
    header = encoder.whole_header()
    assert (header != b"") == (format in (AudioFormat.FLAC, AudioFormat.WAV))
    if header:
        assert data[: len(header)] != header
        whole = header + data[len(header) :]
        assert whole == encode_whole(format, noise, 24_000)
        assert soundfile.info(io.BytesIO(whole)).frames == 24_000
        heard, _ = soundfile.read(io.BytesIO(whole), dtype="int16")
        np.testing.assert_array_equal(heard, to_int16(noise))
    if format is AudioFormat.WAV:
        assert header == wav_header(24_000, 24_000)


@pytest.mark.parametrize("format", FORMATS)
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


TASKS = Path("/proc/self/task")


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
    for end in (Encoder.finish, Encoder.close):
        encoder = open_encoder(format, 24_000)
        encoder.encode(noise)
        end(encoder)
        for act in (lambda: encoder.encode(noise), encoder.finish):  # noqa: B023
            with pytest.raises(ValueError, match="finished or closed"):
                act()
        encoder.close()


@pytest.mark.skipif(not TASKS.exists(), reason="counts threads as Linux tells them")
@pytest.mark.parametrize("format", [*LOSSY, AudioFormat.FLAC])
def test_encoders_start_no_threads(format, noise):
    before = {task.name for task in TASKS.iterdir()}
    encoders = [open_encoder(format, 24_000) for _ in range(3)]
    for encoder in encoders:
        encoder.encode(noise)
    assert {task.name for task in TASKS.iterdir()} <= before


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


@pytest.mark.parametrize("format", LOSSLESS)
def test_what_is_not_compressed_to_a_bitrate_has_none(format):
    with pytest.raises(InvalidRequest, match=rf"bitrate: {format.value} has no bitrate; leave 64000 out"):
        open_encoder(format, 24_000, bitrate=64_000)


def test_a_missing_codec_is_named(monkeypatch):
    create = av.CodecContext.create
    monkeypatch.setattr(av, "CodecContext", SimpleNamespace(create=lambda name, mode: create("libnothing", mode)))
    with pytest.raises(MissingDependency, match=r"no encoder libopus; `pip install "):
        open_encoder(AudioFormat.OPUS, 24_000)


def test_neither_torch_nor_ffmpeg_is_imported_before_it_is_needed():
    check = "import sys; import vivavoce.frontend.audio.encode; sys.exit(bool({'torch', 'av'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


def test_failed_write_leaves_the_old_file(tmp_path, noise, monkeypatch):
    path = tmp_path / "speech.wav"
    path.write_text("old")

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(InvalidRequest, match=r"output: .*No space left on device.*; choose"):
        write_audio(path, noise, 24_000)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["speech.wav"]


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path, noise):
    (tmp_path / "link.wav").symlink_to(tmp_path / "real.wav")
    write_audio(tmp_path / "link.wav", noise, 24_000)
    assert (tmp_path / "link.wav").is_symlink()
    assert soundfile.info(tmp_path / "real.wav").frames == 24_000
    write_audio(os.devnull, noise, 24_000)
    assert not os.path.isfile(os.devnull)


def test_names_suffixes_and_content_types():
    assert [parse_format(name).codec for name in ("mp3", "opus", "aac", "flac", "wav", "pcm")] == FORMATS
    with pytest.raises(InvalidRequest, match=r"response_format: 'MP4' is .*; choose one of mp3, opus, aac, flac, wav,"):
        parse_format("MP4")
    formats = [format_of(path) for path in ("x.wav/A.OPUS", "a.mp3.ogg", ".mp3", "-", "/dev/null")]
    assert formats == [AudioFormat.OPUS, AudioFormat.OPUS, *[AudioFormat.WAV] * 3]
    types = [OutputFormat(format).content_type(22_050) for format in AudioFormat]
    assert types[:5] == ["audio/mpeg", "audio/ogg", "audio/aac", "audio/flac", "audio/wav"]
    assert types[5:] == [
        f"audio/{name}; channels=1" for name in ("pcm; rate=22050", "PCMU; rate=8000", "PCMA; rate=8000")
    ]
    assert OutputFormat(AudioFormat.PCM, 16_000).content_type(22_050) == "audio/pcm; rate=16000; channels=1"


@pytest.mark.parametrize("name", ["hello.xyz", "hello.wav.m4a", "take 2.1"])
def test_no_file_is_written_whose_suffix_names_no_format(tmp_path, noise, name):
    suffix = name[name.rindex(".") :]
    with pytest.raises(
        InvalidRequest, match=rf"^output: '{re.escape(suffix)}' cannot be written; end .* \.mp3, \.opus, \.aac, "
    ):
        write_audio(tmp_path / name, noise, 24_000)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["absent/speech.wav", ".", "x" * 300])
def test_places_that_cannot_be_written(tmp_path, noise, name):
    with pytest.raises(InvalidRequest, match=r"output: "):
        write_audio(tmp_path / name, noise, 24_000)
