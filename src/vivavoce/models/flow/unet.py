"""The causal U-Net that estimates the flow's velocity (CosyVoice2, arXiv:2412.10117, section 2.4)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, mish, pad, scaled_dot_product_attention, silu

from vivavoce.checkpoint.config import UNetConfig
from vivavoce.models.layers.masks import visible_keys

KERNEL = 3
TIME_SCALE = 1000.0
EXPANSION = 4


class CausalConv(nn.Conv1d):
    """A convolution over [batch, time, channels] that never looks to the right."""

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, time, in]  →  [batch, time, out]."""
        return super().forward(pad(x.transpose(1, 2), (self.kernel_size[0] - 1, 0))).transpose(1, 2)


class TimeEmbedding(nn.Module):
    """Flow time → features: sinusoids (arXiv:2006.11239), then two linear layers around SiLU."""

    def __init__(self, sinusoids: int, size: int) -> None:
        super().__init__()
        self.sinusoids = sinusoids
        self.expand = nn.Linear(sinusoids, size)
        self.project = nn.Linear(size, size)

    def forward(self, t: Tensor) -> Tensor:
        """t: [batch] in [0, 1], float32  →  [batch, size]."""
        half = self.sinusoids // 2
        steps = torch.arange(half, device=t.device, dtype=torch.float32)
        angle = TIME_SCALE * t[:, None] * torch.exp(steps * -(math.log(10000.0) / (half - 1)))
        x = torch.cat((angle.sin(), angle.cos()), dim=-1).to(self.expand.weight.dtype)
        return self.project(silu(self.expand(x)))


class ResnetBlock(nn.Module):
    """Two causal convolutions with LayerNorm over channels and Mish; the time is added between them."""

    def __init__(self, in_channels: int, channels: int, time_size: int) -> None:
        super().__init__()
        self.time_projection = nn.Linear(time_size, channels)
        self.conv1 = CausalConv(in_channels, channels, KERNEL)
        self.norm1 = nn.LayerNorm(channels)
        self.conv2 = CausalConv(channels, channels, KERNEL)
        self.norm2 = nn.LayerNorm(channels)
        self.shortcut = CausalConv(in_channels, channels, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """x: [batch, frames, in]; time: [batch, time_size]  →  [batch, frames, channels]."""
        h = mish(self.norm1(self.conv1(x)))
        h = h + self.time_projection(mish(time))[:, None]
        h = mish(self.norm2(self.conv2(h)))
        return h + self.shortcut(x)


class Attention(nn.Module):
    """Self-attention without positions: the convolutions around it carry them."""

    def __init__(self, channels: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        inner = num_heads * head_dim
        self.query = nn.Linear(channels, inner, bias=False)
        self.key = nn.Linear(channels, inner, bias=False)
        self.value = nn.Linear(channels, inner, bias=False)
        self.out = nn.Linear(inner, channels)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x: [batch, frames, channels]; mask: of `visible_keys`  →  [batch, frames, channels]."""
        query, key, value = (
            projection(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        out = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.out(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers around the exact GELU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.expand = nn.Linear(channels, EXPANSION * channels)
        self.contract = nn.Linear(EXPANSION * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """x: [..., channels]  →  the same shape."""
        return self.contract(gelu(self.expand(x)))


class TransformerBlock(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, channels: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(channels)
        self.attention = Attention(channels, num_heads, head_dim)
        self.feed_forward_norm = nn.LayerNorm(channels)
        self.feed_forward = FeedForward(channels)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x: [batch, frames, channels]  →  the same shape."""
        x = x + self.attention(self.attention_norm(x), mask)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Level(nn.Module):
    """A resnet block, then transformer blocks; the outer levels end with a convolution."""

    def __init__(self, in_channels: int, config: UNetConfig, time_size: int, with_conv: bool) -> None:
        super().__init__()
        channels = config.channels
        self.resnet = ResnetBlock(in_channels, channels, time_size)
        self.blocks = nn.ModuleList(
            TransformerBlock(channels, config.num_heads, config.head_dim) for _ in range(config.num_blocks)
        )
        if with_conv:
            self.conv = CausalConv(channels, channels, KERNEL)

    def forward(self, x: Tensor, time: Tensor, mask: Tensor) -> Tensor:
        """x: [batch, frames, in]  →  [batch, frames, channels], before the closing convolution."""
        x = self.resnet(x, time)
        for block in self.blocks:
            x = block(x, mask)
        return x


class UNet(nn.Module):
    """(x, mu, speaker, condition, t) → velocity. All levels run at mel rate."""

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
        self.final_conv = CausalConv(channels, channels, KERNEL)
        self.final_norm = nn.LayerNorm(channels)
        self.out = nn.Conv1d(channels, config.out_channels, 1)

    def forward(
        self,
        x: Tensor,
        mu: Tensor,
        speaker: Tensor,
        condition: Tensor,
        t: Tensor,
        lengths: Tensor,
        chunked: bool,
    ) -> Tensor:
        """Velocity at flow time t.

        Args:
            x: [batch, frames, bins], the point on the path.
            mu: [batch, frames, bins], the encoder's output.
            speaker: [batch, bins], the projected speaker embedding.
            condition: [batch, frames, bins], the prompt's mel and zeros after it.
            t: [batch] float32.
            lengths: [batch] int64, frames of each row; what stands past them is not seen by what precedes.
            chunked: attend chunk by chunk (streaming) instead of to the whole row.

        Returns:
            [batch, frames, bins]
        """
        mask = visible_keys(lengths, x.shape[1], self.config.chunk if chunked else None)
        time = self.time_embedding(t)
        h = torch.cat((x, mu, speaker[:, None].expand_as(mu), condition), dim=-1)
        skip = self.down(h, time, mask)
        h = self.down.conv(skip)
        for level in self.mid:
            h = level(h, time, mask)
        h = self.up.conv(self.up(torch.cat((h, skip), dim=-1), time, mask))
        h = mish(self.final_norm(self.final_conv(h)))
        return self.out(h.transpose(1, 2)).transpose(1, 2)
