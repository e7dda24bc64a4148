"""An inaudible mark in speech, which shows that the speech is synthetic and that vivavoce made it.

The mark spreads over time and frequency. Each tile, `TILE_S` seconds of one band, is made louder or softer by
`DEPTH_DB`, in a fixed pattern that repeats after `NUM_TILES` tiles. `detector.py` finds the pattern again.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from vivavoce.engine.request import AudioChunk
from vivavoce.errors import InvalidRequest

Samples = NDArray[np.float32]
Floats = NDArray[np.float64]

KEY = b"made by vivavoce"
DEPTH_DB = 1.2
TILE_S = 0.04
NUM_TILES = 96
NUM_BANDS = 16
"""With more, narrower bands, some bands would lie between the harmonics of a high voice and have no energy."""
LOWEST_HZ, HIGHEST_HZ = 300.0, 3400.0
"""Limits of the bands: the range that a telephone transmits."""
MIN_SAMPLE_RATE = 8_000
_HOP_S = 0.01


def band_edges() -> Floats:
    """Return the edges of the bands, [NUM_BANDS + 1] in hertz; all bands have one width."""
    return np.linspace(LOWEST_HZ, HIGHEST_HZ, NUM_BANDS + 1)


def pattern(key: bytes = KEY) -> Floats:
    """Return the signs of the tiles, ±1, [NUM_TILES, NUM_BANDS].

    Each bit of the key's hash gives the signs of two by two tiles: neighbours in time and in frequency are opposite. So
    each band and each moment keeps its loudness, and the detector compares neighbours, which are alike in speech.
    """
    rows, columns = NUM_TILES // 2, NUM_BANDS // 2
    digest = hashlib.shake_128(key).digest(rows * columns // 8)
    bits = np.unpackbits(np.frombuffer(digest, np.uint8)).reshape(rows, columns)
    return np.kron(2.0 * bits - 1, np.array([[1.0, -1.0], [-1.0, 1.0]]))


@lru_cache(maxsize=8)
def _changes(sample_rate: int, size: int) -> Samples:
    """Return gain − 1 for each tile and each frequency of a frame of `size` samples, [NUM_TILES, size // 2 + 1]."""
    band = np.searchsorted(band_edges(), np.fft.rfftfreq(size, 1 / sample_rate), side="right") - 1
    inside = (band >= 0) & (band < NUM_BANDS)
    levels = np.where(inside, pattern()[:, band.clip(0, NUM_BANDS - 1)], 0) * DEPTH_DB
    changes: Samples = (10 ** (levels / 20) - 1).astype(np.float32)
    changes.flags.writeable = False
    return changes


class WatermarkStream:
    """Marks one stream of mono speech, piece by piece; each stream needs a new object.

    sample_rate: hertz, at least 8000. The marked speech is as long as its input, and the same however the input is cut.
    The delay is below 20 ms: a sample is returned at the latest when 20 ms minus one sample of later speech were added.
    Silence stays silence, and frequencies below 200 and above 3500 Hz hardly change.

    Raises:
        InvalidRequest: the rate is below 8000 Hz.
    """

    def __init__(self, sample_rate: int) -> None:
        if sample_rate < MIN_SAMPLE_RATE:
            raise InvalidRequest(f"sample_rate: {sample_rate} Hz is below {MIN_SAMPLE_RATE}; choose a higher rate")
        self._rate, self._hop = sample_rate, int(_HOP_S * sample_rate)
        angles = np.pi * (np.arange(2 * self._hop) + 0.5) / (2 * self._hop)
        self._window = np.sin(angles).astype(np.float32)
        self._waiting = np.zeros(self._hop, np.float32)
        self._second_half = np.zeros(self._hop, np.float32)
        self._num_frames = 0

    def mark(self, samples: Samples) -> Samples:
        """Add speech [n], and return the marked samples [m], float32, that are complete by now; m may be 0."""
        self._waiting = np.concatenate((self._waiting, np.asarray(samples, np.float32)))
        hop, first = self._hop, self._num_frames
        count = len(self._waiting) // hop - 1
        if count < 1:
            return np.zeros(0, np.float32)
        frames = np.lib.stride_tricks.sliding_window_view(self._waiting, 2 * hop)[: count * hop : hop]
        tiles = ((first + np.arange(count)) * (hop / self._rate / TILE_S)).astype(np.int64) % NUM_TILES
        spectra = np.fft.rfft(frames * self._window) * _changes(self._rate, 2 * hop)[tiles]
        added = (np.fft.irfft(spectra, 2 * hop) * self._window).astype(np.float32).reshape(count, 2, hop)
        marked = self._waiting[: count * hop].reshape(count, hop) + added[:, 0]
        marked[0] += self._second_half
        marked[1:] += added[:-1, 1]
        self._second_half = added[-1, 1].copy()
        self._waiting = self._waiting[count * hop :].copy()
        self._num_frames += count
        return marked.reshape(-1)[hop if first == 0 else 0 :]  # the first hop lies before the speech

    def finish(self) -> Samples:
        """Return the rest of the marked samples; no samples can be added after this."""
        left = len(self._waiting) - (self._hop if self._num_frames == 0 else 0)
        return self.mark(np.zeros(2 * self._hop, np.float32))[:left]


def marked_chunk(stream: WatermarkStream, chunk: AudioChunk) -> AudioChunk:
    """Return the chunk with the marked samples that are complete by now; the final chunk gets all remaining samples."""
    samples = stream.mark(chunk.samples)
    return replace(chunk, samples=np.concatenate((samples, stream.finish())) if chunk.final else samples)
