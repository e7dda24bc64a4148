"""A reference recording in memory, with the digest that it is remembered by."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vivavoce.errors import InvalidRequest
from vivavoce.service.audio.source import read_source
from vivavoce.service.audio.types import Audio
from vivavoce.service.voices.extract import AudioSource

_FIELD = "reference audio"


@dataclass(frozen=True, eq=False)
class Recording:
    """What an extractor is given, and the SHA-256 of exactly that in hexadecimal."""

    source: AudioSource
    digest: str


def take_recording(source: AudioSource) -> Recording:
    """Read the recording once, undecoded, so that what is hashed is what is extracted, even if the file changes.

    The digest is of a file's bytes, whatever it is called, or of samples and their rate.

    Raises:
        InvalidRequest: neither a path, bytes, an open file nor `Audio`.
        InvalidAudio: the file is missing, unreadable, empty or too large.
    """
    if isinstance(source, Audio):
        digest = hashlib.sha256(f"{source.sample_rate} Hz float32\n".encode())
        digest.update(np.ascontiguousarray(source.samples).data)
        return Recording(source, digest.hexdigest())
    if not isinstance(source, (str, Path, bytes)) and not hasattr(source, "read"):
        raise InvalidRequest(
            f"voice: is a {type(source).__name__}; give a name, or a recording as path, bytes, open file or "
            "vivavoce.Audio"
        )
    data = read_source(source, _FIELD).data
    content = io.BytesIO(data)
    content.name = source if isinstance(source, (str, Path)) else getattr(source, "name", None)  # for messages
    return Recording(content, hashlib.sha256(data).hexdigest())
