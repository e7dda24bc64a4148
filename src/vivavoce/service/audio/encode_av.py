"""Encodes with FFmpeg's codecs, through PyAV: MP3, Opus, AAC and FLAC."""

from __future__ import annotations

from collections.abc import Callable

from vivavoce.service.audio.containers import Container, Frames, adts_heads, flac_header
from vivavoce.service.audio.formats import AudioFormat
from vivavoce.service.audio.ogg import OPUS_RATE, OggOpus
from vivavoce.service.audio.packets import Codec, PacketStream
from vivavoce.service.audio.pcm import to_int16
from vivavoce.service.audio.types import Samples

_MP3 = Codec("libmp3lame", "s16p", 64_000, {"reservoir": "0", "compression_level": "7"})
"""Without the reservoir, a frame needs none but itself. Level 7 halves the cost of the default: at 64 kbit/s, mono
speech needs no noise shaping."""

_OPUS = Codec("libopus", "s16", 48_000, {"application": "audio", "compression_level": "5", "frame_duration": "20"})
"""Level 5 costs a quarter of the default 10, whose search for music and speech modes matters below 32 kbit/s."""

_AAC = Codec("aac", "fltp", 64_000, {"aac_coder": "fast", "aac_pns": "0"})
"""The thorough coder takes twice as long; noise substitution is for bitrates that speech does not need."""

_FLAC_BLOCKS_PER_SECOND = 50


class AvEncoder:
    """A codec and the container around its packets; see `encode.Encoder`."""

    def __init__(
        self, packets: PacketStream, container: Container, whole_header: Callable[[bytes], bytes] | None = None
    ) -> None:
        self._packets: PacketStream | None = packets
        self._container = container
        self._remade = whole_header
        self._whole_header = b""
        self._num_samples = 0

    def encode(self, samples: Samples) -> bytes:
        """All packets that are complete now."""
        packets = self._open()
        if samples.ndim != 1:
            raise ValueError(f"samples have shape {samples.shape}, not [n]")
        integers = to_int16(samples)
        self._num_samples += len(integers)
        return self._container.pack(packets.encode(integers))

    def finish(self) -> bytes:
        """The last packets, and what ends the file; frees the codec."""
        packets = self._open()
        data = self._container.end(packets.finish(), self._num_samples)
        if self._remade:
            self._whole_header = self._remade(packets.description)
        self.close()
        return data

    def whole_header(self) -> bytes:
        """The header, with what the codec knows after the last sample."""
        return self._whole_header

    def close(self) -> None:
        """Free the codec; FFmpeg's memory goes with the last reference to it."""
        self._packets = None

    def _open(self) -> PacketStream:
        if self._packets is None:
            raise ValueError("the encoder is finished or closed")
        return self._packets


def open_av_encoder(format: AudioFormat, sample_rate: int, bitrate: int | None) -> AvEncoder:
    """Open an encoder of one of FFmpeg's formats; the arguments are those of `encode.open_encoder`.

    Raises:
        MissingDependency: this build of PyAV lacks the codec.
    """
    return _OPENERS[format](sample_rate, bitrate)


def _open_mp3(sample_rate: int, bitrate: int | None) -> AvEncoder:
    return AvEncoder(PacketStream(_MP3, sample_rate, bitrate), Frames())


def _open_aac(sample_rate: int, bitrate: int | None) -> AvEncoder:
    packets = PacketStream(_AAC, sample_rate, bitrate)
    return AvEncoder(packets, Frames(packet_head=adts_heads(packets.description)))


def _open_opus(sample_rate: int, bitrate: int | None) -> AvEncoder:
    packets = PacketStream(_OPUS, sample_rate, bitrate)
    packet_samples = packets.packet_samples * OPUS_RATE // packets.sample_rate
    return AvEncoder(packets, OggOpus(packets.description, sample_rate, packet_samples))


def _open_flac(sample_rate: int, bitrate: int | None) -> AvEncoder:
    codec = Codec("flac", "s16", None, {"frame_size": str(sample_rate // _FLAC_BLOCKS_PER_SECOND)})
    packets = PacketStream(codec, sample_rate, bitrate)
    return AvEncoder(packets, Frames(flac_header(packets.description)), flac_header)


_OPENERS: dict[AudioFormat, Callable[[int, int | None], AvEncoder]] = {
    AudioFormat.MP3: _open_mp3,
    AudioFormat.AAC: _open_aac,
    AudioFormat.OPUS: _open_opus,
    AudioFormat.FLAC: _open_flac,
}
