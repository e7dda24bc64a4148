"""CosyVoice 1's U-Net (arXiv:2407.05407): convolutions read earlier and later frames; inner levels have half the rate.

Norms have means over all frames of a row, so a row is computed as a whole. Norms ignore padding.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, conv_transpose1d, group_norm

from vivavoce.checkpoint.config import HourglassConfig
from vivavoce.models.flow.unet import (
    EXPANSION,
    KERNEL,
    PointwiseConv,
    TimeEmbedding,
    TransformerBlock,
    VelocityContext,
    level_time_biases,
)
from vivavoce.models.layers import additive
from vivavoce.models.layout import mish

GROUPS = 8


class TimeNorm(nn.GroupNorm):
    def forward(self, x: Tensor, inside: Tensor | None = None) -> Tensor:
        """x: [batch, time, channels]; inside: [batch, time, 1], 1 within a row, 0 beyond its end, None if all full."""
        if inside is None:
            return group_norm(x.transpose(1, 2), self.num_groups, self.weight, self.bias, self.eps).transpose(1, 2)
        groups, within = x.float().unflatten(2, (self.num_groups, -1)), inside[..., None].float()
        count = within.sum(1, keepdim=True) * groups.shape[3]
        mean = (groups * within).sum((1, 3), keepdim=True) / count
        centred = groups - mean
        variance = (centred.square() * within).sum((1, 3), keepdim=True) / count
        return (centred * torch.rsqrt(variance + self.eps)).flatten(2).to(x.dtype) * self.weight + self.bias


class Conv(nn.Conv1d):
    """A convolution over a position and its two neighbours: [batch, time, in] → [batch, time / stride, out]. The input
    must be zero beyond a row's end."""

    def __init__(self, in_channels: int, channels: int, stride: int = 1) -> None:
        super().__init__(in_channels, channels, KERNEL, stride, padding=KERNEL // 2)

    def forward(self, x: Tensor) -> Tensor:
        return conv1d(x.transpose(1, 2), self.weight, self.bias, self.stride, 1).transpose(1, 2)


class Doubling(nn.ConvTranspose1d):
    """Doubles the rate: [batch, time, channels], zero beyond a row's end → [batch, 2 · time, channels]."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels, 4, 2, padding=1)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return conv_transpose1d(x.transpose(1, 2), self.weight, self.bias, 2, 1).transpose(1, 2)


def within(x: Tensor, inside: Tensor | None) -> Tensor:
    return x if inside is None else x * inside


class WholeResnet(nn.Module):
    def __init__(self, in_channels: int, channels: int, time_size: int) -> None:
        super().__init__()
        self.time_projection = nn.Linear(time_size, channels)
        self.conv1, self.norm1 = Conv(in_channels, channels), TimeNorm(GROUPS, channels)
        self.conv2, self.norm2 = Conv(channels, channels), TimeNorm(GROUPS, channels)
        self.shortcut = PointwiseConv(in_channels, channels)

    def forward(self, x: Tensor, bias: Tensor, inside: Tensor | None) -> Tensor:
        h = mish(self.norm1(self.conv1(within(x, inside)), inside)) + bias
        return mish(self.norm2(self.conv2(within(h, inside)), inside)) + self.shortcut(x)


class WholeLevel(nn.Module):
    def __init__(self, in_channels: int, config: HourglassConfig, conv: nn.Module | None = None) -> None:
        super().__init__()
        channels = config.channels
        self.resnet = WholeResnet(in_channels, channels, channels * EXPANSION)
        self.blocks = nn.ModuleList(
            TransformerBlock(channels, config.num_heads, config.head_dim) for _ in range(config.num_blocks)
        )
        if conv is not None:
            self.conv = conv

    def forward(self, x: Tensor, bias: Tensor, mask: Tensor | None, inside: Tensor | None) -> Tensor:
        """x: [batch, frames, in] → [batch, frames, channels]; the caller applies `conv`."""
        x = self.resnet(x, bias, inside)
        for block in self.blocks:
            x = block(x, mask, None)
        return x


class UNetV1(nn.Module):
    def __init__(self, config: HourglassConfig) -> None:
        super().__init__()
        self.config = config
        channels, before = config.channels, config.in_channels
        self.time_embedding = TimeEmbedding(before, channels * EXPANSION)
        self.downs = nn.ModuleList(
            (
                WholeLevel(before, config, Conv(channels, channels, stride=2)),
                WholeLevel(channels, config, Conv(channels, channels)),
            )
        )
        self.mid = nn.ModuleList(WholeLevel(channels, config) for _ in range(config.num_mid_blocks))
        self.ups = nn.ModuleList(
            (
                WholeLevel(2 * channels, config, Doubling(channels)),
                WholeLevel(2 * channels, config, Conv(channels, channels)),
            )
        )
        self.final_conv, self.final_norm = Conv(channels, channels), TimeNorm(GROUPS, channels)
        self.out = PointwiseConv(channels, config.out_channels)

    def time_biases(self, t: Tensor) -> Tensor:
        return level_time_biases(self.time_embedding, (*self.downs, *self.mid, *self.ups), t)

    def velocity(self, features: Tensor, context: VelocityContext) -> Tensor:
        """Return the velocity of whole rows; the context has no memory, and its mask is additive or None."""
        mask = context.mask
        half_mask = None if mask is None else additive(mask[..., ::2] == 0, features.dtype)
        inside, half_inside = (
            None if one is None else (one[:, 0, 0, :, None] == 0).to(features.dtype) for one in (mask, half_mask)
        )
        outer, inner = (cast(WholeLevel, level) for level in self.downs)
        rising, last = (cast(WholeLevel, level) for level in self.ups)
        first, second, *middle, before_last, at_last = context.biases.unbind()
        skip = outer(features, first, mask, inside)
        half_skip = inner(outer.conv(within(skip, inside)), second, half_mask, half_inside)
        h = inner.conv(within(half_skip, half_inside))
        for level, bias in zip(self.mid, middle, strict=True):
            h = level(h, bias, half_mask, half_inside)
        h = rising(torch.cat((h, half_skip), dim=-1), before_last, half_mask, half_inside)
        h = rising.conv(within(h, half_inside))[:, : skip.shape[1]]
        h = last(torch.cat((h, skip), dim=-1), at_last, mask, inside)
        h = self.final_conv(within(last.conv(within(h, inside)), inside))
        return self.out(mish(self.final_norm(h, inside)))

    def lay_out(self) -> None:
        """Do nothing: inference reads the weights in the order of the checkpoint."""
