"""The audio formats that speech is handed out in, and what HTTP calls them."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import PurePath

from vivavoce.errors import InvalidRequest


class AudioFormat(str, Enum):
    """A codec and the container it comes in; the value is the name in requests (`response_format`)."""

    MP3 = "mp3"
    """MPEG Layer III frames, one after the other."""
    OPUS = "opus"
    """Opus in Ogg (RFC 7845)."""
    AAC = "aac"
    """AAC-LC in ADTS frames."""
    FLAC = "flac"
    """Native FLAC (RFC 9639)."""
    WAV = "wav"
    """16-bit integers behind a header."""
    PCM = "pcm"
    """16-bit little-endian integers and nothing else."""


_MEDIA_TYPES = {
    AudioFormat.MP3: "audio/mpeg",
    AudioFormat.OPUS: "audio/ogg",
    AudioFormat.AAC: "audio/aac",
    AudioFormat.FLAC: "audio/flac",
    AudioFormat.WAV: "audio/wav",
    AudioFormat.PCM: "audio/pcm",
}

_SUFFIXES = {f".{format.value}": format for format in AudioFormat} | {
    ".oga": AudioFormat.OPUS,
    ".ogg": AudioFormat.OPUS,
    ".raw": AudioFormat.PCM,
}


def parse_format(name: str) -> AudioFormat:
    """The format that a request's `response_format` names.

    Raises:
        InvalidRequest: none has that name.
    """
    try:
        return AudioFormat(name)
    except ValueError:
        known = ", ".join(format.value for format in AudioFormat)
        raise InvalidRequest(f"response_format: {name!r} is unknown; choose one of {known}") from None


def format_of(path: str | os.PathLike[str]) -> AudioFormat:
    """The format that the suffix of `path` stands for, in either case; WAV for every other suffix, or none."""
    return _SUFFIXES.get(PurePath(path).suffix.lower(), AudioFormat.WAV)


def content_type(format: AudioFormat, sample_rate: int) -> str:
    """The Content-Type of a mono body; only headerless samples need their rate (hertz) told here."""
    media_type = _MEDIA_TYPES[format]
    return f"{media_type}; rate={sample_rate}; channels=1" if format is AudioFormat.PCM else media_type
