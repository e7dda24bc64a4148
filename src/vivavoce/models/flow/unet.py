"""CosyVoice2's flow networks (arXiv:2412.10117, section 2.4).

An upsampling conformer computes mu, the flow's condition at mel rate; a causal U-Net estimates the flow's velocity.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, leaky_relu, linear, pad, scaled_dot_product_attention, silu

from vivavoce.checkpoint.config import DiTConfig, TokenEncoderConfig, UNetConfig
from vivavoce.models.layers import (
    ConformerBlock,
    Embed,
    FeedForward,
    Memory,
    MemoryShape,
    RelativeAttention,
    RelativeSpan,
    valid_positions,
)
from vivavoce.models.layout import (
    MANY_ROWS,
    Linear,
    Product,
    convolve,
    joined,
    lay_for_windows,
    lay_together,
    mish,
    pack_windows,
    packed,
    packs,
)

KERNEL = 3
HISTORY_KERNEL, UPSAMPLING_KERNEL = 3, 5
TIME_SCALE = 1000.0
EXPANSION = 4


class TokenEncoder(nn.Module):
    """Embedded tokens → mu. A token's output depends only on its lookahead and on tokens that it may attend to."""

    def __init__(self, config: TokenEncoderConfig, num_mel_bins: int) -> None:
        super().__init__()
        self.config = config
        size, inner = config.hidden_size, config.feed_forward_size
        self.embed = Embed(config.input_size, size)
        self.lookahead_conv = nn.Conv1d(size, size, config.lookahead + 1)
        self.history_conv = nn.Conv1d(size, size, HISTORY_KERNEL)
        self.blocks = nn.ModuleList(ConformerBlock(size, config.num_heads, inner) for _ in range(config.num_blocks))
        self.up_conv = nn.Conv1d(size, size, UPSAMPLING_KERNEL)
        self.up_embed = Embed(size, size)
        self.up_blocks = nn.ModuleList(
            ConformerBlock(size, config.num_heads, inner) for _ in range(config.num_up_blocks)
        )
        self.norm = nn.LayerNorm(size, eps=1e-5)
        self.mu_projection = nn.Linear(size, num_mel_bins)
        for blocks in (self.blocks, self.up_blocks):
            attentions = (module for module in blocks.modules() if isinstance(module, RelativeAttention))
            for site, attention in enumerate(attentions):
                attention.site = site

    @property
    def memory_shapes(self) -> tuple[MemoryShape, MemoryShape]:
        """Shapes of the memories at token rate, and at mel rate after upsampling."""
        config, size = self.config, self.config.hidden_size
        return (
            MemoryShape(config.num_blocks, 2 * size, HISTORY_KERNEL - 1, size),
            MemoryShape(config.num_up_blocks, 2 * size, UPSAMPLING_KERNEL - 1, size),
        )

    def encode(
        self,
        x: Tensor,
        lengths: Tensor,
        size: int,
        masks: tuple[Tensor | None, Tensor | None],
        keys: int | None = None,
        past: Tensor | None = None,
        memory: tuple[Memory, Memory] | None = None,
        lookahead_ends: Tensor | None = None,
    ) -> Tensor:
        """Encode a chunk of tokens, with earlier and later tokens as context → mu [batch, frames, mel bins].

        x: [batch, tokens, input], embedded tokens including lookahead. lengths: [batch] int64, tokens of each row;
        beyond them, the lookahead is zeros, as at the end of an utterance. size: number of tokens to encode. masks: for
        tokens and for frames, [batch, 1, 1 or size, keys] bool, True for keys to attend to; None means all keys. keys:
        number of tokens in the longest row, with its past, or None if this is `size`. past: [batch] int64, number of
        earlier tokens of each row, or None if this is keys − size for all rows. memory: cached state at token rate and
        at mel rate, see `memory_shapes`, or None without a past. lookahead_ends: [batch, size] int64, for each token,
        the position in `x` from which its lookahead is zeros, or None if this is the row's end."""
        config, keys = self.config, keys or size
        of_tokens, of_frames = memory or (None, None)
        x = self.embed(x) * valid_positions(lengths, x.shape[1])[..., None]
        x = look_ahead(x, size, self.lookahead_conv, self.history_conv, of_tokens, lookahead_ends)
        span = RelativeSpan.of(x, keys, masks[0], past)
        for block in self.blocks:
            x = block(x, span, of_tokens)
        x = x.repeat_interleave(config.upsampling, dim=1)
        x = pad(x, (0, 0, UPSAMPLING_KERNEL - 1, 0)) if of_frames is None else of_frames.extend(0, x)
        x = self.up_embed(convolve(x, self.up_conv.weight, self.up_conv.bias))
        past = None if past is None else past * config.upsampling
        span = RelativeSpan.of(x, keys * config.upsampling, masks[1], past)
        for block in self.up_blocks:
            x = block(x, span, of_frames)
        return self.mu_projection(self.norm(x))

    def lay_out(self) -> None:
        for conv in (self.lookahead_conv, self.history_conv, self.up_conv):
            lay_for_windows(conv)


