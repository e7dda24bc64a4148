"""Encodes speech, whole or while it is made: samples in, the bytes of one growing file out."""

from __future__ import annotations

import os
import random
import secrets
import struct
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from enum import Enum
from pathlib import Path, PurePath
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import InvalidRequest, MissingDependency
from vivavoce.files import replace_file
from vivavoce.service.audio.samples import Samples, to_int16

MIN_BITRATE, MAX_BITRATE = 16_000, 160_000
"""Bits per second for mono speech; 160 kbit/s is the most that MP3 allows at 24 kHz."""

_FLAC_BLOCKS_PER_SECOND = 50
_OGG_RATE = 48_000
"""Positions in Ogg count samples at 48 kHz, whatever was encoded."""
_PAGE_PACKETS = 42
"""A page has at most 255 segments of 255 bytes, an Opus packet of 20 ms at most 1275 bytes: 6 segments."""
_STARTS_FILE, _ENDS_FILE = 2, 4
_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_OPUS_TAGS = b"OpusTags" + struct.pack("<I8sI", 8, b"vivavoce", 0)


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


_SUFFIXES = {f".{format.value}": format for format in AudioFormat} | {
    ".oga": AudioFormat.OPUS,
    ".ogg": AudioFormat.OPUS,
    ".raw": AudioFormat.PCM,
}


def parse_format(name: str) -> AudioFormat:
    """The format that a request's `response_format` names; InvalidRequest for an unknown name."""
    try:
        return AudioFormat(name)
    except ValueError:
        known = ", ".join(format.value for format in AudioFormat)
        raise InvalidRequest(f"response_format: {name!r} is unknown; choose one of {known}") from None


def format_of(path: str | os.PathLike[str]) -> AudioFormat:
    """The format that the suffix of `path` stands for, in either case; WAV where there is none, as a device has none.

    Raises:
        InvalidRequest: no format of ours has that suffix.
    """
    suffix = PurePath(path).suffix.lower()
    if suffix and suffix not in _SUFFIXES:
        known = ", ".join(_SUFFIXES)
        raise InvalidRequest(f"output: {suffix!r} is no format that can be written; end the name with one of {known}")
    return _SUFFIXES.get(suffix, AudioFormat.WAV)


def content_type(format: AudioFormat, sample_rate: int) -> str:
    """The Content-Type of a mono body; only samples without a header need their rate (hertz) in it."""
    if format is AudioFormat.PCM:
        return f"audio/pcm; rate={sample_rate}; channels=1"
    return "audio/" + {AudioFormat.MP3: "mpeg", AudioFormat.OPUS: "ogg"}.get(format, format.value)


class Encoder:
    """One stream's encoder. The bytes of all `encode` calls and of `finish`, in order, are one valid file.

    How the samples are cut into calls changes nothing that can be heard. For one thread at a time.
    This class writes PCM; the others write what their format puts around it.
    """

    default_bitrate: int | None = None
    """Bits per second; None: the format is not compressed to a bitrate."""

    def __init__(self, sample_rate: int, bitrate: int | None = None) -> None:
        self._sample_rate, self._num_samples = sample_rate, 0
        self._header = b""
        """What is still to precede the first bytes."""
        self._ended = False

    def encode(self, samples: Samples) -> bytes:
        """Take mono samples [n], n >= 0, float32, ±1 full scale; return all bytes that can be made of them now.

        The file's header comes with the first bytes; those of wav and flac with the first call, samples or not.

        Raises:
            ValueError: samples are not [n], a sample is NaN, or the encoder is finished or closed.
        """
        self._check_open()
        if samples.ndim != 1:
            raise ValueError(f"samples have shape {samples.shape}, not [n]")
        integers = to_int16(samples)
        self._num_samples += len(integers)
        return self._pack(self._packets(integers))

    def finish(self) -> bytes:
        """Return the rest of the file. Nothing can be encoded after it.

        Raises:
            ValueError: the encoder is finished or closed.
        """
        self._check_open()
        data = self._pack(self._last_packets(), last=True)
        self.close()
        return data

    def whole_header(self) -> bytes:
        """What the first bytes of the file are to be once its length is known, after `finish`.

        For files that can be written to at their start (wav, flac); empty if there is nothing to put right.
        """
        return b""

    def close(self) -> None:
        """Free the codec, finished or not. Closing twice is allowed."""
        self._ended = True

    def _check_open(self) -> None:
        if self._ended:
            raise ValueError("the encoder is finished or closed")

    def _packets(self, samples: NDArray[np.int16]) -> list[bytes]:
        return [samples.astype("<i2").tobytes()]

    def _last_packets(self) -> list[bytes]:
        return []

    def _pack(self, packets: list[bytes], last: bool = False) -> bytes:
        """The bytes of the file that hold the packets."""
        header, self._header = self._header, b""
        return b"".join([header, *packets])


