"""Figures of the waveform: clicks at the joins of streams, silence, clipping and pitch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_NEAR_S = 0.002
_AROUND_S = 0.025
_HOP_S = 0.005
_STRONG = 0.9
"""Quantile of the bends on one side that stands for its strong ones: pulses of the voice, or hiss."""
_FLOOR = 1e-4
"""Added to second differences: as large as rounding to 16 bits, so that digital silence has no clicks."""
_QUANTILE = 0.999
_BLOCK = 1000
"""Places or frames in one pass; bounds the memory for long speech."""


class JoinClicks(NamedTuple):
    """Abruptness of a stream at its joins, beside whole speech of the same texts and seeds, under a report's keys."""

    joins: int
    joins_over: int
    """Joins more abrupt than 99.9 % of all places in whole speech; expect about 0.1 % of clean joins."""
    join_worst_ratio: float | None
    """The most abrupt join over that 99.9th percentile; None: no joins, or only silence to compare with."""
    join_median_ratio: float | None
    """The median join over the median place in whole speech; 1 where joins are like any other place."""


def abruptness(samples: NDArray[np.float32], sample_rate: int, places: Sequence[int]) -> NDArray[np.float64]:
    """Sharpest bend within 2 ms of each place, relative to the 25 ms before and after: [places].

    A bend is the second difference |x₊ − 2x + x₋|: a step or a spike shows in it, speech's own slow waves hardly. The
    sharpest is divided by the strong bends (90th percentile, plus 1e-4) of the side that has the stronger ones, so that
    neither a hissing sound nor the start of a sound after silence counts as a click.
    """
    near, around = round(_NEAR_S * sample_rate), round(_AROUND_S * sample_rate)
    bends = np.abs(np.diff(samples.astype(np.float64), n=2))
    # After padding, the bend at sample p stands at p + around.
    padded = np.pad(bends, (around + 1, around + 1), mode="edge" if len(bends) else "constant")
    rows = np.lib.stride_tricks.sliding_window_view(padded, 2 * around + 1)
    found = np.zeros(len(places))
    for first in range(0, len(places), _BLOCK):
        some = rows[np.asarray(places[first : first + _BLOCK])]
        sharpest = some[:, around - near : around + near + 1].max(axis=1)
        before = np.quantile(some[:, : around - near], _STRONG, axis=1)
        after = np.quantile(some[:, around + near + 1 :], _STRONG, axis=1)
        found[first : first + _BLOCK] = sharpest / (np.maximum(before, after) + _FLOOR)
    return found


def abruptness_everywhere(samples: NDArray[np.float32], sample_rate: int) -> NDArray[np.float64]:
    """The same at a place every 5 ms: the usual values of this audio."""
    return abruptness(samples, sample_rate, range(0, len(samples), round(_HOP_S * sample_rate)))


def join_clicks(at_joins: NDArray[np.float64], usual: NDArray[np.float64]) -> JoinClicks:
    """Compare the abruptness at joins [joins] with that of all places in whole speech [places]."""
    if not len(at_joins) or not len(usual):
        return JoinClicks(len(at_joins), 0, None, None)
    limit, middle = float(np.quantile(usual, _QUANTILE)), float(np.median(usual))
    return JoinClicks(
        len(at_joins),
        int((at_joins > limit).sum()),
        float(at_joins.max()) / limit if limit else None,
        float(np.median(at_joins)) / middle if middle else None,
    )


_FRAME_S = 0.02
_LOUD = 0.95
"""Quantile of the frames' levels that stands for the utterance's loud level."""
_SILENT_DB = -45.0
_CLIPPING_FROM = 0.95
_FLAT = 1.5 / 32768
"""Neighbours within 16-bit rounding are equal."""


