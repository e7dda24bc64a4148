"""Decodes an uploaded recording into mono float samples, with limits on its bytes and seconds."""

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
from vivavoce.frontend.audio.samples import Audio, Samples, audible, check_finite, check_rate

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Maximum size of an audio file. A reference needs less: 30 s of stereo float32 at 192 kHz are 44 MiB."""
MAX_DECODE_S = 600.0
"""Maximum duration if the caller gives no limit: 460 MB of samples at 192 kHz."""

_READ_BYTES = 1 << 20
_BLOCK_VALUES = 1 << 18
_TOLERANCE_S = 0.1
"""Tolerance in seconds, because headers count the padding of encoders in different ways. A file counts as cut off if it
is shorter than its header says by more than this. A recording may exceed its maximum duration by this much."""

_MALFORMED = 3
"""SF_ERR_MALFORMED_FILE: libsndfile knows the format, but the file is damaged."""
_LONGEST = 1 << 48
"""If libsndfile gives more frames than this (it gives SF_COUNT_MAX), it does not know the file's length."""
_UNKNOWN_BYTES = 0x7FF00000
"""A chunk size of at least this many bytes means an unknown length: programs that write a WAV stream put it there."""

_AV_FORMATS = "aac,ac3,aiff,amr,ape,asf,avi,caf,flac,flv,matroska,mov,mp3,mpeg,mpegts,ogg,tta,w64,wav,wv"
"""Allowed containers of FFmpeg. Playlists (concat, hls, dash) must not be added: they make FFmpeg open other files and
addresses, so that an upload could read this machine's disk."""
_TRUSTED_LENGTHS = ("mov", "matroska")
"""Containers that store their length; FFmpeg estimates the length of other containers from the bit rate."""


_Blocks = Generator[tuple[Samples, Samples], None, None]


class _Track(NamedTuple):
    """An opened audio track. promised_samples: its length in a reliable header, or None; blocks: an iterator that
    decodes the next block into the mean of all channels [n] and the first channel [n]."""

    sample_rate: int
    promised_samples: int | None
    blocks: _Blocks


class _BrokenTrackError(Exception):
    """The container was recognised, but its content cannot be decoded. The message comes from the decoder."""


def decode_audio(
    source: str | Path | bytes | BinaryIO, *, field: str = "reference audio", max_seconds: float | None = None
) -> Audio:
    """Decode an audio file with libsndfile, or with FFmpeg if libsndfile does not know its format.

    Channels are averaged; if they cancel each other, the first channel is used. Samples keep their values, unclipped,
    and their rate, as in the official front end. Decoding fails as soon as the audio exceeds `max_seconds` (default
    `MAX_DECODE_S`) by more than 0.1 s; a smaller excess may be an encoder's padding and is cut off. A truncated file is
    refused if its container stores the length (wav, aiff, flac, Vorbis, m4a, webm, MP3 with an index). A truncated Opus
    file, or a WAV file that was written as a stream, is accepted as a shorter file.

    Args:
        source: path, content or open binary file; at most 64 MiB.
        field: name of the audio in error messages.
        max_seconds: maximum duration.

    Raises:
        InvalidAudio: the file is missing, a directory, empty, too large, not audio, damaged or cut off; it has no
            samples, NaN or infinite samples, or a rate outside 8000–192000 Hz, or is too long.
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
    """Read all of `source`, and return its bytes and its label for error messages: `field` and the file's name.

    Raises InvalidAudio if `source` is missing, a directory, unreadable, empty, larger than `MAX_FILE_BYTES`, or not a
    path, bytes or file."""
    name = source if isinstance(source, (str, Path)) else getattr(source, "name", None)
    shown = repr(os.path.basename(name) or str(name)) if isinstance(name, (str, Path)) else "the given data"
    label = f"{field}: {shown}"
    if isinstance(source, bytes):
        data = source
    elif isinstance(source, (str, Path)):
        data = _read_path(source, label)
    elif hasattr(source, "read"):
        try:
            data = _read_bounded(source, label)
        except (OSError, ValueError) as error:  # the file is closed, or open for writing
            raise InvalidAudio(f"{label} cannot be read ({error}); give a file that is open in mode 'rb'") from None
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
    """Read until the file's end or just past the limit, in a loop: a read from a pipe may return less than it has."""
    data = bytearray()
    while len(data) <= MAX_FILE_BYTES and (piece := file.read(_READ_BYTES)):
        if not isinstance(piece, bytes):
            raise InvalidAudio(f"{label} is open in text mode; open it with mode 'rb'")
        data += piece
    return bytes(data)


