"""The causal U-Net that estimates the flow's velocity (CosyVoice2, arXiv:2412.10117, section 2.4)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, pad, scaled_dot_product_attention, silu

from vivavoce.checkpoint.config import DiTConfig, UNetConfig
from vivavoce.models.flow.layout import convolve, joined, lay_for_windows, mish, pack_windows
from vivavoce.models.layers import FeedForward, Memory, MemoryShape, lay_together, visible_keys
from vivavoce.models.packed_linear import MANY_ROWS, Linear, Product, packed, packs

KERNEL = 3
TIME_SCALE = 1000.0
EXPANSION = 4


class CausalConv(nn.Conv1d):
    first = 0  # index of its first input channel among the inputs of all causal convolutions of the network
    product: Product | None = None  # with packed weights

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__(in_channels, channels, KERNEL)

    def forward(self, x: Tensor, memory: Memory | None = None) -> Tensor:
        x = pad(x, (0, 0, KERNEL - 1, 0)) if memory is None else memory.extend(self.first, x)
        return convolve(x, self.weight, self.bias, self.product)


class PointwiseConv(nn.Conv1d):
    product: Product | None = None  # with packed weights

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__(in_channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.product is None or torch.is_grad_enabled():
            return linear(x, self.weight[..., 0], self.bias)
        return self.product(x)


class TimeEmbedding(nn.Module):
    """Flow time → features: sinusoids (arXiv:2006.11239), then two linear layers around SiLU."""

    def __init__(self, sinusoids: int, size: int) -> None:
        super().__init__()
        self.sinusoids = sinusoids
        self.expand = nn.Linear(sinusoids, size)
        self.project = nn.Linear(size, size)

    def forward(self, t: Tensor) -> Tensor:
        half = self.sinusoids // 2
        steps = torch.arange(half, device=t.device, dtype=torch.float32)
        angle = TIME_SCALE * t[:, None] * torch.exp(steps * -(math.log(10000.0) / (half - 1)))
        x = torch.cat((angle.sin(), angle.cos()), dim=-1).to(self.expand.weight.dtype)
        return self.project(silu(self.expand(x)))


class ResnetBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int, time_size: int) -> None:
        super().__init__()
        self.time_projection = nn.Linear(time_size, channels)
        self.conv1 = CausalConv(in_channels, channels)
        self.norm1 = nn.LayerNorm(channels)
        self.conv2 = CausalConv(channels, channels)
        self.norm2 = nn.LayerNorm(channels)
        self.shortcut = PointwiseConv(in_channels, channels)

    def forward(self, x: Tensor, bias: Tensor, memory: Memory | None) -> Tensor:
        h = mish(self.norm1(self.conv1(x, memory)))
        h = mish(self.norm2(self.conv2(h + bias, memory)))
        return h + self.shortcut(x)


def attend(query: Tensor, keys: Tensor, num_heads: int, mask: Tensor | None) -> Tensor:
    """query: [batch, frames, inner]; keys: [batch, keys, 2 · inner], keys and values side by side  →  like query."""
    key, value = keys.chunk(2, dim=-1)
    query, key, value = (x.unflatten(2, (num_heads, -1)).transpose(1, 2) for x in (query, key, value))
    return scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2).flatten(2)


class SelfAttention(nn.Module):
    site = 0  # index of this layer among the network's attention layers
    product: Product | None = None  # computes query, key and value at once from packed weights

    def __init__(self, channels: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        inner = num_heads * head_dim
        self.query = nn.Linear(channels, inner, bias=False)
        self.key = nn.Linear(channels, inner, bias=False)
        self.value = nn.Linear(channels, inner, bias=False)
        self.out = Linear(inner, channels)

    def forward(self, x: Tensor, mask: Tensor | None, memory: Memory | None) -> Tensor:
        if self.product is None or torch.is_grad_enabled():
            projected = linear(x, joined((self.query.weight, self.key.weight, self.value.weight)))
        else:
            projected = self.product(x)
        inner = self.out.in_features
        query, keys = projected[..., :inner], projected[..., inner:]
        if memory is not None:
            keys = memory.recall(self.site, keys)
        return self.out(attend(query, keys, self.num_heads, mask))


class TransformerBlock(nn.Module):
    def __init__(self, channels: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(channels)
        self.attention = SelfAttention(channels, num_heads, head_dim)
        self.feed_forward_norm = nn.LayerNorm(channels)
        self.feed_forward = FeedForward(channels, EXPANSION * channels, gelu)

    def forward(self, x: Tensor, mask: Tensor | None, memory: Memory | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), mask, memory)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Level(nn.Module):
    def __init__(self, in_channels: int, config: UNetConfig, time_size: int, with_conv: bool) -> None:
        super().__init__()
        channels = config.channels
        self.resnet = ResnetBlock(in_channels, channels, time_size)
        self.blocks = nn.ModuleList(
            TransformerBlock(channels, config.num_heads, config.head_dim) for _ in range(config.num_blocks)
        )
        if with_conv:
            self.conv = CausalConv(channels, channels)

    def forward(self, x: Tensor, bias: Tensor, mask: Tensor | None, memory: Memory | None) -> Tensor:
        """[batch, frames, in]  →  [batch, frames, channels], before the closing convolution."""
        x = self.resnet(x, bias, memory)
        for block in self.blocks:
            x = block(x, mask, memory)
        return x


class VelocityContext(NamedTuple):
    """biases: from `time_biases`, for each row or one for all; mask: [batch, 1, 1 or frames, keys], bool or additive,
    None: every frame sees every key; memory: None: rows have no past; positions: [batch or 1, frames] int, of each
    frame in its row, None: from 0 on, used by `DiT` only.
    """

    biases: Tensor
    mask: Tensor | None = None
    memory: Memory | None = None
    positions: Tensor | None = None


class VelocityEstimator(nn.Module):
    """(x, mu, speaker, condition, t) → velocity, by `UNet` in CosyVoice2 and by `DiT` in CosyVoice3."""

    config: UNetConfig | DiTConfig

    def time_biases(self, t: Tensor) -> Tensor:
        """All terms that depend on flow time alone; t: [batch] float32  →  [levels, batch, 1, channels]."""
        raise NotImplementedError

    def velocity(self, features: Tensor, context: VelocityContext) -> Tensor:
        """features: [batch, frames, in]: x, mu, the speaker in every frame, and the condition  →  [batch, frames,
        bins].
        """
        raise NotImplementedError

    def forward(
        self, x: Tensor, mu: Tensor, speaker: Tensor, condition: Tensor, t: Tensor, lengths: Tensor, chunked: bool
    ) -> Tensor:
        """x: the point on the path; mu; condition: the prompt's mel and zeros after it: [batch, frames, bins] each;
        speaker: [batch, bins], projected; t: [batch] float32; lengths: [batch] int64, frames within them do not see the
        padding; chunked: attend chunk by chunk (streaming)  →  velocity [batch, frames, bins].
        """
        mask = visible_keys(lengths, x.shape[1], self.config.chunk if chunked else None)
        features = torch.cat((x, mu, speaker[:, None].expand_as(mu), condition), dim=-1)
        return self.velocity(features, VelocityContext(self.time_biases(t), mask))


def level_time_biases(embedding: TimeEmbedding, levels: Iterable[Any], t: Tensor) -> Tensor:
    time = mish(embedding(t))
    return torch.stack([level.resnet.time_projection(time) for level in levels])[:, :, None]


class UNet(VelocityEstimator):
    config: UNetConfig

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.config = config
        channels, time_size = config.channels, config.channels * EXPANSION
        self.time_embedding = TimeEmbedding(config.in_channels, time_size)
        self.down = Level(config.in_channels, config, time_size, with_conv=True)
        self.mid = nn.ModuleList(
            Level(channels, config, time_size, with_conv=False) for _ in range(config.num_mid_blocks)
        )
        self.up = Level(2 * channels, config, time_size, with_conv=True)
        self.final_conv = CausalConv(channels, channels)
        self.final_norm = nn.LayerNorm(channels)
        self.out = PointwiseConv(channels, config.out_channels)
        self.memory_shape = self._number_sites()

    def time_biases(self, t: Tensor) -> Tensor:
        return level_time_biases(self.time_embedding, (self.down, *self.mid, self.up), t)

    def velocity(self, features: Tensor, context: VelocityContext) -> Tensor:
        mask, memory = context.mask, context.memory
        first, *middle, last = context.biases.unbind()
        skip = self.down(features, first, mask, memory)
        h = self.down.conv(skip, memory)
        for level, bias in zip(self.mid, middle, strict=True):
            h = level(h, bias, mask, memory)
        h = self.up(torch.cat((h, skip), dim=-1), last, mask, memory)
        h = self.final_conv(self.up.conv(h, memory), memory)
        return self.out(mish(self.final_norm(h)))

    def lay_out(self) -> None:
        for module in self.modules():
            if isinstance(module, CausalConv):
                lay_for_windows(module)
                module.product = pack_windows(module)
            elif isinstance(module, PointwiseConv):
                module.product = pack_windows(module)
            elif isinstance(module, SelfAttention):
                weight = lay_together((module.query.weight, module.key.weight, module.value.weight))
                module.product = packed(weight, None, MANY_ROWS) if packs(weight) else None
            elif isinstance(module, Linear):
                module.pack()

    def _number_sites(self) -> MemoryShape:
        channels = 0
        for conv in (module for module in self.modules() if isinstance(module, CausalConv)):
            conv.first = channels
            channels += conv.in_channels
        attentions = [module for module in self.modules() if isinstance(module, SelfAttention)]
        for site, attention in enumerate(attentions):
            attention.site = site
        return MemoryShape(len(attentions), 2 * self.config.num_heads * self.config.head_dim, KERNEL - 1, channels)
