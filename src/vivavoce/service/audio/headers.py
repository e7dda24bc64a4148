"""Reads from file headers what libsndfile does not tell: how much of the promised sound is really there."""

from __future__ import annotations

from typing import Literal

_UNKNOWN_BYTES = 0x7FF00000
"""Chunk sizes from here on are what streaming writers put when they cannot know the length."""

_ID3_HEADER_BYTES = 10
_INDEX_SEARCH_BYTES = 64
"""The index of an MP3 follows 13 to 38 bytes after the start of the first frame."""


def share_present(data: bytes) -> float:
    """Part of the promised sample bytes that a WAV or AIFF file really holds, in (0, 1].

    libsndfile shortens a cut file without a word; only the chunk's own size tells that something is missing.
    1.0 also for every other format and for lengths marked as unknown.
    """
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return _share_of_chunk(data, b"data", "little")
    if data[:4] == b"FORM" and data[8:12] in (b"AIFF", b"AIFC"):
        return _share_of_chunk(data, b"SSND", "big")
    return 1.0


def _share_of_chunk(data: bytes, name: bytes, byteorder: Literal["little", "big"]) -> float:
    position = 12
    while position + 8 <= len(data):
        size = int.from_bytes(data[position + 4 : position + 8], byteorder)
        begin = position + 8
        if data[position : position + 4] == name:
            present = len(data) - begin
            return min(1.0, present / size) if present and 0 < size < _UNKNOWN_BYTES else 1.0
        position = begin + size + size % 2  # chunks are padded to even sizes
    return 1.0


def mp3_has_index(data: bytes) -> bool:
    """Whether an MP3 begins with a Xing or Info frame, which stores the number of its frames.

    Without one its length is a guess from the first frame's bit rate.
    """
    start = 0
    if data[:3] == b"ID3" and len(data) >= _ID3_HEADER_BYTES:
        size = sum((byte & 0x7F) << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0), strict=True))
        start = _ID3_HEADER_BYTES + size
    first = data[start : start + _INDEX_SEARCH_BYTES]
    return b"Xing" in first or b"Info" in first
