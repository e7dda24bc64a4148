"""CosyVoice3's causal HiFT. Only two layers read later frames; when these have arrived, a sample never changes.

The pitch predictor reads three later frames, and the first convolution four. Beyond a row's end, both read zeros.
"""

from __future__ import annotations

import math
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, leaky_relu, linear, pad

from vivavoce.checkpoint.config import CausalVocoderConfig
from vivavoce.models.layers import PairRunner, in_turn, zero_padding
from vivavoce.models.randomness import uniform
from vivavoce.models.vocoder.hift import (
    F0_CONVS,
    F0_KERNEL,
    LAST_SLOPE,
    OUTER_KERNEL,
    HarmonicSource,
    Reach,
    convolve,
    convolve_behind,
    laid_out,
    mean_of_blocks,
    residual_blocks,
    stft,
    waveform,
)
from vivavoce_kernels.layouts import NoiseStream

PITCH_LOOKAHEAD = 3  # number of later frames on which the pitch of a frame depends


class CausalF0Predictor(nn.Module):
    """Predicts the pitch in Hz, in float64 like the official code, because the source adds up the errors of pitches."""

    def __init__(self, mel_bins: int, channels: int) -> None:
        super().__init__()
        kernels = [PITCH_LOOKAHEAD + 1] + [F0_KERNEL] * (F0_CONVS - 1)
        sizes = [mel_bins] + [channels] * F0_CONVS
        self.convs = nn.ModuleList(
            nn.Conv1d(before, after, kernel) for (before, after), kernel in zip(pairwise(sizes), kernels, strict=True)
        )
        self.out = nn.Linear(channels, 1)

    def forward(self, mel: Tensor, lengths: Tensor | None) -> Tensor:
        x = pad(zero_padding(mel, lengths), (0, PITCH_LOOKAHEAD)).double()
        for index, conv in enumerate(self.convs):
            x = pad(x, (F0_KERNEL - 1 if index else 0, 0))
            assert isinstance(conv, nn.Conv1d)
            assert conv.bias is not None
            x = elu(torch.conv1d(x, conv.weight.double(), conv.bias.double()))
        pitch = linear(x.transpose(1, 2), self.out.weight.double(), self.out.bias.double())
        return pitch.abs()[..., 0].float()


class SteppedSource(HarmonicSource):
    """A source with a constant phase in each frame, and uniform noise in (0, 1), with mean 0.5 as the official code."""

    def excite(self, f0: Tensor, cycles: Tensor, noise: Tensor | None, carried: Tensor | None) -> Tensor:
        config, hop = self.config, self.config.samples_per_frame
        voiced = (f0 > config.voiced_threshold_hz).float()[..., None]
        signal = self.merge(voiced * (config.sine_amplitude * torch.sin(cycles * (2 * math.pi) * hop)))
        signal = signal.repeat_interleave(hop, dim=1)
        if noise is not None:
            strength = voiced * config.noise_std + (1 - voiced) * (config.sine_amplitude / 3)
            signal = signal + strength.repeat_interleave(hop, dim=1) * linear(noise, self.merge.weight)
        return torch.tanh(signal).transpose(1, 2)

    def draw(self, seeds: Tensor, places: Tensor) -> Tensor:
        """Return noise [batch, samples, harmonics]: a number for each harmonic, because the distribution of their
        weighted sum is not simple."""
        harmonics = self.config.num_harmonics + 1
        counters = places[..., None] * harmonics + torch.arange(harmonics, device=places.device)
        return uniform(seeds[..., None], NoiseStream.SOURCE, counters)


class CausalHiFT(nn.Module):
    overlap = None  # see `HiFT`

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
        self.source_resblocks, self.resblocks = residual_blocks(config, channels[1:], causal=True)
        self.conv_post = nn.Conv1d(channels[-1], spectrum, OUTER_KERNEL)

    @property
    def reach(self) -> Reach:
        # Pitch predictor and first convolution run in parallel, so the larger lookahead would be enough, but the
        # official code adds the two. + 1, because the stages read less than one later frame.
        return Reach(self.heard_before[0], PITCH_LOOKAHEAD + self.config.lookahead + 1)

    @property
    def heard_before(self) -> tuple[int, ...]:
        """How many earlier frames a sample depends on: first frames of mel and source, then of each stage's output."""
        config = self.config
        # Go from the last layer to the mel; `position` is the earliest position on which the first sample depends.
        position = -((config.n_fft // 2 - 1) // config.hop) - (OUTER_KERNEL - 1)
        first, stages = -(F0_CONVS - 1) * (F0_KERNEL - 1), list[int]()
        for stage in range(len(self.ups) - 1, -1, -1):
            blocks = zip(config.resblock_kernels, config.resblock_dilations, strict=True)
            position -= max(_heard(kernel, dilations) for kernel, dilations in blocks)
            down = self.source_downs[stage]
            assert isinstance(down, nn.Conv1d)
            entry = position - _heard(config.source_resblock_kernels[stage], config.source_resblock_dilations[stage])
            stages.insert(0, -(entry // math.prod(config.upsample_rates[: stage + 1])))
            spectrum = entry * down.stride[0] - (down.stride[0] - 1)
            first = min(first, (spectrum * config.hop - config.n_fft // 2) // config.samples_per_frame)
            # The mirrored position at the start of the last stage shifts all positions by one.
            position -= config.upsample_kernels[stage] - 1 + (stage == len(self.ups) - 1)
            position //= config.upsample_rates[stage]
        return -min(first, position), *stages

    def decode(self, mel: Tensor, source: Tensor, lengths: Tensor | None = None, both: PairRunner = in_turn) -> Tensor:
        config = self.config
        samples = None if lengths is None else lengths * config.samples_per_frame
        spectrum = laid_out(stft(source[:, 0], samples, config.n_fft, config.hop))
        # All layers after this one are causal, so values beyond a row's end do not change samples of the row.
        x = convolve(self.conv_pre, laid_out(pad(zero_padding(mel, lengths), (0, config.lookahead))))
        count = len(config.resblock_kernels)
        for stage, (up, rate) in enumerate(zip(self.ups, config.upsample_rates, strict=True)):
            x = convolve_behind(up, leaky_relu(x, config.leaky_slope).repeat_interleave(rate, dim=-1))
            if stage == len(self.ups) - 1:
                # The centred STFT has one frame more, so the signal is mirrored at its start.
                x = torch.cat((x[..., 1:2], x), dim=-1)
            down = self.source_downs[stage]
            assert isinstance(down, nn.Conv1d)
            x = x + self.source_resblocks[stage](convolve(down, pad(spectrum, (down.stride[0] - 1, 0))), None)
            x = mean_of_blocks(self.resblocks[stage * count : (stage + 1) * count], x, None, both)
        frames = None if samples is None else samples // config.hop + 1
        return waveform(convolve_behind(self.conv_post, leaky_relu(x, LAST_SLOPE))[:, :, 0], frames, config)


def _heard(kernel: int, dilations: tuple[int, ...]) -> int:
    return (kernel - 1) * sum(dilation + 1 for dilation in dilations)
