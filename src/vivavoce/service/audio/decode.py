"""Decodes an uploaded recording into mono float samples, bounded in bytes and seconds."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import numpy as np

from vivavoce.errors import InvalidAudio
from vivavoce.service.audio.av_reader import open_av
from vivavoce.service.audio.checks import check_finite
from vivavoce.service.audio.soundfile_reader import open_soundfile
from vivavoce.service.audio.source import AudioFile, read_source
from vivavoce.service.audio.track import BrokenTrackError, Track
from vivavoce.service.audio.types import Audio, Samples

MAX_DECODE_S = 600.0
"""Seconds that are decoded at most when the caller names no limit: 460 MB at 192 kHz."""

MIN_SAMPLE_RATE = 8_000
MAX_SAMPLE_RATE = 192_000

_SHORTFALL_S = 0.1
"""Headers count encoder padding differently; what is missing beyond this was cut off."""


def decode_audio(
    source: str | Path | bytes | BinaryIO, *, field: str = "reference audio", max_seconds: float | None = None
) -> Audio:
    """Decode `source`: libsndfile first, FFmpeg for what it does not know.

    Channels are averaged. Samples are kept as stored, at their own rate and unclipped, as in the official
    front end. Decoding stops as soon as `max_seconds` (default `MAX_DECODE_S`) are passed. A file that was
    cut off is refused where its container tells the length (wav, aiff, flac, Vorbis, m4a, webm, MP3 with
    an index); a cut Opus file is just a shorter one.

    Args:
        source: path, content or open binary file; read up to 64 MiB.
        field: what messages call the audio.
        max_seconds: longest audio accepted.

    Raises:
        InvalidAudio: no such file, a directory, empty, too large, not audio, damaged, cut off, no samples,
            too long, NaN or infinite samples, a rate outside 8000–192000 Hz.
    """
    file = read_source(source, field)
    try:
        samples, sample_rate = _decode(file, MAX_DECODE_S if max_seconds is None else max_seconds)
    except BrokenTrackError as error:
        raise InvalidAudio(
            f"{file.label} is damaged and cannot be decoded ({_one_line(error)}); export or upload it again"
        ) from None
    if not len(samples):
        raise InvalidAudio(f"{file.label} holds 0 samples; give a recording with sound in it")
    check_finite(samples, file.label)
    return Audio(samples, sample_rate)


def _decode(file: AudioFile, limit_s: float) -> tuple[Samples, int]:
    track = open_soundfile(file.data) or open_av(file.data)
    if track is None:
        raise InvalidAudio(
            f"{file.label} is not an audio file, or only a part of one; give a whole wav, flac, mp3, ogg, m4a or webm"
        )
    if not MIN_SAMPLE_RATE <= track.sample_rate <= MAX_SAMPLE_RATE:
        raise InvalidAudio(
            f"{file.label} has a sample rate of {track.sample_rate} Hz; the limits are {MIN_SAMPLE_RATE} and "
            f"{MAX_SAMPLE_RATE}; convert it to 24000 Hz"
        )
    samples = _collect(track, limit_s, file.label)
    _check_complete(track, len(samples), file.label)
    return samples, track.sample_rate


def _collect(track: Track, limit_s: float, label: str) -> Samples:
    limit = int(limit_s * track.sample_rate)
    if track.promised_samples is not None and track.promised_samples > limit:
        raise _too_long(f"{track.promised_samples / track.sample_rate:.1f} s", limit_s, label)
    kept: list[Samples] = []
    num_samples = 0
    with closing(track.blocks) as blocks:
        for block in blocks:
            kept.append(block)
            num_samples += len(block)
            if num_samples > limit:
                raise _too_long(f"more than {limit_s:g} s", limit_s, label)
    return np.concatenate(kept) if kept else np.zeros(0, np.float32)


def _too_long(length: str, limit_s: float, label: str) -> InvalidAudio:
    return InvalidAudio(f"{label} lasts {length}; the limit is {limit_s:g} s; cut it to the part that is needed")


def _check_complete(track: Track, num_samples: int, label: str) -> None:
    promised = track.promised_samples
    if promised is not None and promised - num_samples > _SHORTFALL_S * track.sample_rate:
        raise InvalidAudio(
            f"{label} is cut off: its header promises {promised / track.sample_rate:.2f} s, "
            f"{num_samples / track.sample_rate:.2f} s are there; upload the whole file"
        )


def _one_line(error: BrokenTrackError) -> str:
    return " ".join(str(error).split()).rstrip(".")
