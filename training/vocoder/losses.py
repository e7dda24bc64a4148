"""Distances between two waveforms in their short-time spectra, at several resolutions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vivavoce.models.features.filterbank import slaney_filterbank

TINY = 1e-10
"""Added to a power before its root, whose slope at 0 is infinite."""
QUIET_MEL = 1e-5
"""The floor of `prompt_mel`."""
QUIET = 5e-5
"""Magnitude per root of the frame size under which differences are not heard: a little above 16-bit rounding."""


@dataclass(frozen=True)
class Scale:
    """One resolution: frame, hop, and the number of mel bins."""

    n_fft: int
    hop: int
    bins: int


SCALES = (
    Scale(128, 32, 10),
    Scale(256, 64, 20),
    Scale(512, 128, 40),
    Scale(1024, 256, 80),
    Scale(2048, 512, 160),
    Scale(1920, 480, 80),
)
"""The last is the mel that the vocoder is given, but up to half the sample rate."""


class SpectralLoss(nn.Module):
    """Multi-resolution STFT loss (Parallel WaveGAN, arXiv:1910.11480) and multi-scale mel loss (arXiv:2306.06546).

    Windows and filters are made once: a CUDA graph cannot bring them from the host.
    """

    def __init__(self, sample_rate: int, scales: tuple[Scale, ...] = SCALES) -> None:
        super().__init__()
        self.scales = scales
        for i, scale in enumerate(scales):
            filters = slaney_filterbank(sample_rate, scale.n_fft, scale.bins, 0.0, sample_rate / 2)
            self.register_buffer(f"window{i}", torch.hann_window(scale.n_fft), persistent=False)
            self.register_buffer(f"filters{i}", filters.clone(), persistent=False)

    def forward(self, made: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """made, real: [batch, samples] float32, no shorter than the largest frame.

        →  (STFT loss, mean of spectral convergence plus mean absolute difference of logarithms; mel loss, mean
        absolute difference of natural logarithms), each averaged over the scales
        """
        stft_losses, mel_losses = [], []
        for i, scale in enumerate(self.scales):
            ours = self._magnitude(i, made)
            with torch.no_grad():
                theirs = self._magnitude(i, real)
            floor = QUIET * scale.n_fft**0.5
            convergence = torch.linalg.vector_norm(ours - theirs) / (torch.linalg.vector_norm(theirs) + floor)
            stft_losses.append(convergence + _log_difference(ours, theirs, floor))
            filters = self.get_buffer(f"filters{i}")
            mel_losses.append(_log_difference(filters @ ours, filters @ theirs, QUIET_MEL))
        return torch.stack(stft_losses).mean(), torch.stack(mel_losses).mean()

    def _magnitude(self, i: int, wave: Tensor) -> Tensor:
        """[batch, samples]  →  [batch, n_fft / 2 + 1, frames]: whole frames only, nothing is made up at the ends."""
        scale, window = self.scales[i], self.get_buffer(f"window{i}")
        spectrum = torch.stft(wave, scale.n_fft, scale.hop, window=window, center=False, return_complex=True)
        return (torch.view_as_real(spectrum).square().sum(-1) + TINY).sqrt()


def _log_difference(a: Tensor, b: Tensor, floor: float) -> Tensor:
    return (a.clamp(min=floor).log() - b.clamp(min=floor).log()).abs().mean()


def judged_real(scores: list[Tensor]) -> Tensor:
    """Least-squares loss of scores that ought to be 1 (arXiv:1611.04076), averaged over the discriminators."""
    return torch.stack([(1 - score.float()).square().mean() for score in scores]).mean()


def judged_made(scores: list[Tensor]) -> Tensor:
    """The same for scores that ought to be 0."""
    return torch.stack([score.float().square().mean() for score in scores]).mean()


def feature_distance(made: list[Tensor], real: list[Tensor]) -> Tensor:
    """Mean absolute difference of the discriminators' inner layers relative to the real one's size.

    Feature matching (HiFi-GAN, arXiv:2010.05646), made independent of each layer's scale (EnCodec, arXiv:2210.13438).
    """
    distances = []
    for ours, theirs in zip(made, real, strict=True):
        target = theirs.detach().float()
        distances.append((ours.float() - target).abs().mean() / (target.abs().mean() + 1e-3))
    return torch.stack(distances).mean()