def open_encoder(format: AudioFormat, sample_rate: int, *, bitrate: int | None = None) -> Encoder:
    """Open an encoder of mono speech at `sample_rate` (hertz).

    All formats encode the 16-bit samples of `to_int16`. `delay` is the most samples that were given and
    cannot be decoded yet from the bytes so far, at 24 kHz; `lead` is what a decoder puts before the first sample.

    ======  =====================  ================  ========  =============  ====================
    format  codec                  bitrate           delay     lead           no samples at all
    ======  =====================  ================  ========  =============  ====================
    pcm     16-bit integers        --                0         0              nothing
    wav     16-bit integers        --                0         0              a header: empty file
    flac    blocks of 20 ms        --                20 ms     0              a header: empty file
    opus    packets of 20 ms       48 kbit/s (VBR)   26.5 ms   0 (cut off)    nothing
    mp3     frames of 576 samples  64 kbit/s (CBR)   94 ms     1105 samples   nothing
    aac     frames of 1024         64 kbit/s (VBR)   128 ms    1024 samples   nothing
    ======  =====================  ================  ========  =============  ====================

    MP3 and ADTS cannot say where the first and the last sample lie, so the lead, and up to two frames of silence
    at the end, are heard. Opus, MP3 and AAC know certain rates only: speech of another rate is resampled to the next
    higher one, which takes another millisecond; what is shorter than that may stay empty.
    An open FLAC encoder holds 6.5 MB, the others below 0.5 MB.

    Raises:
        InvalidRequest: a bitrate outside 16000–160000 bit/s, or one for a format that has none.
        MissingDependency: this build of PyAV lacks the codec.
    """
    encoder = _ENCODERS[format]
    if bitrate is not None and encoder.default_bitrate is None:
        raise InvalidRequest(f"bitrate: {format.value} is not compressed to one; leave {bitrate} out")
    if bitrate is not None and not MIN_BITRATE <= bitrate <= MAX_BITRATE:
        raise InvalidRequest(
            f"bitrate: {bitrate} bit/s is outside of {MIN_BITRATE} … {MAX_BITRATE}; leave it out for the default"
        )
    return encoder(sample_rate, bitrate)


def encode_whole(format: AudioFormat, samples: Samples, sample_rate: int) -> bytes:
    """The bytes of a whole file, whose header tells the length; errors as in `open_encoder` and `Encoder.encode`."""
    with closing(open_encoder(format, sample_rate)) as encoder:
        content = encoder.encode(samples) + encoder.finish()
        header = encoder.whole_header()
        return header + content[len(header) :]


def write_audio(
    target: str | Path | BinaryIO, samples: Samples, sample_rate: int, format: AudioFormat | None = None
) -> None:
    """Write mono `samples` [n], float32, at `sample_rate` (hertz) to a path or an open file.

    A path gets the whole file or none. Its suffix chooses the format if none is given (see `format_of`); an open file
    gets WAV. Devices and pipes are written directly; a link stays a link.

    Raises:
        InvalidRequest: an unknown suffix, the folder of the path is missing, it is a folder, or cannot be written.
        MissingDependency: this build of PyAV lacks the codec.
        ValueError: samples are not [n], or NaN.
    """
    if not isinstance(target, (str, Path)):
        target.write(encode_whole(format or AudioFormat.WAV, samples, sample_rate))
        return
    content = encode_whole(format or format_of(target), samples, sample_rate)
    path = Path(target)
    try:
        if path.is_dir():
            raise InvalidRequest(f"output: {str(path)!r} is a folder; add a file name such as speech.wav")
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        path = path.resolve()
        if not path.parent.is_dir():
            raise InvalidRequest(
                f"output: folder {str(path.parent)!r} does not exist; create it or choose another path"
            )
        replace_file(path, content)
    except OSError as error:
        raise InvalidRequest(
            f"output: {str(target)!r} cannot be written ({error.strerror}); choose another path"
        ) from None


