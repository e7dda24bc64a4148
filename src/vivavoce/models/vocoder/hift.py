"""HiFT, the vocoder of CosyVoice 1 and 2: a harmonic source shapes an inverse-STFT generator (arXiv:2309.09493)."""

from __future__ import annotations

import math
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from vivavoce.checkpoint.config import VocoderConfig
from vivavoce.models.layers.masks import valid_positions, zero_padding
from vivavoce.models.vocoder.f0 import F0Predictor
from vivavoce.models.vocoder.layout import convolve, convolve_transposed, laid_out
from vivavoce.models.vocoder.resblock import ResBlock, keep
from vivavoce.models.vocoder.source import HarmonicSource
from vivavoce.models.vocoder.stft import istft, stft

OUTER_KERNEL = 7
MAX_MAGNITUDE = 100.0
LAST_SLOPE = 0.01
"""Slope of the last activation: the official code leaves it at PyTorch's default there."""


class HiFT(nn.Module):
    """mel → pitch → source → waveform. `forward` is the three steps; a stream calls them one by one."""

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        self.config = config
        rates, kernels = config.upsample_rates, config.upsample_kernels
        channels = [config.base_channels // 2**i for i in range(len(rates) + 1)]
        spectrum = config.n_fft + 2
        self.f0 = F0Predictor(config.f0_mel_bins, config.f0_channels)
        self.source = HarmonicSource(config)
        self.conv_pre = nn.Conv1d(config.num_mel_bins, channels[0], OUTER_KERNEL, padding=OUTER_KERNEL // 2)
        self.ups = nn.ModuleList(
            nn.ConvTranspose1d(channels[i], channels[i + 1], kernels[i], rates[i], padding=(kernels[i] - rates[i]) // 2)
            for i in range(len(rates))
        )
        # The source's spectrum is brought down from the last stage's rate to each stage's own.
        strides = list(accumulate(reversed((*rates[1:], 1)), lambda a, b: a * b))[::-1]
        self.source_downs = nn.ModuleList(
            nn.Conv1d(spectrum, channels[i + 1], 1)
            if stride == 1
            else nn.Conv1d(spectrum, channels[i + 1], 2 * stride, stride, padding=stride // 2)
            for i, stride in enumerate(strides)
        )
        self.source_resblocks = nn.ModuleList(
            ResBlock(channels[i + 1], kernel, dilations)
            for i, (kernel, dilations) in enumerate(
                zip(config.source_resblock_kernels, config.source_resblock_dilations, strict=True)
            )
        )
        self.resblocks = nn.ModuleList(
            ResBlock(channels[i + 1], kernel, dilations)
            for i in range(len(rates))
            for kernel, dilations in zip(config.resblock_kernels, config.resblock_dilations, strict=True)
        )
        self.conv_post = nn.Conv1d(channels[-1], spectrum, OUTER_KERNEL, padding=OUTER_KERNEL // 2)

    def forward(self, mel: Tensor, noise: Tensor | None, lengths: Tensor | None = None) -> Tensor:
        """mel: [batch, bins, frames]; noise: [batch, samples, harmonics] or None; lengths: [batch] frames, None if all
        are full  →  [batch, samples] within ± audio_limit; a row past its end is meaningless.
        """
        return self.decode(mel, self.source(self.f0(mel, lengths), noise), lengths)

    def decode(self, mel: Tensor, source: Tensor, lengths: Tensor | None = None) -> Tensor:
        """mel: [batch, bins, frames]; source: [batch, 1, frames · samples_per_frame]; lengths as in `forward`
        →  [batch, samples].
        """
        config = self.config
        samples = None if lengths is None else lengths * config.samples_per_frame
        spectrum = laid_out(stft(source[:, 0], samples, config.n_fft, config.hop))
        x = laid_out(zero_padding(mel, lengths))
        x = keep(convolve(self.conv_pre, x), _inside(lengths, x))
        for stage in range(len(self.ups)):
            x, lengths = self._stage(stage, x, spectrum, lengths)
        x = convolve(self.conv_post, leaky_relu(x, LAST_SLOPE))[:, :, 0]
        bins = config.n_fft // 2 + 1
        magnitude = torch.exp(x[:, :bins]).clamp(max=MAX_MAGNITUDE)
        wave = istft(magnitude, torch.sin(x[:, bins:]), lengths, config.n_fft, config.hop)
        return wave.clamp(-config.audio_limit, config.audio_limit)

    def _stage(self, stage: int, x: Tensor, spectrum: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """One step up in rate: the signal drawn out, the source's spectrum added, the mean of the residual blocks.

        x: [batch, channels, 1, time]; spectrum: [batch, n_fft + 2, 1, frames]; lengths: [batch] of x
        →  [batch, channels / 2, 1, time · rate], its lengths
        """
        x = convolve_transposed(self.ups[stage], leaky_relu(x, self.config.leaky_slope))
        lengths = None if lengths is None else lengths * self.config.upsample_rates[stage]
        if stage == len(self.ups) - 1:
            # One more frame, mirrored, makes the centred STFT's odd count.
            x = torch.cat((x[..., 1:2], x), dim=-1)
            lengths = None if lengths is None else lengths + 1
        inside = _inside(lengths, x)
        injected = keep(convolve(self.source_downs[stage], spectrum), inside)
        x = keep(self.source_resblocks[stage](injected, inside).add_(x), inside)
        per_stage = len(self.config.resblock_kernels)
        first, *others = (block(x, inside) for block in self.resblocks[stage * per_stage : (stage + 1) * per_stage])
        for other in others:
            first = first.add_(other)
        return first / per_stage, lengths

    def noise_shape(self, frames: int) -> tuple[int, int]:
        """Shape of the source noise for that many frames: (samples, harmonics)."""
        return frames * math.prod(self.config.upsample_rates) * self.config.hop, self.config.num_harmonics + 1


def _inside(lengths: Tensor | None, x: Tensor) -> Tensor | None:
    """1 where a row of x has a position, 0 past its end, None if all are full  →  [batch, 1, 1, time] like x."""
    return None if lengths is None else valid_positions(lengths, x.shape[-1])[:, None, None].to(x.dtype)
