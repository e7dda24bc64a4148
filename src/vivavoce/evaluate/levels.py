"""Silence and clipping, measured on the waveform."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_FRAME_S = 0.02
_LOUD = 0.95
"""Quantile of the frames' levels that stands for the utterance's loud level."""
_SILENT_DB = -45.0
_CLIPPING_FROM = 0.95
_FLAT = 1.5 / 32768
"""Neighbours that differ by no more than 16-bit rounding."""


@dataclass(frozen=True)
class Silence:
    """Share of silent 20 ms frames, and the seconds of the longest run of them."""

    ratio: float
    longest_s: float


def silence(samples: NDArray[np.float32], sample_rate: int) -> Silence:
    """Frames 45 dB or more below the loud level, which is the 95th percentile of the frames' root mean squares.

    samples: [n] in ±1. Audio that is nothing but zeros, or shorter than one frame, is silent as a whole.
    """
    size = round(_FRAME_S * sample_rate)
    frames = samples[: len(samples) // size * size].reshape(-1, size).astype(np.float64)
    if not frames.size:
        return Silence(1.0, len(samples) / sample_rate)
    levels = np.sqrt((frames**2).mean(axis=1))
    quiet = levels <= np.quantile(levels, _LOUD) * 10 ** (_SILENT_DB / 20)
    return Silence(float(quiet.mean()), _longest_run(quiet) * size / sample_rate)


def _longest_run(flags: NDArray[np.bool_]) -> int:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return int((edges[1::2] - edges[::2]).max(initial=0))


def clipping_share(samples: NDArray[np.float32]) -> float:
    """Share of samples in flat tops: three or more neighbours alike, at 0.95 of full scale or beyond.

    A ceiling just below full scale, as some vocoders have one, is found as well; a loud peak that is round is none.
    """
    if len(samples) < 3:
        return 0.0
    alike = np.abs(np.diff(samples)) <= _FLAT
    middle = alike[1:] & alike[:-1] & (np.abs(samples[1:-1]) >= _CLIPPING_FROM)
    flat = np.zeros(len(samples), dtype=bool)
    for shift in range(3):
        flat[shift : shift + len(middle)] |= middle
    return float(flat.mean())