def wav_header(sample_rate: int, num_samples: int | None) -> bytes:
    """44 bytes that precede `num_samples` little-endian int16 mono samples.

    None means that the length is not known yet: both sizes become 0xFFFFFFFF, which players take as "until
    the end". So do sizes that the format cannot hold (over 4 GiB).
    """
    largest, sample_bytes, pcm, channels = 0xFFFFFFFF, 2, 1, 1
    num_bytes = largest if num_samples is None else num_samples * sample_bytes
    riff_size, data_size = min(num_bytes + 36, largest), min(num_bytes, largest)
    layout = (16, pcm, channels, sample_rate, sample_rate * sample_bytes, sample_bytes, 8 * sample_bytes)
    return struct.pack("<4sI4s4sIHHIIHH4sI", b"RIFF", riff_size, b"WAVE", b"fmt ", *layout, b"data", data_size)


class _WavEncoder(Encoder):
    def __init__(self, sample_rate: int, bitrate: int | None = None) -> None:
        super().__init__(sample_rate)
        self._header = wav_header(sample_rate, None)

    def whole_header(self) -> bytes:
        """A WAV header that knows the length."""
        return wav_header(self._sample_rate, self._num_samples)


class _CodecEncoder(Encoder):
    """One of FFmpeg's codecs, through PyAV; its packets are the file.

    Samples that do not fill a packet wait for the next. A rate that the codec does not know is resampled on the way
    (libswresample, one filter for the whole stream).
    """

    codec: str
    """FFmpeg's name of it."""
    sample_format: str
    options: tuple[tuple[str, str], ...]

    def __init__(self, sample_rate: int, bitrate: int | None = None) -> None:
        super().__init__(sample_rate)
        import av

        try:
            context: Any = av.CodecContext.create(self.codec, "w")
        except ValueError:  # PyAV's UnknownCodecError
            raise MissingDependency(
                f"PyAV's FFmpeg has no encoder {self.codec}; `pip install --force-reinstall --only-binary av av` has it"
            ) from None
        rates = context.codec.audio_rates
        # The lowest rate that keeps everything, or the highest there is.
        known = min((rate for rate in rates if rate >= sample_rate), default=max(rates)) if rates else sample_rate
        context.sample_rate, context.layout, context.format = known, "mono", self.sample_format
        if self.default_bitrate is not None:
            context.bit_rate = bitrate or self.default_bitrate
        context.options = dict(self.options)
        context.open()
        self._context = context
        self._begun = False

    def close(self) -> None:
        """Free the codec; FFmpeg's memory goes with the last reference to it."""
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
        # The flac encoder ends with an empty one.
        return [bytes(packet) for packet in self._context.encode(frame) if packet.size]


