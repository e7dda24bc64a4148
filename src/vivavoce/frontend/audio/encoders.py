"""Encoders for audio streams: codec and container of each format, and resampling."""

from __future__ import annotations

import math
import os
import random
import secrets
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from vivavoce.errors import MissingDependency
from vivavoce.frontend.audio.samples import Samples, amplified, to_int16
from vivavoce.frontend.audio.tag import AudioTag, id3_tag, info_chunk, vorbis_comments

_FLAC_BLOCKS_PER_SECOND = 50
_OGG_RATE = 48_000
"""Ogg Opus counts positions in samples at 48 kHz, for any rate of the encoded audio."""
_PAGE_PACKETS = 42
"""Opus packets per Ogg page: a page has at most 255 segments of 255 bytes; a packet of 20 ms needs at most 6."""
_STARTS_FILE, _ENDS_FILE = 2, 4
_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_CROSSINGS, _ROLLOFF, _BETA = 48, 0.945, 9.0
"""Half the resampler's filter length in zero crossings, its cutoff as a fraction of the lower Nyquist frequency, and β
of its Kaiser window. Aliases are attenuated by 90 dB."""
_STEP = 96
"""Minimum number of input samples in a step of the resampler. A step is one matrix product: large ones are faster."""


class Resampler:
    """Resamples a stream piece by piece; the result does not depend on the size of the pieces.

    It is a polyphase filter: a sinc with a Kaiser window. A sample comes out 6 to 11 ms after it went in (with soxr's
    streams 37 to 75 ms), but its time in the output is the time that it had in the input.
    """

    def __init__(self, from_rate: int, to_rate: int) -> None:
        common = math.gcd(from_rate, to_rate)
        periods = -(-_STEP * common // from_rate)
        self._old, self._new = from_rate // common * periods, to_rate // common * periods
        self._kernels = _kernels(self._old, self._new)
        self._waiting = np.zeros((len(self._kernels) - self._old) // 2, np.float32)
        self._num_given = self._num_resampled = 0

    def push(self, samples: Samples) -> Samples:
        """Take input samples [n]; return the output samples [m] that they complete."""
        self._num_given += len(samples)
        waiting, width = np.concatenate([self._waiting, samples]), len(self._kernels)
        steps = max(0, (len(waiting) - width) // self._old + 1)
        self._waiting = waiting[steps * self._old :]
        if not steps:
            return np.zeros(0, np.float32)
        windows = np.ascontiguousarray(sliding_window_view(waiting, width)[:: self._old])
        resampled = (windows @ self._kernels).reshape(-1)
        self._num_resampled += len(resampled)
        return resampled

    def finish(self) -> Samples:
        """Return the last output samples. The whole output lasts as long as the input, rounded up to a sample."""
        missing = -(-self._num_given * self._new // self._old) - self._num_resampled
        return self.push(np.zeros(len(self._kernels), np.float32))[:missing]


@lru_cache(maxsize=16)
def _kernels(old: int, new: int) -> Samples:
    """Return kernels [old + 2·half, new] for `old` input and `new` output samples: column j gives output sample j."""
    cutoff = _ROLLOFF * min(1.0, new / old)
    half = math.ceil(_CROSSINGS / cutoff)
    distances = np.arange(-half, old + half)[:, None] - np.arange(new)[None] * (old / new)
    inside = np.clip(1 - (distances * (cutoff / _CROSSINGS)) ** 2, 0, None)
    kernels = np.sinc(cutoff * distances) * np.i0(_BETA * np.sqrt(inside)) * (inside > 0)
    return (kernels / kernels.sum(axis=0)).astype(np.float32)


class Encoder:
    """Encodes a stream. The bytes of all `encode` calls and of `finish`, joined in order, are a valid file.

    The audio does not depend on how the samples are divided among the calls. Not thread-safe. This class writes PCM;
    subclasses write the other formats.
    """

    default_bitrate: int | None = None
    """Bits per second; None if the format has no bitrate."""
    resampler: Resampler | None = None
    """Resamples the speech to the encoder's rate; None if the rates are equal."""
    gain = 1.0
    """Factor that multiplies all samples, see `amplified`."""

    def __init__(self, sample_rate: int, bitrate: int | None = None, tag: AudioTag | None = None) -> None:
        """tag: metadata for the file; ignored if the format cannot store it."""
        self._sample_rate, self._num_samples = sample_rate, 0
        self._header = b""
        """Header bytes that are not yet returned."""
        self._ended = False

    def encode(self, samples: Samples) -> bytes:
        """Take mono samples [n], n >= 0, float32, full scale ±1; return all bytes that are complete now.

        The first bytes contain the file's header. For wav and flac, the first call returns it even without samples.

        Raises:
            ValueError: samples have a shape other than [n] or contain NaN, or the encoder is finished or closed.
        """
        self._check_open()
        if samples.ndim != 1:
            raise ValueError(f"samples have shape {samples.shape}, not [n]")
        integers = to_int16(samples if self.gain == 1 else amplified(samples, self.gain))
        if self.resampler is not None:
            integers = to_int16(self.resampler.push(integers / np.float32(32768)))
        return self._pack(self._counted(integers))

    def finish(self) -> bytes:
        """Return the rest of the file, and close the encoder."""
        self._check_open()
        packets = [] if self.resampler is None else self._counted(to_int16(self.resampler.finish()))
        data = self._pack([*packets, *self._last_packets()], last=True)
        self.close()
        return data

    @property
    def is_instant(self) -> bool:
        """Whether encoding takes less than 0.1 ms for a second of audio, so that it needs no thread (mp3: 4 ms)."""
        return self.resampler is None and self.gain == 1

    def whole_header(self) -> bytes:
        """After `finish`, return a header with the file's length, to replace the file's first bytes (wav, flac)."""
        return b""

    def close(self) -> None:
        """Free the codec, also before `finish`; may be called twice."""
        self._ended = True

    def _check_open(self) -> None:
        if self._ended:
            raise ValueError("the encoder is finished or closed")

    def _counted(self, samples: NDArray[np.int16]) -> list[bytes]:
        self._num_samples += len(samples)
        return self._packets(samples)

    def _packets(self, samples: NDArray[np.int16]) -> list[bytes]:
        return [samples.astype("<i2").tobytes()]

    def _last_packets(self) -> list[bytes]:
        return []

    def _pack(self, packets: list[bytes], last: bool = False) -> bytes:
        header, self._header = self._header, b""
        return b"".join([header, *packets])


def wav_header(sample_rate: int, num_samples: int | None, tag: AudioTag | None = None) -> bytes:
    """Return the header of a WAV file of `num_samples` little-endian int16 mono samples: 44 bytes and the tag's chunk.

    If `num_samples` is None (not known yet), or the file exceeds 4 GiB, both sizes in the header are 0xFFFFFFFF, which
    players understand as "until the end". Thus the tag must be before the samples: else players might play the tag.
    """
    largest, sample_bytes, pcm, channels = 0xFFFFFFFF, 2, 1, 1
    info = info_chunk(tag) if tag else b""
    num_bytes = largest if num_samples is None else num_samples * sample_bytes
    riff_size, data_size = min(num_bytes + 36 + len(info), largest), min(num_bytes, largest)
    layout = (16, pcm, channels, sample_rate, sample_rate * sample_bytes, sample_bytes, 8 * sample_bytes)
    head = struct.pack("<4sI4s4sIHHIIHH", b"RIFF", riff_size, b"WAVE", b"fmt ", *layout)
    return head + info + struct.pack("<4sI", b"data", data_size)


class WavEncoder(Encoder):
    def __init__(self, sample_rate: int, bitrate: int | None = None, tag: AudioTag | None = None) -> None:
        super().__init__(sample_rate)
        self._tag, self._header = tag, wav_header(sample_rate, None, tag)

    def whole_header(self) -> bytes:
        return wav_header(self._sample_rate, self._num_samples, self._tag)


class UlawEncoder(Encoder):
    """μ-law (ITU-T G.711): a byte for each sample has its sign, its highest bit's position and the next four bits."""

    def _packets(self, samples: NDArray[np.int16]) -> list[bytes]:
        levels = np.minimum(np.abs(samples.astype(np.int32)), 32_635) + 132
        exponents = np.frexp(levels)[1] - 8
        codes = ~(np.where(samples < 0, 128, 0) | exponents << 4 | levels >> (exponents + 3) & 15) & 255
        return [codes.astype(np.uint8).tobytes()]


class AlawEncoder(Encoder):
    """A-law (ITU-T G.711), the telephone code outside North America and Japan: one byte for each sample."""

    def _packets(self, samples: NDArray[np.int16]) -> list[bytes]:
        wide = samples.astype(np.int32)
        levels = (wide ^ (wide >> 31)) >> 3
        exponents = np.maximum(np.frexp(levels)[1] - 5, 0)
        codes = (exponents << 4 | levels >> np.maximum(exponents, 1) & 15) ^ np.where(samples < 0, 0x55, 0xD5)
        return [codes.astype(np.uint8).tobytes()]


class _CodecEncoder(Encoder):
    """Encodes with a codec of FFmpeg, through PyAV; the codec's packets form the file.

    Samples that do not fill a packet wait for the next call of `encode`. If the codec does not support the audio's
    sample rate, PyAV resamples the audio with libswresample, with one filter for the whole stream.
    """

    codec: str
    """FFmpeg's name of the codec."""
    sample_format: str
    options: tuple[tuple[str, str], ...]
    is_instant = False

    def __init__(self, sample_rate: int, bitrate: int | None = None, tag: AudioTag | None = None) -> None:
        super().__init__(sample_rate)
        import av

        try:
            context: Any = av.CodecContext.create(self.codec, "w")
        except ValueError:  # PyAV's UnknownCodecError
            raise MissingDependency(
                f"PyAV's FFmpeg has no encoder {self.codec}; `pip install --force-reinstall --only-binary av av` has it"
            ) from None
        rates = context.codec.audio_rates
        # The codec's lowest rate that is not below the audio's rate, or the codec's highest rate.
        known = min((rate for rate in rates if rate >= sample_rate), default=max(rates)) if rates else sample_rate
        context.sample_rate, context.layout, context.format = known, "mono", self.sample_format
        if self.default_bitrate is not None:
            context.bit_rate = bitrate or self.default_bitrate
        context.options = dict(self.options)
        context.open()
        self._context = context
        self._begun = False

    def close(self) -> None:
        """Delete the last reference to the codec, which frees FFmpeg's memory."""
        super().close()
        self._context = None

    def _packets(self, samples: NDArray[np.int16]) -> list[bytes]:
        if self._begun or not len(samples):
            return self._encoded(samples)
        self._begun = True
        with _one_processor():
            packets = self._encoded(samples[:1])
        return packets + self._encoded(samples[1:])

    def _last_packets(self) -> list[bytes]:
        return self._encoded(None) if self._begun else []

    def _encoded(self, samples: NDArray[np.int16] | None) -> list[bytes]:
        import av

        if samples is not None and not len(samples):
            return []
        frame: Any = None
        if samples is not None:
            frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
            frame.sample_rate = self._sample_rate
        # The last packet of the flac encoder is empty.
        return [bytes(packet) for packet in self._context.encode(frame) if packet.size]


@contextmanager
def _one_processor() -> Iterator[None]:
    """Restrict this thread to one processor inside the `with` block.

    At the first frame, PyAV creates a filter graph, which starts a thread for each of up to 16 processors and never
    uses them: 64 streams would have about a thousand idle threads. FFmpeg counts the processors that the calling thread
    may run on; PyAV passes on no other setting for this.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    with suppress(OSError):  # a sandbox may forbid this; then the codec starts more threads
        os.sched_setaffinity(0, {random.choice(tuple(allowed))})
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, allowed)


class _FrameEncoder(_CodecEncoder):
    """Writes frames without a container. The tag comes with the first frame: decoders refuse a file of only a tag."""

    def __init__(self, sample_rate: int, bitrate: int | None = None, tag: AudioTag | None = None) -> None:
        super().__init__(sample_rate, bitrate)
        self._header = id3_tag(tag) if tag else b""

    def _pack(self, packets: list[bytes], last: bool = False) -> bytes:
        return super()._pack(packets, last) if packets else b""


class Mp3Encoder(_FrameEncoder):
    codec, sample_format, default_bitrate = "libmp3lame", "s16p", 64_000
    # Without the bit reservoir, each frame can be decoded alone. Quality level 7 takes half the time of the default: it
    # omits noise shaping, which mono speech at 64 kbit/s does not need.
    options = (("reservoir", "0"), ("compression_level", "7"))


class AdtsEncoder(_FrameEncoder):
    """AAC with an ADTS header of 7 bytes before each packet (ISO/IEC 14496-3, 1.A.3.2), and an ID3 tag, as in HLS."""

    codec, sample_format, default_bitrate = "aac", "fltp", 64_000
    # The default coder takes twice as long. Noise substitution (pns) only helps at bitrates below those of speech here.
    options = (("aac_coder", "fast"), ("aac_pns", "0"))

    def _pack(self, packets: list[bytes], last: bool = False) -> bytes:
        (config,) = struct.unpack_from(">H", bytes(self._context.extradata))
        object_type, rate_index, channels = config >> 11, config >> 7 & 0xF, config >> 3 & 0xF
        sync, no_checksum, fullness_unknown, num_bytes = 0xFFF, 1, 0x7FF, 7
        fixed = sync << 16 | no_checksum << 12 | (object_type - 1) << 10 | rate_index << 6 | channels << 2
        heads = (fixed << 28 | (len(packet) + num_bytes) << 13 | fullness_unknown << 2 for packet in packets)
        frames = [head.to_bytes(num_bytes, "big") + packet for head, packet in zip(heads, packets, strict=True)]
        return super()._pack(frames, last)


class FlacEncoder(_CodecEncoder):
    """FLAC frames after a header (RFC 9639, 8). In a stream, the header's length and MD5 sum are 0 (unknown)."""

    codec, sample_format = "flac", "s16"

    def __init__(self, sample_rate: int, bitrate: int | None = None, tag: AudioTag | None = None) -> None:
        self.options = (("frame_size", str(sample_rate // _FLAC_BLOCKS_PER_SECOND)),)
        super().__init__(sample_rate)
        self._tag = tag
        self._header = self._whole_header = self._current_header()

    def whole_header(self) -> bytes:
        return self._whole_header

    def _current_header(self) -> bytes:
        type_stream_info, type_comments = 0, 4
        blocks = [(type_stream_info, bytes(self._context.extradata))]
        blocks += [(type_comments, vorbis_comments(self._tag))] if self._tag else []
        header = b"fLaC"
        for number, (kind, content) in enumerate(blocks, 1):
            is_last = number == len(blocks)
            header += struct.pack(">I", is_last << 31 | kind << 24 | len(content)) + content
        return header

    def _last_packets(self) -> list[bytes]:
        packets = super()._last_packets()
        self._whole_header = self._current_header()
        return packets


class OggOpusEncoder(_CodecEncoder):
    """Opus packets in Ogg pages (RFC 3533, RFC 7845). A page is written as soon as it has a packet.

    FFmpeg's muxer is not used: it holds each page back until the next page is full, which would add delay.
    """

    codec, sample_format, default_bitrate = "libopus", "s16", 48_000
    # Level 5 takes a quarter of the time of level 10, the default, which improves quality only below 32 kbit/s.
    options = (("application", "audio"), ("compression_level", "5"), ("frame_duration", "20"))

    def __init__(self, sample_rate: int, bitrate: int | None = None, tag: AudioTag | None = None) -> None:
        super().__init__(sample_rate, bitrate)
        head = bytes(self._context.extradata)
        (self._pre_skip,) = struct.unpack_from("<H", head, 10)
        self._packet_samples = self._context.frame_size * _OGG_RATE // self._context.sample_rate
        self._serial = secrets.randbits(32)  # random, so that two joined files are a valid Ogg chain
        self._num_pages = self._position = 0
        self._header = self._page(_STARTS_FILE, [head]) + self._page(0, [b"OpusTags" + vorbis_comments(tag)])

    def _pack(self, packets: list[bytes], last: bool = False) -> bytes:
        """Write packets as pages. The last page contains the number of samples, so that decoders drop the padding.

        Without any packet nothing is written, since decoders refuse a file that has only headers.
        """
        if not packets and (self._header or not last):
            return b""
        data, self._header = self._header, b""
        groups = [packets[at : at + _PAGE_PACKETS] for at in range(0, len(packets), _PAGE_PACKETS)] or [[]]
        for group in groups:
            self._position += len(group) * self._packet_samples
            is_last = last and group is groups[-1]
            if is_last:
                end = self._pre_skip + -(-self._num_samples * _OGG_RATE // self._sample_rate)
                self._position = min(self._position, end)
            data += self._page(_ENDS_FILE if is_last else 0, group)
        return data

    def _page(self, flags: int, packets: list[bytes]) -> bytes:
        # Lengths of a packet's segments: full segments of 255 bytes, then a shorter one, which ends the packet.
        segments = b"".join(b"\xff" * (len(packet) // 255) + bytes([len(packet) % 255]) for packet in packets)
        fields = (b"OggS", 0, flags, self._position, self._serial, self._num_pages, 0, len(segments))
        page = b"".join((struct.pack("<4sBBqIIIB", *fields), segments, *packets))
        self._num_pages += 1
        # Ogg's CRC has zlib's polynomial, but the reverse order of bits, the initial value 0 and no final inversion.
        mirrored = zlib.crc32(page.translate(_MIRRORED), 0xFFFFFFFF) ^ 0xFFFFFFFF
        return page[:22] + struct.pack("<I", int(f"{mirrored:032b}"[::-1], 2)) + page[26:]
