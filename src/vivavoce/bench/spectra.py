"""How far two recordings of the same words are apart, frame by frame."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_FRAME_S, _HOP_S = 0.025, 0.010
_DEPTH = 1e-3
"""Of the loudest bin: what lies 60 dB below it counts as silence."""


def spectral_distance(one: NDArray[np.float32], other: NDArray[np.float32], sample_rate: int) -> NDArray[np.float64]:
    """The log-spectral distance of each frame of 25 ms, every 10 ms: [frames] dB, 0 where they are equal.

    The root mean square, over the bins of a Hann-windowed spectrum, of the difference of levels. Frame f is centred at
    10 ms · f; samples that only one of the two has are left out.
    """
    frame, hop = round(_FRAME_S * sample_rate), round(_HOP_S * sample_rate)
    size = min(len(one), len(other))
    if not size:
        return np.zeros(0)
    spectra = [_magnitudes(samples[:size], frame, hop) for samples in (one, other)]
    floor = _DEPTH * max(float(spectra[0].max()), float(spectra[1].max()), np.finfo(np.float64).tiny)
    levels = [20 * np.log10(np.maximum(spectrum, floor)) for spectrum in spectra]
    distance: NDArray[np.float64] = np.sqrt(np.mean(np.square(levels[0] - levels[1]), axis=1))
    return distance


def near_places(num_frames: int, sample_rate: int, places: Sequence[int], length: int = 1) -> NDArray[np.bool_]:
    """Which frames of `spectral_distance` hold one of the `length` samples from these places on: [frames]."""
    centres, reach = np.arange(num_frames) * round(_HOP_S * sample_rate), round(_FRAME_S * sample_rate) // 2
    near = np.zeros(num_frames, dtype=bool)
    for place in places:
        near |= (place - reach <= centres) & (centres < place + length + reach)
    return near


def _magnitudes(samples: NDArray[np.float32], frame: int, hop: int) -> NDArray[np.float64]:
    padded = np.pad(samples.astype(np.float64), frame // 2)
    padded = np.pad(padded, (0, max(0, frame - len(padded))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, frame)[::hop]
    return np.abs(np.fft.rfft(frames * np.hanning(frame), axis=1))