@contextmanager
def _one_processor() -> Iterator[None]:
    """Let this thread see one processor for a moment.

    With its first frame, PyAV puts a filter graph before the codec, which would start a thread for each of up to 16
    processors and use none of them: a thousand idle threads for 64 streams. FFmpeg counts the processors that the
    calling thread may run on, and has no other setting that PyAV passes on.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    with suppress(OSError):  # a sandbox may forbid it; then there are more threads
        os.sched_setaffinity(0, {random.choice(tuple(allowed))})
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, allowed)


class _Mp3Encoder(_CodecEncoder):
    codec, sample_format, default_bitrate = "libmp3lame", "s16p", 64_000
    # Without the reservoir, a frame needs none but itself. Level 7 halves the cost of the default: at 64 kbit/s, mono
    # speech needs no noise shaping.
    options = (("reservoir", "0"), ("compression_level", "7"))


class _AdtsEncoder(_CodecEncoder):
    """AAC; seven bytes precede each packet (ISO/IEC 14496-3, 1.A.3.2)."""

    codec, sample_format, default_bitrate = "aac", "fltp", 64_000
    # The thorough coder takes twice as long; noise substitution is for bitrates that speech does not need.
    options = (("aac_coder", "fast"), ("aac_pns", "0"))

    def _pack(self, packets: list[bytes], last: bool = False) -> bytes:
        (config,) = struct.unpack_from(">H", bytes(self._context.extradata))
        object_type, rate_index, channels = config >> 11, config >> 7 & 0xF, config >> 3 & 0xF
        sync, no_checksum, fullness_unknown, num_bytes = 0xFFF, 1, 0x7FF, 7
        fixed = sync << 16 | no_checksum << 12 | (object_type - 1) << 10 | rate_index << 6 | channels << 2
        heads = (fixed << 28 | (len(packet) + num_bytes) << 13 | fullness_unknown << 2 for packet in packets)
        return b"".join(head.to_bytes(num_bytes, "big") + packet for head, packet in zip(heads, packets, strict=True))


class _FlacEncoder(_CodecEncoder):
    """FLAC frames behind a header (RFC 9639, 8); its length and MD5 sum are 0, which leaves them open."""

    codec, sample_format = "flac", "s16"

    def __init__(self, sample_rate: int, bitrate: int | None = None) -> None:
        self.options = (("frame_size", str(sample_rate // _FLAC_BLOCKS_PER_SECOND)),)
        super().__init__(sample_rate)
        self._header = self._whole_header = self._current_header()

    def whole_header(self) -> bytes:
        """The header, with what the codec knows after the last sample."""
        return self._whole_header

    def _current_header(self) -> bytes:
        stream_info = bytes(self._context.extradata)
        last_block, type_stream_info = 1, 0
        return b"fLaC" + struct.pack(">I", last_block << 31 | type_stream_info << 24 | len(stream_info)) + stream_info

    def _last_packets(self) -> list[bytes]:
        packets = super()._last_packets()
        self._whole_header = self._current_header()
        return packets


class _OggOpusEncoder(_CodecEncoder):
    """Opus packets in Ogg pages (RFC 3533, RFC 7845), each page as soon as there is a packet for it.

    FFmpeg's muxer holds the last page back until the next is full, which would add its length to the delay.
    """

    codec, sample_format, default_bitrate = "libopus", "s16", 48_000
    # Level 5 costs a quarter of the default 10, whose search for music and speech modes matters below 32 kbit/s.
    options = (("application", "audio"), ("compression_level", "5"), ("frame_duration", "20"))

    def __init__(self, sample_rate: int, bitrate: int | None = None) -> None:
        super().__init__(sample_rate, bitrate)
        head = bytes(self._context.extradata)
        (self._pre_skip,) = struct.unpack_from("<H", head, 10)
        self._packet_samples = self._context.frame_size * _OGG_RATE // self._context.sample_rate
        self._serial = secrets.randbits(32)  # so that two answers one after the other are a valid chain
        self._num_pages = self._position = 0
        self._header = self._page(_STARTS_FILE, [head]) + self._page(0, [_OPUS_TAGS])

    def _pack(self, packets: list[bytes], last: bool = False) -> bytes:
        """The position of the last page cuts off what exceeds the samples that were given.

        A stream without any packet stays empty: decoders refuse headers alone.
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
        # Lengths of a packet's segments: full ones, and one below 255 that ends it.
        segments = b"".join(b"\xff" * (len(packet) // 255) + bytes([len(packet) % 255]) for packet in packets)
        fields = (b"OggS", 0, flags, self._position, self._serial, self._num_pages, 0, len(segments))
        page = b"".join((struct.pack("<4sBBqIIIB", *fields), segments, *packets))
        self._num_pages += 1
        # Ogg's CRC: the polynomial of zlib's, with the bits in the other order, begun with 0 and not inverted.
        mirrored = zlib.crc32(page.translate(_MIRRORED), 0xFFFFFFFF) ^ 0xFFFFFFFF
        return page[:22] + struct.pack("<I", int(f"{mirrored:032b}"[::-1], 2)) + page[26:]


_ENCODERS: dict[AudioFormat, type[Encoder]] = {
    AudioFormat.MP3: _Mp3Encoder,
    AudioFormat.OPUS: _OggOpusEncoder,
    AudioFormat.AAC: _AdtsEncoder,
    AudioFormat.FLAC: _FlacEncoder,
    AudioFormat.WAV: _WavEncoder,
    AudioFormat.PCM: Encoder,
}
