"""Decodes what the encoders give, with FFmpeg, as far as the bytes reach."""

from __future__ import annotations

import io

import av
import numpy as np
import soxr

from vivavoce.service.audio.encode import open_encoder
from vivavoce.service.audio.formats import AudioFormat

DEMUXERS = {"mp3": "mp3", "opus": "ogg", "aac": "aac", "flac": "flac", "wav": "wav"}

LEAST_BYTES = {AudioFormat.MP3: 300}
"""FFmpeg wants to see two MP3 frames before it believes in one."""


def decode(format: AudioFormat, data: bytes, sample_rate: int) -> np.ndarray:
    """All samples that `data` holds, [n] float32, at `sample_rate`; `data` may end anywhere."""
    if format is AudioFormat.PCM:
        return np.frombuffer(data, "<i2").astype(np.float32) / 32768
    if len(data) < LEAST_BYTES.get(format, 1):
        return np.zeros(0, np.float32)
    blocks = []
    with av.open(io.BytesIO(data), format=DEMUXERS[format.value]) as container:
        stream = container.streams.audio[0]
        to_float = av.AudioResampler(format="fltp", rate=stream.rate)
        for frame in container.decode(stream):
            blocks += [planar.to_ndarray() for planar in to_float.resample(frame)]
    rate = 48_000 if format is AudioFormat.OPUS else sample_rate
    assert stream.rate == rate
    (samples,) = np.concatenate(blocks, axis=1) if blocks else np.zeros((1, 0), np.float32)
    return samples


def decoded_rate(format: AudioFormat, sample_rate: int) -> int:
    """Opus is always decoded at 48 kHz."""
    return 48_000 if format is AudioFormat.OPUS else sample_rate


def as_decoded(format: AudioFormat, samples: np.ndarray, sample_rate: int) -> np.ndarray:
    """`samples` at the rate that the format is decoded at."""
    return np.asarray(soxr.resample(samples, sample_rate, decoded_rate(format, sample_rate), quality="VHQ"))


def encode_cut(format: AudioFormat, samples: np.ndarray, sample_rate: int, cuts: list[int]) -> bytes:
    """The file of `samples`, given in pieces that end at `cuts`."""
    encoder = open_encoder(format, sample_rate)
    pieces = np.split(samples, cuts)
    return b"".join(encoder.encode(piece) for piece in pieces) + encoder.finish()
