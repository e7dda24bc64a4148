"""Triangular mel filters on Slaney's scale (Auditory Toolbox, Interval Technical Report 1998-010)."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

_HZ_PER_MEL = 200 / 3
_LOG_FROM_HZ = 1000.0
_LOG_FROM_MEL = _LOG_FROM_HZ / _HZ_PER_MEL
_LOG_STEP = math.log(6.4) / 27


@lru_cache(maxsize=16)
def slaney_filterbank(sample_rate: int, n_fft: int, num_bins: int, fmin_hz: float, fmax_hz: float) -> Tensor:
    """Filters [num_bins, n_fft//2 + 1], float32, each of unit area, as librosa's `filters.mel` gives them.

    Computed in float64. The tensor is shared between callers; do not write to it.
    """
    frequencies = torch.linspace(0, sample_rate / 2, n_fft // 2 + 1, dtype=torch.float64)
    edges = _mel_to_hz(torch.linspace(_hz_to_mel(fmin_hz), _hz_to_mel(fmax_hz), num_bins + 2, dtype=torch.float64))
    left, centre, right = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rising = (frequencies - left) / (centre - left)
    falling = (right - frequencies) / (right - centre)
    triangles = torch.minimum(rising, falling).clamp(min=0)
    return (triangles * (2 / (right - left))).float()


def _hz_to_mel(hz: float) -> float:
    """Linear below 1 kHz, logarithmic above."""
    if hz < _LOG_FROM_HZ:
        return hz / _HZ_PER_MEL
    return _LOG_FROM_MEL + math.log(hz / _LOG_FROM_HZ) / _LOG_STEP


def _mel_to_hz(mels: Tensor) -> Tensor:
    logarithmic = _LOG_FROM_HZ * torch.exp(_LOG_STEP * (mels - _LOG_FROM_MEL))
    return torch.where(mels < _LOG_FROM_MEL, mels * _HZ_PER_MEL, logarithmic)
