"""Decodes an uploaded recording into mono float samples, bounded in bytes and seconds."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import soundfile

from vivavoce.errors import InvalidAudio
from vivavoce.frontend.audio.samples import Audio, Samples, audible, check_finite

MAX_FILE_BYTES = 64 * 1024 * 1024
"""30 s of stereo float32 at 192 kHz are 44 MiB; a reference never needs more."""
MAX_DECODE_S = 600.0
"""Longest decoded duration when the caller names no limit: 460 MB at 192 kHz."""
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 8_000, 192_000

_READ_BYTES = 1 << 20
_BLOCK_VALUES = 1 << 18
_TOLERANCE_S = 0.1
"""Encoders pad what they encode, and headers count that differently: what is missing beyond this was cut off, and a
recording may be longer than its limit by this."""

_MALFORMED = 3
"""SF_ERR_MALFORMED_FILE: libsndfile knows the format and finds it damaged."""
_LONGEST = 1 << 48
"""Header lengths above this stand for "unknown" (libsndfile's SF_COUNT_MAX)."""
_UNKNOWN_BYTES = 0x7FF00000
"""Chunk sizes from here on are what streaming writers put when they cannot know the length."""

_AV_FORMATS = "aac,ac3,aiff,amr,ape,asf,avi,caf,flac,flv,matroska,mov,mp3,mpeg,mpegts,ogg,tta,w64,wav,wv"
"""Containers that hold their own bytes. Playlists (concat, hls, dash) must stay out: they make FFmpeg open
other files and addresses, so that an upload could read this machine's disk."""
_TRUSTED_LENGTHS = ("mov", "matroska")
"""Containers that store their length; FFmpeg guesses that of the others from the bit rate."""


_Blocks = Generator[tuple[Samples, Samples], None, None]


class _Track(NamedTuple):
    """An opened audio track: its length by a header that can be trusted, and blocks, decoded when drawn: the mean of
    all channels [n] and the first channel [n]."""

    sample_rate: int
    promised_samples: int | None
    blocks: _Blocks


class _BrokenTrackError(Exception):
    """The container was recognised, but its content cannot be decoded. Holds the decoder's own words."""


def decode_audio(
    source: str | Path | bytes | BinaryIO, *, field: str = "reference audio", max_seconds: float | None = None
) -> Audio:
    """Decode `source`: libsndfile first, FFmpeg for what it does not know.

    Channels are averaged, unless they cancel each other: then it is the first. Samples are kept as stored, at their
    own rate and unclipped, as in the official front end. Decoding stops as soon as `max_seconds` (default
    `MAX_DECODE_S`) are passed by more than 0.1 s, which may be an encoder's padding and is cut off. A file that was
    cut off is refused where its container tells the length (wav, aiff, flac, Vorbis, m4a, webm, MP3 with an index); a
    cut Opus file is just a shorter one, and a WAV file that was written as a stream ends where it ends.

    Args:
        source: path, content or open binary file; read up to 64 MiB.
        field: what messages call the audio.
        max_seconds: longest audio accepted.

    Raises:
        InvalidAudio: no such file, a directory, empty, too large, not audio, damaged, cut off, no samples,
            too long, NaN or infinite samples, a rate outside 8000–192000 Hz.
    """
    content, label = read_source(source, field)
    data = with_length(content)
    limit_s = MAX_DECODE_S if max_seconds is None else max_seconds
    try:
        track = _open_soundfile(data) or _open_av(data)
        if track is None:
            raise InvalidAudio(
                f"{label} is not an audio file, or only a part of one; give a whole wav, flac, mp3, ogg, m4a or webm"
            )
        samples = _drain(track, limit_s, label)
    except _BrokenTrackError as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise InvalidAudio(f"{label} is damaged and cannot be decoded ({reason}); export or upload it again") from None
    if not len(samples):
        raise InvalidAudio(f"{label} holds 0 samples; give a recording with sound in it")
    check_finite(samples, label)
    return Audio(samples, track.sample_rate)


def read_source(source: str | Path | bytes | BinaryIO, field: str) -> tuple[bytes, str]:
    """Read all of `source`, but never more than `MAX_FILE_BYTES`; with its name in messages: field and base name.

    Raises:
        InvalidAudio: missing, a directory, unreadable, empty, too large, or an object that cannot be read.
    """
    name = source if isinstance(source, (str, Path)) else getattr(source, "name", None)
    shown = repr(os.path.basename(name) or str(name)) if isinstance(name, (str, Path)) else "the given data"
    label = f"{field}: {shown}"
    if isinstance(source, bytes):
        data = source
    elif isinstance(source, (str, Path)):
        data = _read_path(source, label)
    elif hasattr(source, "read"):
        data = _read_bounded(source, label)
    else:
        raise InvalidAudio(
            f"{field}: {type(source).__name__} is not a recording; give a path, bytes, an open binary file or "
            "(array, rate)"
        )
    if not data:
        advice = "give a recording with sound in it"
        if hasattr(source, "tell") and source.tell():
            advice = "it is read from its position, which is the end; call seek(0)"
        raise InvalidAudio(f"{label} is empty (0 bytes); {advice}")
    if len(data) > MAX_FILE_BYTES:
        raise InvalidAudio(f"{label} is larger than {MAX_FILE_BYTES >> 20} MiB; cut it, or store it as FLAC")
    return data, label


def _read_path(path: str | Path, label: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return _read_bounded(file, label)
    except FileNotFoundError:
        raise InvalidAudio(f"{label} does not exist; check the path") from None
    except IsADirectoryError:
        raise InvalidAudio(f"{label} is a directory, not a file; name an audio file in it") from None
    except OSError as error:
        raise InvalidAudio(f"{label} cannot be read ({error.strerror}); check the path and its permissions") from None
    except ValueError:  # a NUL or a lone surrogate in the path
        raise InvalidAudio(f"{label} is not a possible file name; check the path") from None


def _read_bounded(file: BinaryIO, label: str) -> bytes:
    """Read to the end or just past the limit; pipes and sockets may give less than asked for at a time."""
    data = bytearray()
    while len(data) <= MAX_FILE_BYTES and (piece := file.read(_READ_BYTES)):
        if not isinstance(piece, bytes):
            raise InvalidAudio(f"{label} is open in text mode; open it with mode 'rb'")
        data += piece
    return bytes(data)


def _drain(track: _Track, limit_s: float, label: str) -> Samples:
    """All samples of the track, as many as it promises and no more than the limit."""
    rate, promised = track.sample_rate, track.promised_samples
    if not MIN_SAMPLE_RATE <= rate <= MAX_SAMPLE_RATE:
        raise InvalidAudio(
            f"{label} has a sample rate of {rate} Hz; the limits are {MIN_SAMPLE_RATE} and {MAX_SAMPLE_RATE}; "
            "convert it to 24000 Hz"
        )
    too_long = "{} lasts {}; the limit is {:g} s; cut it to the part that is needed"
    most = int((limit_s + _TOLERANCE_S) * rate)
    if promised is not None and promised > most:
        raise InvalidAudio(too_long.format(label, f"{promised / rate:.1f} s", limit_s))
    mixes: list[Samples] = []
    channels: list[Samples] = []
    num_samples = 0
    with closing(track.blocks) as blocks:
        for mix, channel in blocks:
            mixes.append(mix)
            channels.append(channel)
            num_samples += len(mix)
            if num_samples > most:
                raise InvalidAudio(too_long.format(label, f"more than {limit_s:g} s", limit_s))
    if promised is not None and promised - num_samples > _TOLERANCE_S * rate:
        raise InvalidAudio(
            f"{label} is cut off: its header promises {promised / rate:.2f} s, {num_samples / rate:.2f} s are "
            "there; upload the whole file"
        )
    if not mixes:
        return np.zeros(0, np.float32)
    whole = np.concatenate(mixes)
    if mixes[0] is not channels[0]:
        whole = audible(whole, np.concatenate(channels))
    return whole[: int(limit_s * rate)]


class _SeekableBytes(io.BytesIO):
    """Bytes in which a seek before the start stays where it is.

    libsndfile tries such seeks in damaged files, and an exception inside its callback is printed to stderr.
    """

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        try:
            return super().seek(offset, whence)
        except ValueError:
            return self.tell()


def _open_soundfile(data: bytes) -> _Track | None:
    """None if libsndfile does not know the format (wav, flac, mp3, ogg, aiff, caf, …), or not well enough."""
    try:
        file = soundfile.SoundFile(_SeekableBytes(data))
    except soundfile.LibsndfileError as error:
        if error.code == _MALFORMED:
            raise _BrokenTrackError(error.error_string) from None
        return None
    unknown_length = file.frames > _LONGEST
    if file.format == "FLAC" and unknown_length:
        file.close()  # soundfile seeks after each block, which libFLAC refuses in a stream of unknown length
        return None
    guessed = file.subtype.startswith("MPEG") and not mp3_has_index(data)
    promised = None if unknown_length or guessed else round(file.frames / share_present(data))
    return _Track(file.samplerate, promised, _soundfile_blocks(file))


def _soundfile_blocks(file: soundfile.SoundFile) -> _Blocks:
    block_frames = max(1, _BLOCK_VALUES // file.channels)
    with file:
        while True:
            try:
                block = file.read(block_frames, dtype="float32", always_2d=True)
            except soundfile.SoundFileError as error:
                raise _BrokenTrackError(str(error)) from None
            if not len(block):
                return
            yield _mix_to_mono(block.T)


def share_present(data: bytes) -> float:
    """Part of the promised sample bytes that a WAV or AIFF file really holds, in (0, 1].

    libsndfile shortens a cut file without a word; only the chunk's own size tells that something is missing.
    1.0 also for every other format and for lengths marked as unknown.
    """
    begin, size = _sample_bytes(data)
    present = len(data) - begin
    return min(1.0, present / size) if present and 0 < size < _UNKNOWN_BYTES else 1.0


def with_length(data: bytes) -> bytes:
    """The file; of a WAV file whose writer could not go back and left 0 as the length, with its length."""
    begin, size = _sample_bytes(data)
    if size or begin == len(data) or data[:4] != b"RIFF":
        return data
    (riff,) = struct.unpack_from("<I", data, 4)
    if len(data) <= riff + 8 < _UNKNOWN_BYTES:  # what follows are other chunks
        return data
    return data[: begin - 4] + struct.pack("<I", len(data) - begin) + data[begin:]


def _sample_bytes(data: bytes) -> tuple[int, int]:
    """Place and size of a WAV or AIFF file's samples, by their chunk's header; without one, the file's end and 0."""
    if (data[:4], data[8:12]) == (b"RIFF", b"WAVE"):
        name, size_format = b"data", "<I"
    elif data[:4] == b"FORM" and data[8:12] in (b"AIFF", b"AIFC"):
        name, size_format = b"SSND", ">I"
    else:
        return len(data), 0
    begin = 12
    while begin + 8 <= len(data):
        kind, (size,) = data[begin : begin + 4], struct.unpack_from(size_format, data, begin + 4)
        begin += 8
        if kind == name:
            return begin, size
        begin += size + size % 2  # chunks are padded to even sizes
    return len(data), 0


def mp3_has_index(data: bytes) -> bool:
    """Whether an MP3 begins with a Xing or Info frame, which stores the number of its frames.

    Without one its length is a guess from the first frame's bit rate.
    """
    start = 0
    if data[:3] == b"ID3" and len(data) >= 10:
        start = 10 + sum((byte & 0x7F) << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0), strict=True))
    first = data[start : start + 64]  # the index follows 13 to 38 bytes after the start of the first frame
    return b"Xing" in first or b"Info" in first


def _open_av(data: bytes) -> _Track | None:
    """None if FFmpeg finds no format (m4a, aac, webm, amr, wma, …) or no audio in `data`."""
    import av

    try:
        container: Any = av.open(
            io.BytesIO(data), metadata_errors="replace", container_options={"format_whitelist": _AV_FORMATS}
        )
    except av.FFmpegError:
        return None
    stream = next(iter(container.streams.audio), None)
    if stream is None or stream.codec_context is None or not stream.rate:  # no context: a codec unknown here
        container.close()
        return None
    promised = None
    if container.format.name.startswith(_TRUSTED_LENGTHS):
        if stream.duration is not None:
            promised = round(stream.duration * stream.time_base * stream.rate)
        # The container's length is that of its longest track, so it speaks for the audio only if that is alone.
        elif container.duration is not None and len(container.streams) == 1:
            promised = round(container.duration * stream.rate / 1_000_000)
    return _Track(stream.rate, promised, _av_blocks(container, stream))


def _av_blocks(container: Any, stream: Any) -> _Blocks:
    import av

    to_float: Any = av.AudioResampler(format="fltp", rate=stream.rate)
    with container:
        try:
            for frame in container.decode(stream):
                for planar in to_float.resample(frame):
                    yield _mix_to_mono(planar.to_ndarray())
        except av.FFmpegError as error:
            raise _BrokenTrackError(error.strerror) from None
        except ValueError as error:  # channels or format change on the way
            raise _BrokenTrackError(str(error)) from None


def _mix_to_mono(channels: Samples) -> tuple[Samples, Samples]:
    """The mean of all channels of a block [channels, n], and its first channel: [n] each.

    Damaged float files hold values whose sum overflows; the infinite samples that result are refused later.
    """
    first = np.ascontiguousarray(channels[0])
    with np.errstate(over="ignore", invalid="ignore"):
        return first if len(channels) == 1 else channels.mean(axis=0), first
