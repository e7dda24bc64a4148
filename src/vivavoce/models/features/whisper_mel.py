"""The log-mel spectrogram of Whisper (arXiv:2212.04356, section 2.2), which the speech tokenizer reads."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vivavoce.models.features.filterbank import slaney_filterbank
from vivavoce.models.features.lengths import require_samples

SAMPLE_RATE = 16_000
_N_FFT = 400
_HOP = 160
_FLOOR = 1e-10
_DYNAMIC_RANGE = 8.0
"""Decades below the loudest value that are kept."""


def whisper_log_mel(samples: Tensor, num_bins: int = 128) -> Tensor:
    """Scaled log-mel [.., num_bins, n // 160] of `samples` [.., n], float32 at 16 kHz. No padding to 30 s.

    Every recording keeps the range below its own loudest value.

    Raises:
        InvalidAudio: too short for the reflected edges (12.6 ms).
    """
    num_samples = samples.shape[-1]
    require_samples(num_samples, _N_FFT // 2 + 1, SAMPLE_RATE)
    rows = samples.reshape(math.prod(samples.shape[:-1]), num_samples)
    window = torch.hann_window(_N_FFT, device=samples.device)
    spectrum = torch.stft(rows, _N_FFT, _HOP, window=window, center=True, return_complex=True)
    power = spectrum[..., :-1].abs().square()
    filters = slaney_filterbank(SAMPLE_RATE, _N_FFT, num_bins, 0.0, SAMPLE_RATE / 2)
    decades = (filters.to(samples.device) @ power).clamp(min=_FLOOR).log10()
    floor = decades.amax(dim=(1, 2), keepdim=True) - _DYNAMIC_RANGE
    scaled = (decades.maximum(floor) + 4.0) / 4.0
    return scaled.reshape(*samples.shape[:-1], num_bins, num_samples // _HOP)
