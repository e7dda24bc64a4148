"""The adversary: networks that tell real speech from the vocoder's, by its periods and by its spectra."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, pad
from torch.nn.utils.parametrizations import weight_norm

PERIODS = (2, 3, 5, 7, 11)
PERIOD_CHANNELS = (16, 64, 256, 512, 512)
RESOLUTIONS = ((512, 128), (1024, 256), (2048, 512))
"""Frame and hop of each spectrum."""
RESOLUTION_CHANNELS = 32
SLOPE = 0.1
COMPRESSION = 0.3
"""Power of the magnitude: loud and soft parts weigh more alike, as in hearing."""
TINY = 1e-7

Judgement = tuple[list[Tensor], list[Tensor]]
"""One map of scores per discriminator, and the features of all inner layers."""


class Discriminators(nn.Module):
    """One per period (HiFi-GAN, arXiv:2010.05646) and one per spectrum (UnivNet, arXiv:2106.07889)."""

    def __init__(
        self,
        period_channels: tuple[int, ...] = PERIOD_CHANNELS,
        resolution_channels: int = RESOLUTION_CHANNELS,
        resolutions: tuple[tuple[int, int], ...] = RESOLUTIONS,
    ) -> None:
        super().__init__()
        self.resolutions = resolutions
        self.by_period = nn.ModuleList(_period_stack(period_channels) for _ in PERIODS)
        self.by_spectrum = nn.ModuleList(_spectrum_stack(resolution_channels) for _ in resolutions)
        for i, (n_fft, _) in enumerate(resolutions):
            self.register_buffer(f"window{i}", torch.hann_window(n_fft), persistent=False)

    def forward(self, wave: Tensor) -> Judgement:
        """wave: [batch, samples] float32, no shorter than the largest frame."""
        scores: list[Tensor] = []
        features: list[Tensor] = []
        images = [_folded(wave, period) for period in PERIODS]
        images += [self._spectrum(i, wave) for i in range(len(self.resolutions))]
        for x, stack in zip(images, (*self.by_period, *self.by_spectrum), strict=True):
            first, *inner, last = stack
            # Channels last in memory: the layout of cuDNN's half-precision kernels.
            x = leaky_relu(first(x).contiguous(memory_format=torch.channels_last), SLOPE)
            features.append(x)
            for conv in inner:
                x = leaky_relu(conv(x), SLOPE)
                features.append(x)
            scores.append(last(x))
        return scores, features

    def _spectrum(self, i: int, wave: Tensor) -> Tensor:
        """[batch, samples]  →  [batch, 1, frames, bins]."""
        n_fft, hop = self.resolutions[i]
        window = self.get_buffer(f"window{i}")
        with torch.autocast(wave.device.type, enabled=False):
            spectrum = torch.stft(wave.float(), n_fft, hop, window=window, center=False, return_complex=True)
            power = torch.view_as_real(spectrum).square().sum(-1) + TINY
            return power.pow(COMPRESSION / 2).transpose(1, 2)[:, None]


def _folded(wave: Tensor, period: int) -> Tensor:
    """[batch, samples]  →  [batch, 1, samples / period, period], the last row filled up with zeros."""
    return pad(wave, (0, -wave.shape[1] % period)).view(len(wave), 1, -1, period)


def _period_stack(channels: tuple[int, ...]) -> nn.ModuleList:
    """Convolutions along time alone, each but the last two with stride 3."""
    layers = [
        _conv(before, after, (5, 1), (1, 1) if i == len(channels) - 1 else (3, 1))
        for i, (before, after) in enumerate(pairwise((1, *channels)))
    ]
    return nn.ModuleList((*layers, _conv(channels[-1], 1, (3, 1))))


def _spectrum_stack(channels: int) -> nn.ModuleList:
    """Convolutions that halve the frequencies three times, then look at the neighbourhood."""
    layers = [_conv(1 if i == 0 else channels, channels, (3, 9), (1, 2)) for i in range(3)]
    return nn.ModuleList((*layers, _conv(channels, channels, (3, 3)), _conv(channels, 1, (3, 3))))


def _conv(before: int, after: int, kernel: tuple[int, int], stride: tuple[int, int] = (1, 1)) -> nn.Module:
    padding = (kernel[0] // 2, kernel[1] // 2)
    conv: nn.Module = weight_norm(nn.Conv2d(before, after, kernel, stride, padding))
    return conv
