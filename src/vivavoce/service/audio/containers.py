"""What stands around a codec's packets: nothing (MP3), a header before each (ADTS) or one before all (FLAC)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Protocol


class Container(Protocol):
    """Turns packets into the bytes of a file, each as soon as it is there."""

    def pack(self, packets: Sequence[bytes]) -> bytes:
        """Packets within the stream, perhaps none; what precedes them the first time."""

    def end(self, packets: Sequence[bytes], num_samples: int) -> bytes:
        """The last packets, perhaps none, of a stream of `num_samples` input samples, and what ends the file."""


class Frames:
    """Packets one after the other: behind `head`, and each behind what `packet_head` makes of its size in bytes."""

    def __init__(self, head: bytes = b"", packet_head: Callable[[int], bytes] = lambda num_bytes: b"") -> None:
        self._head, self._packet_head = head, packet_head

    def pack(self, packets: Sequence[bytes]) -> bytes:
        """The packets and their heads, at first behind the head of all, which does not wait for a packet."""
        head, self._head = self._head, b""
        return head + b"".join(part for packet in packets for part in (self._packet_head(len(packet)), packet))

    def end(self, packets: Sequence[bytes], num_samples: int) -> bytes:
        """As within the stream: such files just end."""
        return self.pack(packets)


def flac_header(stream_info: bytes) -> bytes:
    """What precedes FLAC frames (RFC 9639, 8); a STREAMINFO of a length and an MD5 sum of 0 leaves them open."""
    last_block, type_stream_info = 1, 0
    return b"fLaC" + struct.pack(">I", last_block << 31 | type_stream_info << 24 | len(stream_info)) + stream_info


def adts_heads(audio_specific_config: bytes) -> Callable[[int], bytes]:
    """What precedes an AAC packet of a number of bytes: seven bytes (ISO/IEC 14496-3, 1.A.3.2)."""
    (config,) = struct.unpack_from(">H", audio_specific_config)
    object_type, rate_index, channels = config >> 11, config >> 7 & 0xF, config >> 3 & 0xF
    sync, no_checksum, fullness_unknown, num_bytes = 0xFFF, 1, 0x7FF, 7
    fixed = sync << 16 | no_checksum << 12 | (object_type - 1) << 10 | rate_index << 6 | channels << 2

    def head(packet_bytes: int) -> bytes:
        variable = (packet_bytes + num_bytes) << 13 | fullness_unknown << 2
        return (fixed << 28 | variable).to_bytes(num_bytes, "big")

    return head
