"""The range of the fundamental frequency, by autocorrelation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MIN_HZ, _MAX_HZ = 60.0, 500.0
_WINDOW_S, _HOP_S = 0.05, 0.01
_VOICED_FROM = 0.5
"""Autocorrelation, 1 for a periodic sound, from which a frame counts as voiced."""
_OCTAVE_COST = 0.02
"""Per octave downwards: of two lags that fit equally well the shorter is the period."""
_SILENT = 0.03
"""Share of the loudest frame's level below which no voice is sought."""
_SHORTEST_RUN = 3
"""Frames; noise looks periodic for one or two."""
_FEWEST_FRAMES = 10
_BLOCK = 1000
"""Frames that are transformed together; bounds the memory for long speech."""


@dataclass(frozen=True)
class Pitch:
    """5th, 50th and 95th percentile of the fundamental frequency, and the share of frames that have one.

    The percentiles are None where fewer than ten frames of 10 ms are voiced.
    """

    low_hz: float | None
    median_hz: float | None
    high_hz: float | None
    voiced_share: float


def pitch(samples: NDArray[np.float32], sample_rate: int) -> Pitch:
    """Track the fundamental frequency of samples [n] between 60 and 500 Hz."""
    track = track_f0(samples, sample_rate)
    voiced = track[track > 0]
    share = len(voiced) / len(track) if len(track) else 0.0
    if len(voiced) < _FEWEST_FRAMES:
        return Pitch(None, None, None, share)
    low, median, high = np.quantile(voiced, [0.05, 0.5, 0.95])
    return Pitch(float(low), float(median), float(high), share)


def track_f0(samples: NDArray[np.float32], sample_rate: int) -> NDArray[np.float64]:
    """Hz per 10 ms, 0 where unvoiced: [frames].

    Each 50 ms frame's autocorrelation is divided by that of its window, which removes the window's own decay
    (Boersma 1993, "Accurate short-term analysis of the fundamental frequency"); its highest peak gives the period.
    """
    size, hop = round(_WINDOW_S * sample_rate), round(_HOP_S * sample_rate)
    if len(samples) < size:
        return np.zeros(0)
    frames = np.lib.stride_tricks.sliding_window_view(samples, size)[::hop]
    blocks = [_measure(frames[first : first + _BLOCK], sample_rate) for first in range(0, len(frames), _BLOCK)]
    lags, strengths, levels = np.concatenate(blocks, axis=1)
    voiced = (strengths >= _VOICED_FROM) & (levels > _SILENT * levels.max())
    return np.where(_without_short_runs(voiced), sample_rate / lags, 0.0)


def _measure(frames: NDArray[np.float32], sample_rate: int) -> NDArray[np.float64]:
    """Lag of the period in samples, autocorrelation there, and root mean square of each frame: [3, frames]."""
    centred = frames.astype(np.float64)
    centred -= centred.mean(axis=1, keepdims=True)
    window = np.hanning(frames.shape[1])
    likeness = _autocorrelation(centred * window) / _autocorrelation(window[None])
    levels = np.sqrt((centred**2).mean(axis=1))
    return np.stack([*_best_lags(likeness, sample_rate), levels])


def _autocorrelation(frames: NDArray[np.float64]) -> NDArray[np.float64]:
    """[frames, lags], 1 at lag 0; 0 throughout for a frame of zeros."""
    size = frames.shape[1]
    spectrum = np.fft.rfft(frames, 2 * size)
    products = np.fft.irfft(np.abs(spectrum) ** 2)[:, :size]
    return products / np.maximum(products[:, :1], np.finfo(np.float64).tiny)


def _best_lags(likeness: NDArray[np.float64], sample_rate: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The lag of each frame's highest peak, in fractions of a sample, and its height."""
    shortest, longest = int(sample_rate / _MAX_HZ), int(np.ceil(sample_rate / _MIN_HZ))
    inner = likeness[:, shortest : longest + 1]
    before, after = likeness[:, shortest - 1 : longest], likeness[:, shortest + 1 : longest + 2]
    cost = _OCTAVE_COST * np.log2(np.arange(shortest, longest + 1) / shortest)
    ranked = np.where((inner >= before) & (inner >= after), inner - cost, -np.inf)
    places = ranked.argmax(axis=1)
    rows = np.arange(len(likeness))
    left, peak, right = before[rows, places], inner[rows, places], after[rows, places]
    bend = left - 2 * peak + right
    offset = np.where(bend < 0, 0.5 * (left - right) / np.where(bend < 0, bend, -1.0), 0.0)
    heights = np.where(np.isfinite(ranked[rows, places]), peak, 0.0)
    return shortest + places + offset, heights


def _without_short_runs(voiced: NDArray[np.bool_]) -> NDArray[np.bool_]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], voiced, [False])).astype(np.int8)))
    kept = np.zeros_like(voiced)
    for start, end in zip(edges[::2], edges[1::2], strict=True):
        kept[start:end] = end - start >= _SHORTEST_RUN
    return kept
