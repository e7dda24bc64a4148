"""Writes 16-bit mono WAV: whole, to a path or an open file, or as a header before a stream of samples."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from vivavoce.service.audio.files import write_whole
from vivavoce.service.audio.pcm import to_int16

_BYTES_PER_SAMPLE = 2
_LARGEST_SIZE = 0xFFFFFFFF
_HEADER_BYTES = 44


def wav_header(sample_rate: int, num_samples: int | None) -> bytes:
    """44 bytes that precede `num_samples` little-endian int16 mono samples.

    None means that the length is not known yet: both sizes become 0xFFFFFFFF, which players take as "until
    the end". So do sizes that the format cannot hold (over 4 GiB).
    """
    num_bytes = _LARGEST_SIZE if num_samples is None else num_samples * _BYTES_PER_SAMPLE
    riff_size = min(num_bytes + _HEADER_BYTES - 8, _LARGEST_SIZE)
    pcm, channels, bits = 1, 1, 8 * _BYTES_PER_SAMPLE
    byte_rate = sample_rate * _BYTES_PER_SAMPLE
    layout = struct.pack("<HHIIHH", pcm, channels, sample_rate, byte_rate, _BYTES_PER_SAMPLE, bits)
    return b"".join(
        (
            *(b"RIFF", _uint32(riff_size), b"WAVE"),
            *(b"fmt ", _uint32(len(layout)), layout),
            *(b"data", _uint32(min(num_bytes, _LARGEST_SIZE))),
        )
    )


def _uint32(value: int) -> bytes:
    return struct.pack("<I", value)


def write_wav(target: str | Path | BinaryIO, samples: NDArray[np.floating], sample_rate: int) -> None:
    """Write `samples` [n] (float, ±1 full scale) as 16-bit WAV.

    A path gets the whole file or none: it is written beside it and renamed. Devices and pipes are written
    directly.

    Raises:
        InvalidRequest: the folder of the path is missing, the path is a folder, or it cannot be written.
        ValueError: samples are not [n], or NaN.
    """
    if samples.ndim != 1:
        raise ValueError(f"samples have shape {samples.shape}, not [n]")
    content = wav_header(sample_rate, len(samples)) + to_int16(samples).astype("<i2").tobytes()
    if not isinstance(target, (str, Path)):
        target.write(content)
        return
    write_whole(target, content)
