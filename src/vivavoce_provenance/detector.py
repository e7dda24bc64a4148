"""Finds the mark of `watermark.py` in a recording, also after compression, a telephone or a change of speed.

The level of each band is compared with its neighbours in time and frequency. The pattern is looked for at every moment
of its period and at speeds from 0.94 to 1.06, with the pitch changed by the speed's factor or unchanged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import soxr
from numpy.typing import NDArray

from vivavoce.engine.watermark import (
    HIGHEST_HZ,
    KEY,
    MIN_SAMPLE_RATE,
    NUM_BANDS,
    NUM_TILES,
    TILE_S,
    Floats,
    band_edges,
    pattern,
)
from vivavoce.errors import InvalidAudio

SHORTEST_S = 3.0
"""Minimum number of seconds of sound in a recording; in shorter recordings, the mark is not looked for."""
THRESHOLD = 6.0
"""Fewer than one in 10,000 unmarked recordings of 5 s should reach this score (benchmarks/results/watermark)."""
WINDOW_S, WINDOW_STEP_S = 6.0, 3.0
"""Length of a window, and distance of the windows' starts, in seconds. Over longer windows, an assumed speed that is
slightly wrong would shift the pattern too far."""
SPEEDS = tuple(1 + percent / 100 for percent in range(-6, 7))

_RATE = MIN_SAMPLE_RATE
"""Sample rate in hertz; the mark lies below half of it."""
_STEP_S, _FRAME_S = 0.01, 0.025
_LAG = round(TILE_S / _STEP_S)
_PERIOD = _LAG * NUM_TILES
_SILENCE_DB = -60.0
_CLIP = 1.5
"""Larger contrasts, such as at the start of a word, are clipped to this multiple of the mean size in their band."""
_QUIET_PERCENTILE, _LOUD_DB = 20, 10.0
"""Levels up to this percentile of their band may be noise and have weight 0; levels 10 dB above it have weight 1."""
_TO_DEVIATION = 1.4826
"""The standard deviation of a normal distribution divided by the median of its absolute values."""


@dataclass(frozen=True)
class Detection:
    """Whether a recording carries the mark.

    score: the best match of the pattern, in standard deviations of the matches, see `match`. threshold: `found` is true
    if the score is at least this. seconds: the length of the recording without its silence."""

    found: bool
    score: float
    threshold: float
    seconds: float

    @property
    def verdict(self) -> str:
        """One of "found", "not found" and "too short to tell"."""
        if self.found:
            return "found"
        return "not found" if self.seconds >= SHORTEST_S else "too short to tell"


def detect(samples: NDArray[np.floating], sample_rate: int) -> Detection:
    """Look for the mark in mono `samples` [n] at `sample_rate` (hertz).

    With less than 3 s of sound, the mark is not looked for, the score is 0, and `verdict` is "too short to tell". In a
    long recording, the search ends with the first window that has the mark.

    Raises:
        InvalidAudio: samples are not [n] or not finite, or the rate is below 8000 Hz.
    """
    wave = np.asarray(samples, np.float32)
    if wave.ndim != 1 or not np.isfinite(wave).all():
        raise InvalidAudio(f"samples: {wave.shape} is not [n] of finite numbers; give one channel of a whole recording")
    if sample_rate < MIN_SAMPLE_RATE:
        raise InvalidAudio(f"sample_rate: {sample_rate} Hz is below {MIN_SAMPLE_RATE}; give a recording of more")
    seconds = _seconds_of_sound(wave, sample_rate)
    if seconds < SHORTEST_S:
        return Detection(False, 0.0, THRESHOLD, seconds)
    steps = max(0, math.ceil((len(wave) / sample_rate - WINDOW_S) / WINDOW_STEP_S))
    # The chance that noise exceeds a score z falls as exp(−z²/2), so more windows need a higher threshold.
    threshold = math.sqrt(THRESHOLD**2 + 2 * math.log(steps + 1))
    best = 0.0
    for start in range(steps + 1):
        begin = round(start * WINDOW_STEP_S * sample_rate)
        part = wave[begin : begin + round(WINDOW_S * sample_rate)]
        best = max(best, match(contrasts(part, sample_rate)))
        if best >= threshold:
            break
    return Detection(best >= threshold, best, threshold, seconds)


def _seconds_of_sound(wave: NDArray[np.float32], sample_rate: int) -> float:
    hop = int(_STEP_S * sample_rate)
    powers = np.square(wave[: len(wave) // hop * hop].reshape(-1, hop), dtype=np.float64).mean(axis=1)
    least = powers.max(initial=0) * 10 ** (_SILENCE_DB / 10)
    return float(np.count_nonzero(powers > max(least, 1e-12)) * hop / sample_rate)


def match(found: Floats, key: bytes = KEY) -> float:
    """Return the best match of the key's pattern with `contrasts`, divided by a standard deviation of the matches.

    Each hypothesis (speed and pitch) is divided by the deviation of all matches or, if that is larger, of its own
    matches: a hum may beat with the steps of a hypothesis, so that its matches are large."""
    spectrum = (np.fft.rfft(found, axis=1) * _template(key)).sum(axis=2)
    matches = np.fft.irfft(spectrum, _PERIOD, axis=1)
    sizes = np.abs(matches)
    deviation = _TO_DEVIATION * np.maximum(np.median(sizes), np.median(sizes, axis=1))
    return float((matches.max(axis=1) / np.maximum(deviation, 1e-12)).max())


def contrasts(wave: NDArray[np.float32], sample_rate: int) -> Floats:
    """Return the contrast of each tile with its neighbours, [hypotheses, steps of a period, bands], the sum over all
    periods. A hypothesis is an assumed speed and pitch.

    Steps are in the time of the speech before its speed was changed: an assumed speed sets the distance of frames."""
    if sample_rate != _RATE:
        wave = soxr.resample(wave, sample_rate, _RATE)
    width = round(_FRAME_S * _RATE)
    size = 1 << (width - 1).bit_length()
    highest = int(1.1 * HIGHEST_HZ * size / _RATE) + 1
    window = np.hanning(width + 2)[1:-1].astype(np.float32)
    every = np.lib.stride_tricks.sliding_window_view(wave, width)
    rows = []
    for speed in SPEEDS:
        starts = np.arange(0, len(every), _STEP_S * _RATE / speed).astype(np.int64)
        spectra = np.fft.rfft(every[starts] * window, size)[:, :highest]
        sums = np.cumsum(np.square(spectra.real) + np.square(spectra.imag), axis=1, dtype=np.float64)
        for pitch in sorted({1.0, speed}):
            contrast = _weighed(_levels(sums, band_edges() * (pitch * size / _RATE)))
            contrast = np.pad(contrast, ((0, -len(contrast) % _PERIOD), (0, 0)))
            rows.append(contrast.reshape(-1, _PERIOD, NUM_BANDS).sum(axis=0))
    return np.array(rows)


def _levels(sums: Floats, edges: Floats) -> Floats:
    """Return levels [time, bands] in decibels. sums: cumulative energies [time, frequencies]; edges: of the bands, in
    frequency indices."""
    below = (edges - 0.5).astype(np.int64)  # a cumulative sum includes half an index beyond its last frequency
    share = edges - 0.5 - below
    energies = np.diff(sums[:, below] * (1 - share) + sums[:, below + 1] * share, axis=1)
    return 10 * np.log10(energies + energies.max() * 10 ** (_SILENCE_DB / 10) + 1e-20)


def _weighed(levels: Floats) -> Floats:
    found = _contrast(levels)
    found = np.clip(found / (np.abs(found).mean(axis=0) + 0.1), -_CLIP, _CLIP)
    quiet = np.percentile(levels, _QUIET_PERCENTILE, axis=0)
    return found * np.clip((levels - quiet) / _LOUD_DB, 0, 1)


def _contrast(levels: Floats) -> Floats:
    """Subtract from levels [time, bands] their mean one tile before and after, then the mean over three bands."""
    padded = np.pad(levels, ((_LAG, _LAG), (0, 0)), "edge")
    in_time = levels - (padded[: -2 * _LAG] + padded[2 * _LAG :]) / 2
    padded = np.pad(in_time, ((0, 0), (1, 1)), "reflect")
    return in_time - (padded[:, :-2] + in_time + padded[:, 2:]) / 3


@lru_cache(maxsize=256)
def _template(key: bytes) -> NDArray[np.complex128]:
    """Return the conjugate spectrum [frequencies, bands] of the contrasts that a period of the pattern makes."""
    signs = np.tile(np.repeat(pattern(key), _LAG, axis=0), (3, 1))
    wanted: NDArray[np.complex128] = np.conj(np.fft.rfft(_contrast(signs)[_PERIOD : 2 * _PERIOD], axis=0))
    wanted.flags.writeable = False
    return wanted
