"""Kaldi's filterbank in torch, many recordings at once: what `speaker_fbank` computes, for training.

Kaldi: feat/feature-window.cc, feat/feature-fbank.cc and feat/mel-computations.cc, with their defaults but for the
dither. See `vivavoce.models.features.kaldi_fbank`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from vivavoce.models.features.kaldi_fbank import NUM_BINS, SAMPLE_RATE

FRAME_SAMPLES, HOP = 400, 160
_N_FFT = 512
_PRE_EMPHASIS = 0.97
_LOWEST_HZ = 20.0


class Fbank(nn.Module):
    """Samples → log-mel energies, each bin less its mean over time."""

    window: Tensor
    filters: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", _povey_window(), persistent=False)
        self.register_buffer("filters", _mel_filters(), persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        """samples: [batch, n ≥ 400] float32 at 16 kHz, ±1 full scale  →  [batch, frames, 80] float32."""
        frames = samples.unfold(1, FRAME_SAMPLES, HOP)
        frames = frames - frames.mean(2, keepdim=True)
        before = torch.cat([frames[..., :1], frames[..., :-1]], dim=2)
        windowed = (frames - _PRE_EMPHASIS * before) * self.window
        power = torch.fft.rfft(windowed, _N_FFT).abs().square()
        energies: Tensor = (power @ self.filters).clamp(min=torch.finfo(torch.float32).eps).log()
        return energies - energies.mean(1, keepdim=True)


def _povey_window() -> Tensor:
    """A Hann window to the power 0.85, [400]."""
    return torch.hann_window(FRAME_SAMPLES, periodic=False, dtype=torch.float64).pow(0.85).float()


def _mel_filters() -> Tensor:
    """Triangles of height 1, evenly spaced on HTK's mel scale and straight on it: [257, 80]."""
    hertz = torch.arange(_N_FFT // 2, dtype=torch.float64) * (SAMPLE_RATE / _N_FFT)
    edges = torch.tensor([_LOWEST_HZ, SAMPLE_RATE / 2], dtype=torch.float64)
    low, high = _mel(edges).tolist()
    points = torch.linspace(low, high, NUM_BINS + 2, dtype=torch.float64)
    left, centre, right = points[:-2], points[1:-1], points[2:]
    at = _mel(hertz)[:, None]
    triangles = torch.minimum((at - left) / (centre - left), (right - at) / (right - centre)).clamp(min=0)
    return functional.pad(triangles, (0, 0, 0, 1)).float()


def _mel(hertz: Tensor) -> Tensor:
    return 1127.0 * torch.log1p(hertz / 700.0)
