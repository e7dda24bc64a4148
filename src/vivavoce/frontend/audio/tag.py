"""Tags that mark an audio file as synthetic speech, with the names of the program and the model, and the time.

A tag has a form for each container, with the same fields; players and FFmpeg show comment, encoder, artist and date.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import datetime, timezone

from vivavoce.version import __version__

COMMENT = "AI-generated speech"
SOFTWARE = f"vivavoce {__version__}"
VENDOR = b"vivavoce"
_MOST_CHARS = 200
_UTF8 = b"\x03"


@dataclass(frozen=True)
class AudioTag:
    """Origin of synthetic speech. model: the model's name; made: UTC time in ISO 8601, such as 2026-01-31T12:00:00Z."""

    model: str
    made: str

    def __post_init__(self) -> None:
        shown = "".join(character for character in self.model if character.isprintable())
        object.__setattr__(self, "model", shown[:_MOST_CHARS])


def new_tag(model: str) -> AudioTag:
    """Return a tag with the current time."""
    return AudioTag(model, utc_now())


def utc_now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def info_chunk(tag: AudioTag) -> bytes:
    """Return the tag as a LIST chunk of a RIFF file (WAV)."""
    fields = ((b"IART", tag.model), (b"ICMT", COMMENT), (b"ICRD", tag.made), (b"ISFT", SOFTWARE))
    items = b"INFO" + b"".join(map(_info_item, *zip(*fields, strict=True)))
    return struct.pack("<4sI", b"LIST", len(items)) + items


def _info_item(name: bytes, value: str) -> bytes:
    text = value.encode() + b"\0"
    return struct.pack("<4sI", name, len(text)) + text + b"\0" * (len(text) % 2)


def id3_tag(tag: AudioTag) -> bytes:
    """Return the tag in ID3v2.4, for the start of an MP3 or ADTS file. ID3 times are always UTC, and have no Z."""
    frames = (
        _id3_frame(b"COMM", b"eng\0", COMMENT),
        _id3_frame(b"TDRC", b"", tag.made.removesuffix("Z")),
        _id3_frame(b"TPE1", b"", tag.model),
        _id3_frame(b"TSSE", b"", SOFTWARE),
    )
    content = b"".join(frames)
    return b"ID3\x04\0\0" + _synchsafe(len(content)) + content


def _id3_frame(name: bytes, before: bytes, value: str) -> bytes:
    content = _UTF8 + before + value.encode()
    return name + _synchsafe(len(content)) + b"\0\0" + content


def _synchsafe(number: int) -> bytes:
    """Encode a number in four bytes of seven bits each, as ID3 does."""
    return bytes(number >> shift & 0x7F for shift in (21, 14, 7, 0))


def vorbis_comments(tag: AudioTag | None) -> bytes:
    """Return the tag as Vorbis comments of FLAC and Opus; an empty list without a tag, since Opus requires a list."""
    fields = (f"ARTIST={tag.model}", f"COMMENT={COMMENT}", f"DATE={tag.made}", f"ENCODER={SOFTWARE}") if tag else ()
    texts = [VENDOR, *(field.encode() for field in fields)]
    parts = [struct.pack("<I", len(text)) + text for text in texts]
    return b"".join([parts[0], struct.pack("<I", len(fields)), *parts[1:]])