def _drain(track: _Track, limit_s: float, label: str) -> Samples:
    """Decode all samples of a track. Raises InvalidAudio if it is cut off, longer than `limit_s` or of a wrong rate."""
    rate, promised = track.sample_rate, track.promised_samples
    check_rate(rate, label)
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
            f"{label} is cut off: its header promises {promised / rate:.2f} s, but it has "
            f"{num_samples / rate:.2f} s; upload the whole file"
        )
    if not mixes:
        return np.zeros(0, np.float32)
    whole = np.concatenate(mixes)
    if mixes[0] is not channels[0]:
        whole = audible(whole, np.concatenate(channels))
    return whole[: int(limit_s * rate)]


class _SeekableBytes(io.BytesIO):
    """A binary file in memory that ignores a seek to before its start.

    In damaged files, libsndfile makes such seeks; an exception from `seek` would be printed to stderr.
    """

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        try:
            return super().seek(offset, whence)
        except ValueError:
            return self.tell()


def _open_soundfile(data: bytes) -> _Track | None:
    """Open a file with libsndfile (wav, flac, mp3, ogg, aiff, caf, …); None if libsndfile cannot read its format."""
    try:
        file = soundfile.SoundFile(_SeekableBytes(data))
    except soundfile.LibsndfileError as error:
        if error.code == _MALFORMED:
            raise _BrokenTrackError(error.error_string) from None
        return None
    unknown_length = file.frames > _LONGEST
    # FFmpeg has to read two kinds of files. In a FLAC stream of unknown length, libFLAC refuses the seek that soundfile
    # makes after each block. In an Ogg file of several streams (pages with flag 2), libsndfile reads only the first.
    if (file.format == "FLAC" and unknown_length) or (file.format == "OGG" and data.count(b"OggS\0\2") > 1):
        file.close()
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
    """Return the fraction, in (0, 1], of a WAV or AIFF file's sample bytes, as stated in its header, that is present.

    libsndfile silently shortens a truncated file; only the size of its sample chunk shows that samples are missing. The
    result is 1.0 for all other formats, and if the header marks the length as unknown.
    """
    begin, size = _sample_bytes(data)
    present = len(data) - begin
    return min(1.0, present / size) if present and 0 < size < _UNKNOWN_BYTES else 1.0


def with_length(data: bytes) -> bytes:
    """Return the file's bytes; if it is a WAV stream with the length 0 in its header, write the true length there."""
    begin, size = _sample_bytes(data)
    if size or begin == len(data) or data[:4] != b"RIFF":
        return data
    if _are_chunks(data, begin):  # the samples are empty, and other chunks follow
        return data
    return data[: begin - 4] + struct.pack("<I", len(data) - begin) + data[begin:]


def _are_chunks(data: bytes, begin: int) -> bool:
    """Return whether the rest of a WAV file, from `begin` on, is chunks, such as LIST or bext, and not samples."""
    while begin + 8 <= len(data) and data[begin : begin + 4].strip().isalnum():
        (size,) = struct.unpack_from("<I", data, begin + 4)
        begin += 8 + size + size % 2
    return begin in (len(data), len(data) + 1)  # the last chunk may lack its padding byte


def _sample_bytes(data: bytes) -> tuple[int, int]:
    """Return offset and size of the sample chunk in a WAV or AIFF file; the file's end and 0 without such a chunk."""
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
    """Return whether an MP3 file begins with a Xing or Info frame, which stores the number of frames.

    Without this frame, the file's length can only be estimated from the first frame's bit rate.
    """
    start = 0
    if data[:3] == b"ID3" and len(data) >= 10:
        start = 10 + sum((byte & 0x7F) << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0), strict=True))
    first = data[start : start + 64]  # the index follows 13 to 38 bytes after the start of the first frame
    return b"Xing" in first or b"Info" in first


def _open_av(data: bytes) -> _Track | None:
    """Open a file with FFmpeg (m4a, aac, webm, amr, wma, …); None if its format is unknown or it has no audio."""
    import av

    try:
        container: Any = av.open(
            io.BytesIO(data), metadata_errors="replace", container_options={"format_whitelist": _AV_FORMATS}
        )
    except av.FFmpegError:
        return None
    stream = next(iter(container.streams.audio), None)
    if stream is None or stream.codec_context is None or not stream.rate:  # no context: the codec is unknown
        container.close()
        return None
    promised = None
    if container.format.name.startswith(_TRUSTED_LENGTHS):
        if stream.duration is not None:
            promised = round(stream.duration * stream.time_base * stream.rate)
        # The container's length is the length of its longest track: use it only if audio is the only track.
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
        except ValueError as error:  # channels or format change within the track
            raise _BrokenTrackError(str(error)) from None


def _mix_to_mono(channels: Samples) -> tuple[Samples, Samples]:
    """Return the mean of all channels [n] and the first channel [n] of a block [channels, n].

    In damaged float files, the sum of the channels may overflow; `check_finite` refuses these infinite samples later.
    """
    first = np.ascontiguousarray(channels[0])
    with np.errstate(over="ignore", invalid="ignore"):
        return first if len(channels) == 1 else channels.mean(axis=0), first