def silence(samples: NDArray[np.float32], sample_rate: int) -> tuple[float, float]:
    """(share of silent 20 ms frames, seconds of the longest run of them).

    Silent frames are 45 dB or more below the loud level: the 95th percentile of the frames' root mean squares. samples:
    [n] in ±1. Audio of zeros, or shorter than one frame, is silent as a whole.
    """
    size = round(_FRAME_S * sample_rate)
    frames = samples[: len(samples) // size * size].reshape(-1, size).astype(np.float64)
    if not frames.size:
        return 1.0, len(samples) / sample_rate
    levels = np.sqrt((frames**2).mean(axis=1))
    quiet = levels <= np.quantile(levels, _LOUD) * 10 ** (_SILENT_DB / 20)
    longest = max((end - start for start, end in _runs(quiet)), default=0)
    return float(quiet.mean()), longest * size / sample_rate


def _runs(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8))).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def clipping_share(samples: NDArray[np.float32]) -> float:
    """Share of samples in flat tops: three or more equal neighbours at 0.95 of full scale or beyond.

    A ceiling just below full scale, as some vocoders have one, is found as well; a round peak does not count.
    """
    if len(samples) < 3:
        return 0.0
    alike = np.abs(np.diff(samples)) <= _FLAT
    middle = alike[1:] & alike[:-1] & (np.abs(samples[1:-1]) >= _CLIPPING_FROM)
    flat = np.zeros(len(samples), dtype=bool)
    for shift in range(3):
        flat[shift : shift + len(middle)] |= middle
    return float(flat.mean())


_MIN_HZ, _MAX_HZ = 60.0, 500.0
_PITCH_WINDOW_S, _PITCH_HOP_S = 0.05, 0.01
_VOICED_FROM = 0.5
"""Autocorrelation, 1 for a periodic sound, from which a frame counts as voiced."""
_OCTAVE_COST = 0.02
"""Per octave downwards: of two lags that fit equally well the shorter is the period."""
_SILENT = 0.03
"""Share of the loudest frame's level below which a frame is unvoiced."""
_SHORTEST_RUN = 3
"""Frames; noise looks periodic for one or two."""
_FEWEST_FRAMES = 10


def pitch(samples: NDArray[np.float32], sample_rate: int) -> dict[str, float | None]:
    """Percentiles of the fundamental frequency of samples [n], and the share of voiced frames, by report keys.

    The percentiles are None where fewer than ten frames of 10 ms are voiced.
    """
    track = track_f0(samples, sample_rate)
    voiced = track[track > 0]
    enough = len(voiced) >= _FEWEST_FRAMES
    percentiles = np.quantile(voiced, [0.05, 0.5, 0.95]).tolist() if enough else [None] * 3
    share = len(voiced) / len(track) if len(track) else 0.0
    return dict(zip(("f0_p05_hz", "f0_p50_hz", "f0_p95_hz"), percentiles, strict=True)) | {"voiced_share": share}


def track_f0(samples: NDArray[np.float32], sample_rate: int) -> NDArray[np.float64]:
    """Hz per 10 ms between 60 and 500, 0 where unvoiced: [frames].

    Each 50 ms frame's autocorrelation is divided by that of its window, which removes the window's own decay
    (Boersma 1993, "Accurate short-term analysis of the fundamental frequency"); its highest peak gives the period.
    """
    size, hop = round(_PITCH_WINDOW_S * sample_rate), round(_PITCH_HOP_S * sample_rate)
    if len(samples) < size:
        return np.zeros(0)
    frames = np.lib.stride_tricks.sliding_window_view(samples, size)[::hop]
    blocks = [_measure(frames[first : first + _BLOCK], sample_rate) for first in range(0, len(frames), _BLOCK)]
    lags, strengths, levels = np.concatenate(blocks, axis=1)
    voiced = (strengths >= _VOICED_FROM) & (levels > _SILENT * levels.max())
    for start, end in _runs(voiced):
        voiced[start:end] = end - start >= _SHORTEST_RUN
    return np.where(voiced, sample_rate / lags, 0.0)


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
