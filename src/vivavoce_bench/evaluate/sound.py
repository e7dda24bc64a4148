"""Measure clicks at the joins of chunks, silence, clipping and pitch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_NEAR_S = 0.002
_AROUND_S = 0.025
_HOP_S = 0.005
_STRONG = 0.9
"""A click exceeds this quantile of the bends before and after its place; voice pulses and hiss do not exceed it."""
_FLOOR = 1e-4
"""Added to second differences, so that digital silence has no clicks; about the rounding error of 16 bits."""
_QUANTILE = 0.999
_BLOCK = 1000


class JoinClicks(NamedTuple):
    """How abrupt the joins of streams are, compared with audio generated at once from the same texts and seeds."""

    joins: int
    joins_over: int
    """Number of joins more abrupt than 99.9 % of the places in audio generated at once; 0.1 % of clean joins are."""
    join_worst_ratio: float | None
    """Abruptness of the worst join, divided by the 99.9th percentile in audio generated at once. It is
    None if there are no joins, or if that audio is silent."""
    join_median_ratio: float | None
    """Median abruptness of the joins, divided by the median in audio generated at once; 1 for clean joins."""


def abruptness(samples: NDArray[np.float32], sample_rate: int, places: Sequence[int]) -> NDArray[np.float64]:
    """Return the sharpest bend within 2 ms of each place, relative to the bends 25 ms before and after: [places].

    A bend is the second difference |x₊ − 2x + x₋|, which is large for steps and spikes and small for speech. The
    sharpest bend is divided by the 90th percentile (plus 1e-4) of the bends before or after, whichever is larger, so
    that neither hiss nor the start of a sound after silence counts as a click.
    """
    near, around = round(_NEAR_S * sample_rate), round(_AROUND_S * sample_rate)
    bends = np.abs(np.diff(samples.astype(np.float64), n=2))
    # After padding, the bend at sample p has the index p + around.
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
    """Return the `abruptness` of audio every 5 ms, with which the abruptness of joins is compared."""
    return abruptness(samples, sample_rate, range(0, len(samples), round(_HOP_S * sample_rate)))


def join_clicks(at_joins: NDArray[np.float64], usual: NDArray[np.float64]) -> JoinClicks:
    """Compare the abruptness at joins [joins] with the abruptness of audio made at once [places]."""
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
"""Quantile of an utterance's frame levels that counts as its loud level."""
_SILENT_DB = -45.0
_CLIPPING_FROM = 0.95
_FLAT = 1.5 / 32768
"""Largest difference of neighbouring samples that count as equal, because of the rounding to 16 bits."""


def silence(samples: NDArray[np.float32], sample_rate: int) -> tuple[float, float]:
    """Return (share of silent 20 ms frames, seconds of the longest run of silent frames).

    A frame is silent if it is 45 dB or more below the 95th percentile of the frames' root mean squares. Audio of zeros,
    and audio shorter than one frame, is silent. samples: [n] in ±1.
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
    """Return the share of samples in flat tops: three or more equal neighbours at 0.95 of full scale or beyond.

    Some vocoders limit samples just below full scale; these limits count, too. Round peaks do not count.
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
"""Smallest autocorrelation of a voiced frame; a periodic sound has 1."""
_OCTAVE_COST = 0.02
"""Penalty per octave towards longer lags, so that the shorter of two equally good lags is the period."""
_SILENT = 0.03
"""Smallest level of a voiced frame, relative to the loudest frame."""
_SHORTEST_RUN = 3
"""Smallest number of frames in a voiced run; one or two frames of noise may look periodic."""
_FEWEST_FRAMES = 10


def pitch(samples: NDArray[np.float32], sample_rate: int) -> dict[str, float | None]:
    """Return percentiles of the fundamental frequency of samples [n], and the share of voiced frames, by report keys.

    The percentiles are None if fewer than ten frames of 10 ms are voiced.
    """
    track = track_f0(samples, sample_rate)
    voiced = track[track > 0]
    enough = len(voiced) >= _FEWEST_FRAMES
    percentiles = np.quantile(voiced, [0.05, 0.5, 0.95]).tolist() if enough else [None] * 3
    share = len(voiced) / len(track) if len(track) else 0.0
    return dict(zip(("f0_p05_hz", "f0_p50_hz", "f0_p95_hz"), percentiles, strict=True)) | {"voiced_share": share}


def track_f0(samples: NDArray[np.float32], sample_rate: int) -> NDArray[np.float64]:
    """Return the fundamental frequency every 10 ms: [frames], 60 to 500 Hz, 0 for unvoiced frames.

    The autocorrelation of each 50 ms frame is divided by the window's own, so that it does not decay with the lag
    (Boersma 1993, "Accurate short-term analysis of the fundamental frequency"). Its highest peak gives the period.
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
    """Return for each frame, [3, frames]: period in samples, autocorrelation at the period, root mean square."""
    centred = frames.astype(np.float64)
    centred -= centred.mean(axis=1, keepdims=True)
    window = np.hanning(frames.shape[1])
    likeness = _autocorrelation(centred * window) / _autocorrelation(window[None])
    levels = np.sqrt((centred**2).mean(axis=1))
    return np.stack([*_best_lags(likeness, sample_rate), levels])


def _autocorrelation(frames: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the autocorrelation, [frames, lags], with 1 at lag 0, or all 0 for a frame of zeros."""
    size = frames.shape[1]
    spectrum = np.fft.rfft(frames, 2 * size)
    products = np.fft.irfft(np.abs(spectrum) ** 2)[:, :size]
    return products / np.maximum(products[:, :1], np.finfo(np.float64).tiny)


def _best_lags(likeness: NDArray[np.float64], sample_rate: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lag (in samples, interpolated) and the height of each frame's highest peak."""
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
