"""Takes a recording into memory: from a path, bytes or an open file, bounded, with a name for messages."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from vivavoce.errors import InvalidAudio

MAX_FILE_BYTES = 64 * 1024 * 1024
"""30 s of stereo float32 at 192 kHz are 44 MiB; nothing that is needed here is larger."""

_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class AudioFile:
    """The undecoded bytes of one file, and how messages call it: field and base name, never a whole path."""

    data: bytes
    label: str


def read_source(source: str | Path | bytes | BinaryIO, field: str) -> AudioFile:
    """Read all of `source`, but never more than `MAX_FILE_BYTES`.

    Raises:
        InvalidAudio: missing, a directory, unreadable, empty, too large, or nothing that can be read.
    """
    label = f"{field}: {_name(source)}"
    if isinstance(source, bytes):
        data = source
    elif isinstance(source, (str, Path)):
        data = _read_path(source, label)
    elif hasattr(source, "read"):
        data = _read_bounded(source, label)
    else:
        raise InvalidAudio(
            f"{field}: {type(source).__name__} is no recording; give a path, bytes, an open binary file or "
            "vivavoce.Audio(samples, sample_rate)"
        )
    if not data:
        raise InvalidAudio(f"{label} is empty (0 bytes); give a recording with sound in it")
    if len(data) > MAX_FILE_BYTES:
        raise InvalidAudio(f"{label} is larger than {MAX_FILE_BYTES >> 20} MiB; cut it, or store it as FLAC")
    return AudioFile(data, label)


def _name(source: str | Path | bytes | BinaryIO) -> str:
    name = source if isinstance(source, (str, Path)) else getattr(source, "name", None)
    if not isinstance(name, (str, Path)):
        return "the given data"
    return repr(os.path.basename(name) or str(name))


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
