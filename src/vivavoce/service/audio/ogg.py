"""Puts Opus packets into Ogg pages (RFC 3533, RFC 7845), each page as soon as there is a packet for it.

FFmpeg's muxer holds the last page back until the next is full, which would add its length to the delay.
"""

from __future__ import annotations

import secrets
import struct
import zlib
from collections.abc import Iterator, Sequence

OPUS_RATE = 48_000
"""Positions in Ogg count samples at 48 kHz, whatever was encoded."""

_CONTINUES, _FIRST, _LAST = 0, 2, 4
_MAX_SEGMENTS = 255
_CRC_AT = 22

_VENDOR = b"vivavoce"
_TAGS = b"OpusTags" + struct.pack("<I", len(_VENDOR)) + _VENDOR + struct.pack("<I", 0)


class OggOpus:
    """The pages of one stream; see `containers.Container`.

    head: the OpusHead packet. sample_rate: of the input, in hertz. packet_samples: length of every packet at 48 kHz.
    """

    def __init__(self, head: bytes, sample_rate: int, packet_samples: int) -> None:
        self._head, self._sample_rate, self._packet_samples = head, sample_rate, packet_samples
        (self._pre_skip,) = struct.unpack_from("<H", head, 10)
        self._serial = secrets.randbits(32)  # so that two answers one after the other are a valid chain
        self._num_pages = 0
        self._position = 0

    def pack(self, packets: Sequence[bytes]) -> bytes:
        """All packets, in as few pages as hold them; the first ones behind the two header pages."""
        return b"".join(self._pages(packets))

    def end(self, packets: Sequence[bytes], num_samples: int) -> bytes:
        """The last packets; the position of their page cuts off what exceeds the `num_samples` that were given.

        A stream without any packet stays empty: decoders refuse headers alone.
        """
        if not packets and not self._num_pages:
            return b""
        *pages, last = list(_groups(packets)) or [[]]
        data = self.pack([packet for page in pages for packet in page]) + self._header_pages()
        end = self._pre_skip + -(-num_samples * OPUS_RATE // self._sample_rate)
        self._position = min(self._position + len(last) * self._packet_samples, end)
        return data + self._page(_LAST, self._position, last)

    def _pages(self, packets: Sequence[bytes]) -> Iterator[bytes]:
        for group in _groups(packets):
            yield self._header_pages()
            self._position += len(group) * self._packet_samples
            yield self._page(_CONTINUES, self._position, group)

    def _header_pages(self) -> bytes:
        if self._num_pages:
            return b""
        return self._page(_FIRST, 0, [self._head]) + self._page(_CONTINUES, 0, [_TAGS])

    def _page(self, flags: int, position: int, packets: Sequence[bytes]) -> bytes:
        segments = b"".join(_segments(len(packet)) for packet in packets)
        fields = (b"OggS", 0, flags, position, self._serial, self._num_pages, 0, len(segments))
        page = b"".join((struct.pack("<4sBBqIIIB", *fields), segments, *packets))
        self._num_pages += 1
        return page[:_CRC_AT] + struct.pack("<I", _checksum(page)) + page[_CRC_AT + 4 :]


def _groups(packets: Sequence[bytes]) -> Iterator[list[bytes]]:
    """Runs of packets whose segments fit into a page."""
    group: list[bytes] = []
    num_segments = 0
    for packet in packets:
        needed = len(_segments(len(packet)))
        if num_segments + needed > _MAX_SEGMENTS:
            yield group
            group, num_segments = [], 0
        group.append(packet)
        num_segments += needed
    if group:
        yield group


def _segments(num_bytes: int) -> bytes:
    """Lengths of a packet's segments: full ones, and one below 255 that ends it."""
    return b"\xff" * (num_bytes // 255) + bytes([num_bytes % 255])


_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def _checksum(page: bytes) -> int:
    """Ogg's CRC: the polynomial of zlib's, with the bits in the other order, begun with 0 and not inverted."""
    mirrored = zlib.crc32(page.translate(_MIRRORED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{mirrored:032b}"[::-1], 2)
