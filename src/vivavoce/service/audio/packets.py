"""One of FFmpeg's audio codecs as a stream: int16 samples in, whole packets out."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import MissingDependency


@dataclass(frozen=True)
class Codec:
    """FFmpeg's name of an encoder, the samples it takes, bits per second (None: has no bitrate) and its options."""

    name: str
    sample_format: str
    bitrate: int | None
    options: Mapping[str, str]


class PacketStream:
    """Encodes mono samples; what does not fill a packet waits inside for the next.

    Samples of a rate that the codec does not know are resampled on the way (libswresample, one filter for the
    whole stream).

    Raises:
        MissingDependency: this build of PyAV lacks the codec.
    """

    def __init__(self, codec: Codec, sample_rate: int, bitrate: int | None) -> None:
        self._context: Any = _context(codec)
        self._input_rate = sample_rate
        self._begun = False
        self._context.sample_rate = _nearest(sample_rate, self._context.codec.audio_rates)
        self._context.layout = "mono"
        self._context.format = codec.sample_format
        if codec.bitrate is not None:
            self._context.bit_rate = bitrate or codec.bitrate
        self._context.options = dict(codec.options)
        self._context.open()

    @property
    def sample_rate(self) -> int:
        """Hertz at which the codec works."""
        return int(self._context.sample_rate)

    @property
    def packet_samples(self) -> int:
        """Samples in a packet, at `sample_rate`."""
        return int(self._context.frame_size)

    @property
    def description(self) -> bytes:
        """What a decoder must know beside the packets (FFmpeg's extradata)."""
        return bytes(self._context.extradata or b"")

    def encode(self, samples: NDArray[np.int16]) -> list[bytes]:
        """The packets that samples [n] complete."""
        if self._begun or not len(samples):
            return self._encode(samples)
        self._begun = True
        with _one_processor():
            begin = self._encode(samples[:1])
        return begin + self._encode(samples[1:])

    def finish(self) -> list[bytes]:
        """The packets that are left, the last one filled up with silence where the codec wants it."""
        return _contents(self._context.encode(None)) if self._begun else []

    def _encode(self, samples: NDArray[np.int16]) -> list[bytes]:
        import av

        if not len(samples):
            return []
        frame: Any = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = self._input_rate
        return _contents(self._context.encode(frame))


def _context(codec: Codec) -> Any:
    import av

    try:
        return av.CodecContext.create(codec.name, "w")
    except ValueError:  # PyAV's UnknownCodecError
        raise MissingDependency(
            f"PyAV's FFmpeg has no encoder {codec.name}; `pip install --force-reinstall --only-binary av av` has it"
        ) from None


def _nearest(sample_rate: int, offered: list[int] | None) -> int:
    """The lowest rate that keeps everything, or the highest there is."""
    if offered is None:
        return sample_rate
    return min((rate for rate in offered if rate >= sample_rate), default=max(offered))


def _contents(packets: list[Any]) -> list[bytes]:
    return [bytes(packet) for packet in packets if packet.size]  # the flac encoder ends with an empty one


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
