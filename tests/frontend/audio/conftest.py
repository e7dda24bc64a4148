"""Tones and small files for the audio tests."""

from __future__ import annotations

import io
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile


@pytest.fixture
def audio_data():
    return Path(__file__).parents[2] / "data" / "audio"


@pytest.fixture
def tone():
    def make(frequency_hz, sample_rate, seconds=1.0):
        time = np.arange(round(seconds * sample_rate)) / sample_rate
        return (0.5 * np.sin(2 * np.pi * frequency_hz * time)).astype(np.float32)

    return make


@pytest.fixture
def encode():
    """Samples [n] or [n, channels] → the bytes of a file that libsndfile writes."""

    def write(samples, sample_rate, container="WAV", subtype=None):
        buffer = io.BytesIO()
        soundfile.write(buffer, samples, sample_rate, format=container, subtype=subtype)
        return buffer.getvalue()

    return write


@pytest.fixture
def encode_av():
    """Mono samples [n] → the bytes of a file that FFmpeg writes."""

    def write(samples, sample_rate, container, codec):
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
def loudest_hz():
    """Frequency of the largest peak of the spectrum."""

    def find(samples, sample_rate):
        spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
        return float(spectrum.argmax() * sample_rate / len(samples))

    return find
