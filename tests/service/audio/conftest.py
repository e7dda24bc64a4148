"""Tones and small files for the audio tests."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

Tone = Callable[..., np.ndarray]
Encode = Callable[..., bytes]


@pytest.fixture
def audio_data() -> Path:
    return Path(__file__).parents[2] / "data" / "audio"


@pytest.fixture
def tone() -> Tone:
    def make(frequency_hz: float, sample_rate: int, seconds: float = 1.0) -> np.ndarray:
        time = np.arange(round(seconds * sample_rate)) / sample_rate
        return (0.5 * np.sin(2 * np.pi * frequency_hz * time)).astype(np.float32)

    return make


@pytest.fixture
def encode() -> Encode:
    """Samples [n] or [n, channels] → the bytes of a file that libsndfile writes."""

    def write(samples: np.ndarray, sample_rate: int, container: str = "WAV", subtype: str | None = None) -> bytes:
        buffer = io.BytesIO()
        soundfile.write(buffer, samples, sample_rate, format=container, subtype=subtype)
        return buffer.getvalue()

    return write


@pytest.fixture
def encode_av() -> Encode:
    """Mono samples [n] → the bytes of a file that FFmpeg writes."""

    def write(samples: np.ndarray, sample_rate: int, container: str, codec: str) -> bytes:
        import av

        buffer = io.BytesIO()
        with av.open(buffer, "w", format=container) as output:
            stream = output.add_stream(codec, rate=sample_rate, layout="mono")
            frame = av.AudioFrame.from_ndarray(samples[None], format="fltp", layout="mono")
            frame.sample_rate = sample_rate
            output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
        return buffer.getvalue()

    return write


@pytest.fixture
def loudest_hz() -> Callable[[np.ndarray, int], float]:
    """Frequency of the largest peak of the spectrum."""

    def find(samples: np.ndarray, sample_rate: int) -> float:
        spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
        return float(spectrum.argmax() * sample_rate / len(samples))

    return find
