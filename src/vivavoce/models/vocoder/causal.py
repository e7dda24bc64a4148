"""CosyVoice3's HiFT: no layer but two hears what follows, so that a stream's past never changes.

The pitch hears three frames ahead and the first convolution four: what a call is given beyond its output.
"""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, leaky_relu, linear, pad

from vivavoce.checkpoint.config import CausalVocoderConfig
from vivavoce.models.vocoder.hift import (
    F0_CONVS,
    F0_KERNEL,
    LAST_SLOPE,
    MAX_MAGNITUDE,
    OUTER_KERNEL,
    HarmonicSource,
    ResBlock,
    convolve,
    convolve_behind,
    istft,
    laid_out,
    stft,
)

PITCH_LOOKAHEAD = 3
"""Frames that the pitch of one hears after it."""


class CausalF0Predictor(nn.Module):
    """As `F0Predictor`, and a frame's pitch hears `PITCH_LOOKAHEAD` frames after it; computed in float64.

    The source sums the pitch up to phases: the official code takes float64 for it.
    """

    def __init__(self, mel_bins: int, channels: int) -> None:
        super().__init__()
        kernels = [PITCH_LOOKAHEAD + 1] + [F0_KERNEL] * (F0_CONVS - 1)
        sizes = [mel_bins] + [channels] * F0_CONVS
        self.convs = nn.ModuleList(
            nn.Conv1d(before, after, kernel) for (before, after), kernel in zip(pairwise(sizes), kernels, strict=True)
        )
        self.out = nn.Linear(channels, 1)

    def forward(self, mel: Tensor, final: bool) -> Tensor:
        """mel: [batch, bins, frames], the lookahead's included unless final  →  [batch, frames or 3 fewer] Hz."""
        x = pad(mel, (0, PITCH_LOOKAHEAD if final else 0)).double()
        for place, conv in enumerate(self.convs):
            x = pad(x, (F0_KERNEL - 1 if place else 0, 0))
            assert isinstance(conv, nn.Conv1d)
            assert conv.bias is not None
            x = elu(torch.conv1d(x, conv.weight.double(), conv.bias.double()))
        pitch = linear(x.transpose(1, 2), self.out.weight.double(), self.out.bias.double())
        return pitch.abs()[..., 0].float()


class SteppedSource(HarmonicSource):
    """As `HarmonicSource`, but a phase stands still within a frame, and the noise is not centred, as the official
    code has it: uniform numbers in [0, 1).
    """

    def excite(self, f0: Tensor, cycles: Tensor, noise: Tensor | None, carried: Tensor | None) -> Tensor:
        """See `HarmonicSource.excite`; noise: [batch, samples, harmonics] uniform in [0, 1)."""
        config, hop = self.config, self.config.samples_per_frame
        sine = config.sine_amplitude * torch.sin(cycles * (2 * math.pi) * hop).repeat_interleave(hop, dim=1)
        voiced = (f0 > config.voiced_threshold_hz).float().repeat_interleave(hop, dim=1)[..., None]
        signal = voiced * sine
        if noise is not None:
            signal = signal + noise * (voiced * config.noise_std + (1 - voiced) * (config.sine_amplitude / 3))
        return torch.tanh(self.merge(signal)).transpose(1, 2)


class CausalHiFT(nn.Module):
    """mel → pitch → source → waveform."""

    def __init__(self, config: CausalVocoderConfig) -> None:
        super().__init__()
        self.config = config
        rates, kernels = config.upsample_rates, config.upsample_kernels
        channels = [config.base_channels // 2**i for i in range(len(rates) + 1)]
        spectrum = config.n_fft + 2
        self.f0 = CausalF0Predictor(config.f0_mel_bins, config.f0_channels)
        self.source = SteppedSource(config)
        self.conv_pre = nn.Conv1d(config.num_mel_bins, channels[0], config.lookahead + 1)
        self.ups = nn.ModuleList(
            nn.Conv1d(before, after, kernel)
            for (before, after), kernel in zip(pairwise(channels), kernels, strict=True)
        )
        strides = list(accumulate(reversed((*rates[1:], 1)), lambda a, b: a * b))[::-1]
        self.source_downs = nn.ModuleList(
            nn.Conv1d(spectrum, size, 1 if stride == 1 else 2 * stride, stride)
            for size, stride in zip(channels[1:], strides, strict=True)
        )
        self.source_resblocks = nn.ModuleList(
            ResBlock(size, kernel, dilations, causal=True)
            for size, kernel, dilations in zip(
                channels[1:], config.source_resblock_kernels, config.source_resblock_dilations, strict=True
            )
        )
        self.resblocks = nn.ModuleList(
            ResBlock(size, kernel, dilations, causal=True)
            for size in channels[1:]
            for kernel, dilations in zip(config.resblock_kernels, config.resblock_dilations, strict=True)
        )
        self.conv_post = nn.Conv1d(channels[-1], spectrum, OUTER_KERNEL)

    @property
    def lookahead(self) -> int:
        """Frames after its output that a call hears which is not final, and one that it withholds."""
        return PITCH_LOOKAHEAD + self.config.lookahead + 1

    def forward(self, mel: Tensor, noise: Tensor | None, final: bool = True) -> Tensor:
        """mel: [batch, bins, frames]; noise: [batch, samples, harmonics] or None  →  [batch, samples]: of all frames if
        final, else of `lookahead` fewer.
        """
        f0 = self.f0(mel, final)
        noise = None if noise is None else noise[:, : f0.shape[1] * self.config.samples_per_frame]
        return self.decode(mel, self.source(f0, noise), final)

    def decode(self, mel: Tensor, source: Tensor, final: bool = True) -> Tensor:
        """mel: [batch, bins, frames]; source: [batch, 1, samples], of 3 frames fewer unless final  →  as `forward`."""
        config = self.config
        spectrum = stft(source[:, 0], None, config.n_fft, config.hop)
        if final:
            mel = pad(mel, (0, config.lookahead))
        else:
            mel = mel[..., : mel.shape[-1] - PITCH_LOOKAHEAD]
            spectrum = spectrum[..., : spectrum.shape[-1] - config.lookahead * math.prod(config.upsample_rates)]
        spectrum, x = laid_out(spectrum), convolve(self.conv_pre, laid_out(mel))
        count = len(config.resblock_kernels)
        for stage, (up, rate) in enumerate(zip(self.ups, config.upsample_rates, strict=True)):
            x = convolve_behind(up, leaky_relu(x, config.leaky_slope).repeat_interleave(rate, dim=-1))
            if stage == len(self.ups) - 1:
                # One more frame, mirrored, makes the centred STFT's odd count.
                x = torch.cat((x[..., 1:2], x), dim=-1)
            down = self.source_downs[stage]
            assert isinstance(down, nn.Conv1d)
            x = x + self.source_resblocks[stage](convolve(down, pad(spectrum, (down.stride[0] - 1, 0))), None)
            blocks = self.resblocks[stage * count : (stage + 1) * count]
            x = torch.stack([block(x, None) for block in blocks]).mean(dim=0)
        x = convolve_behind(self.conv_post, leaky_relu(x, LAST_SLOPE))[:, :, 0]
        bins = config.n_fft // 2 + 1
        magnitude = torch.exp(x[:, :bins]).clamp(max=MAX_MAGNITUDE)
        wave = istft(magnitude, torch.sin(x[:, bins:]), None, config.n_fft, config.hop)
        wave = wave if final else wave[:, : -config.samples_per_frame]
        return wave.clamp(-config.audio_limit, config.audio_limit)
