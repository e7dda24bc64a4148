"""What happens to speech on its way to the speaker encoder: rooms, microphones, noise, and a vocoder.

Every method draws anew for each row of the batch.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

N_FFT, HOP = 512, 128
_BINS = N_FFT // 2 + 1

TILT_DB = 10.0
"""From the lowest to the highest frequency, either way."""
LOW_PASS_SHARE, LOWEST_EDGE = 0.25, 0.45
"""Share of the rows, and share of the band that is left at least: 3.6 kHz."""
LOW_PASS_DB = -60.0
VOCODED_SHARE = 0.3
SMEAR_SHARE = 0.5
"""Of the rows that are vocoded."""
SNR_DB = (10.0, 45.0)
PINKEST = 1.0
"""Largest exponent of the noise's slope: power as 1 / frequency."""
LEVEL_DB = (-30.0, 6.0)


class Degrade(nn.Module):
    """Samples [batch, n], float32 at 16 kHz, → as heard through something, of the same shape."""

    window: Tensor
    height: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(N_FFT), persistent=False)
        self.register_buffer("height", torch.linspace(0, 1, _BINS), persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        """Resynthesis, then colour, noise and level."""
        level = samples.square().mean(1, keepdim=True).sqrt()
        spectrum = self._spectrum(samples)
        spectrum = self._vocode(spectrum) * self._colour(spectrum)
        spectrum = spectrum + self._noise(spectrum, level)
        gain = torch.pow(10.0, self._uniform(samples, *LEVEL_DB) / 20)
        return self._samples(spectrum, samples.shape[1]) * gain[:, :, 0]

    def _vocode(self, spectrum: Tensor) -> Tensor:
        """Phases shaken by up to half a turn and, for some rows, magnitudes smeared over time and frequency.

        It stands for what a vocoder gets wrong: it makes a waveform of a mel spectrum, which has neither.
        """
        chosen = self._chance(spectrum, VOCODED_SHARE)
        turn = self._uniform(spectrum, 0.2, 1.0) * math.pi * chosen
        shaken = torch.polar(torch.ones_like(spectrum.real), turn * self._even(spectrum))
        magnitude = spectrum.abs().unsqueeze(1)
        smeared = functional.avg_pool2d(magnitude, 3, stride=1, padding=1, count_include_pad=False)[:, 0]
        factor = (smeared + 1e-8) / (magnitude[:, 0] + 1e-8)
        smear = chosen & self._chance(spectrum, SMEAR_SHARE)
        return spectrum * shaken * torch.where(smear, factor.clamp(max=10.0), 1.0)

    def _colour(self, spectrum: Tensor) -> Tensor:
        """[batch, bins, 1]: a tilt, and for some rows nothing above an edge."""
        decibels = self._uniform(spectrum, -TILT_DB, TILT_DB) * self.height[:, None]
        above = self.height[:, None] > self._uniform(spectrum, LOWEST_EDGE, 1.0)
        cut = above & self._chance(spectrum, LOW_PASS_SHARE)
        return torch.pow(10.0, (decibels + LOW_PASS_DB * cut) / 20)

    def _noise(self, spectrum: Tensor, level: Tensor) -> Tensor:
        """Noise from white to pink, 10 to 45 dB below a row's `level` [batch, 1] (root mean square)."""
        slope = self._uniform(spectrum, 0.0, PINKEST)
        shape = (self.height[:, None] * (_BINS - 1)).clamp(min=1.0).pow(-slope / 2)
        shape = shape / shape.square().mean(1, keepdim=True).sqrt()
        below = torch.pow(10.0, -self._uniform(spectrum, *SNR_DB) / 20)
        # In white noise of deviation 1 each bin's squared magnitude is the window's energy on average. Overlapping
        # frames of one noise agree; these do not, and add up to a quarter of its power.
        unit = 2 * self.window.square().sum().sqrt()
        return torch.randn_like(spectrum) * unit * shape * below * level[:, :, None]

    def _spectrum(self, samples: Tensor) -> Tensor:
        """[batch, n]  →  complex [batch, bins, frames]."""
        padded = functional.pad(samples, (N_FFT, N_FFT + -samples.shape[1] % HOP))
        spectrum: Tensor = torch.fft.rfft(padded.unfold(1, N_FFT, HOP) * self.window)
        return spectrum.transpose(1, 2)

    def _samples(self, spectrum: Tensor, num_samples: int) -> Tensor:
        """The inverse of `_spectrum`, as `torch.istft` computes it, which would wait for the device."""
        frames = torch.fft.irfft(spectrum.transpose(1, 2), N_FFT) * self.window
        length = (frames.shape[1] - 1) * HOP + N_FFT
        added = functional.fold(frames.transpose(1, 2), (1, length), (1, N_FFT), stride=(1, HOP))
        overlap = 0.375 * N_FFT / HOP  # what squared Hann windows add up to
        return added[:, 0, 0, N_FFT : N_FFT + num_samples] / overlap

    @staticmethod
    def _even(spectrum: Tensor) -> Tensor:
        """Between -1 and 1, one for each value."""
        return 2 * torch.rand_like(spectrum.real) - 1

    @staticmethod
    def _uniform(like: Tensor, low: float, high: float) -> Tensor:
        """[batch, 1, 1] between the bounds."""
        return low + (high - low) * torch.rand(len(like), 1, 1, device=like.device)

    @staticmethod
    def _chance(like: Tensor, share: float) -> Tensor:
        """[batch, 1, 1] bool, true for that share of the rows."""
        return torch.rand(len(like), 1, 1, device=like.device) < share