def look_ahead(
    x: Tensor, size: int, ahead: nn.Conv1d, behind: nn.Conv1d, memory: Memory | None, lookahead_ends: Tensor | None
) -> Tensor:
    """Convolve each token with later tokens, and the result with earlier results, and add the token.

    x: [batch, tokens, channels] → [batch, size, channels]; memory, lookahead_ends: as in `TokenEncoder.encode`."""
    y = pad(x, (0, 0, 0, size + ahead.kernel_size[0] - 1 - x.shape[1]))
    if lookahead_ends is None:
        y = convolve(y, ahead.weight, ahead.bias)
    else:
        y = _up_to_ends(y, lookahead_ends, ahead.weight, ahead.bias)
    # The official layer uses PyTorch's default slope, unlike the vocoder.
    y = leaky_relu(y, 0.01)
    y = pad(y, (0, 0, HISTORY_KERNEL - 1, 0)) if memory is None else memory.extend(0, y)
    return x[:, :size] + convolve(y, behind.weight, behind.bias)


def _up_to_ends(x: Tensor, lookahead_ends: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Do as `convolve`, but let the window at [batch, time] read zeros from position lookahead_ends[batch, time] on."""
    batch, time = lookahead_ends.shape
    windows = x.unfold(1, weight.shape[2], 1).transpose(2, 3)
    position = torch.arange(time, device=x.device)[:, None] + torch.arange(weight.shape[2], device=x.device)
    heard = windows * (position < lookahead_ends[..., None])[..., None]
    return convolve(heard.flatten(0, 1), weight, bias).view(batch, time, -1)


class CausalConv(nn.Conv1d):
    first = 0  # index of its first channel among the input channels of all causal convolutions
    product: Product | None = None  # the product with packed weights, see `lay_out`

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__(in_channels, channels, KERNEL)

    def forward(self, x: Tensor, memory: Memory | None = None) -> Tensor:
        x = pad(x, (0, 0, KERNEL - 1, 0)) if memory is None else memory.extend(self.first, x)
        return convolve(x, self.weight, self.bias, self.product)


class PointwiseConv(nn.Conv1d):
    product: Product | None = None  # the product with packed weights, see `lay_out`

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__(in_channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.product is None or torch.is_grad_enabled():
            return linear(x, self.weight[..., 0], self.bias)
        return self.product(x)


class TimeEmbedding(nn.Module):
    """Flow time → features: sinusoids (arXiv:2006.11239), then two linear layers with SiLU between them."""

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
    """query: [batch, frames, inner]; keys: keys and values [batch, keys, 2 · inner] → result in the shape of query."""
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
        """x: [batch, frames, in] → [batch, frames, channels]; the caller applies `conv`."""
        x = self.resnet(x, bias, memory)
        for block in self.blocks:
            x = block(x, mask, memory)
        return x


class VelocityContext(NamedTuple):
    """Inputs besides the features. biases: result of `time_biases`, for each row or for all rows. mask: [batch, 1, 1 or
    frames, keys], bool or additive; None means that every frame attends to every key. memory: cached state, or None if
    rows have no past. positions: [batch or 1, frames] int, position of each frame in its row, for `DiT` only; None
    means 0, 1, 2 …."""

    biases: Tensor
    mask: Tensor | None = None
    memory: Memory | None = None
    positions: Tensor | None = None


class VelocityEstimator(nn.Module):
    """Estimates the flow's velocity from x, mu, speaker, condition and t: `UNet` in CosyVoice2, `DiT` in CosyVoice3."""

    config: UNetConfig | DiTConfig

    def time_biases(self, t: Tensor) -> Tensor:
        """Compute all terms that depend only on flow time; t: [batch] float32 → [levels, batch, 1, channels]."""
        raise NotImplementedError

    def velocity(self, features: Tensor, context: VelocityContext) -> Tensor:
        """features: x, mu, speaker (in all frames), condition: [batch, frames, in] → velocity [batch, frames, bins]."""
        raise NotImplementedError


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
