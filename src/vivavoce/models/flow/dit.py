"""CosyVoice3's flow networks: a lookahead layer instead of a token encoder, and a transformer for the velocity.

The transformer is a DiT (arXiv:2212.09748) as in F5-TTS (arXiv:2410.06885): flow time sets scale and shift of all
norms, and the gates."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, gelu, layer_norm, linear, pad, silu

from vivavoce.checkpoint.config import DiTConfig, LookaheadConfig
from vivavoce.models.flow.unet import (
    HISTORY_KERNEL,
    TimeEmbedding,
    VelocityContext,
    VelocityEstimator,
    attend,
    look_ahead,
)
from vivavoce.models.layers import FeedForward, Memory, MemoryShape, valid_positions
from vivavoce.models.layout import Linear, lay_for_windows, lay_together, mish

POSITION_KERNEL = 31
POSITION_GROUPS = 16
TIME_SINUSOIDS = 256
NORM_EPS = 1e-6
_ROTARY_BASE = 10000.0
PER_BLOCK = 6  # modulations of a block: shift, scale and gate, for attention and for feed-forward


class LookaheadEncoder(nn.Module):
    """Embedded tokens → mu. Each output reads `lookahead` later tokens and two earlier tokens, and is the same for all
    mel frames of a token."""

    def __init__(self, config: LookaheadConfig) -> None:
        super().__init__()
        self.config = config
        self.lookahead_conv = nn.Conv1d(config.input_size, config.channels, config.lookahead + 1)
        self.history_conv = nn.Conv1d(config.channels, config.input_size, HISTORY_KERNEL)

    @property
    def memory_shapes(self) -> tuple[MemoryShape, MemoryShape]:
        return MemoryShape(0, 0, HISTORY_KERNEL - 1, self.config.channels), MemoryShape(0, 0, 0, 0)

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
        """See `TokenEncoder.encode`. This encoder has no attention, so it ignores masks, keys and past."""
        x = x * valid_positions(lengths, x.shape[1])[..., None]
        of_tokens = memory[0] if memory else None
        mu = look_ahead(x, size, self.lookahead_conv, self.history_conv, of_tokens, lookahead_ends)
        return mu.repeat_interleave(self.config.upsampling, dim=1)

    def lay_out(self) -> None:
        lay_for_windows(self.lookahead_conv)
        lay_for_windows(self.history_conv)


class PositionConv(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv1d(size, size, POSITION_KERNEL, groups=POSITION_GROUPS) for _ in range(2))

    def forward(self, x: Tensor, memory: Memory | None) -> Tensor:
        for index, conv in enumerate(self.convs):
            assert isinstance(conv, nn.Conv1d)
            first = index * x.shape[2]
            x = pad(x, (0, 0, POSITION_KERNEL - 1, 0)) if memory is None else memory.extend(first, x)
            x = mish(conv1d(x.transpose(1, 2), conv.weight, conv.bias, groups=POSITION_GROUPS).transpose(1, 2))
        return x


class RotaryAttention(nn.Module):
    """Self-attention with rotary positions in the first head only, as in the official code."""

    site = 0  # index of this layer among the network's attention layers

    def __init__(self, size: int, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim, inner = num_heads, head_dim, num_heads * head_dim
        self.query, self.key, self.value = (Linear(size, inner) for _ in range(3))
        self.out = Linear(inner, size)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None, memory: Memory | None) -> Tensor:
        query, key = (self._rotated(one(x), rotation) for one in (self.query, self.key))
        keys = torch.cat((key, self.value(x)), dim=-1)
        if memory is not None:
            keys = memory.recall(self.site, keys)
        return self.out(attend(query, keys, self.num_heads, mask))

    def _rotated(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        first, others = x[..., : self.head_dim], x[..., self.head_dim :]
        even, odd = first.unflatten(-1, (-1, 2)).unbind(-1)
        cos, sin = rotation
        turned = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(2)
        return torch.cat((turned.to(x.dtype), others), dim=-1)


def rotation_of(positions: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines for rotary positions, each [rows, frames, dim / 2]; positions: [rows, frames] int."""
    exponent = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions[..., None].float() * (1.0 / _ROTARY_BASE**exponent)
    return angles.cos(), angles.sin()


class DiTBlock(nn.Module):
    """Attention and feed-forward. Flow time sets a shift and a scale before each, and a gate after it (adaLN-Zero)."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.modulation = nn.Linear(config.size, PER_BLOCK * config.size)
        self.attention = RotaryAttention(config.size, config.num_heads, config.head_dim)
        self.feed_forward = FeedForward(config.size, config.expansion * config.size, _tanh_gelu)

    def forward(
        self,
        x: Tensor,
        modulations: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
        memory: Memory | None,
    ) -> Tensor:
        """x: [batch, frames, size]; modulations: [6, batch or 1, 1, size] → result in the shape of x."""
        shift, scale, gate, later_shift, later_scale, later_gate = modulations.unbind()
        x = x + gate * self.attention(_modulated(x, shift, scale), rotation, mask, memory)
        return x + later_gate * self.feed_forward(_modulated(x, later_shift, later_scale))


class DiT(VelocityEstimator):
    config: DiTConfig

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.config = config
        self.time_embedding = TimeEmbedding(TIME_SINUSOIDS, config.size)
        self.input = nn.Linear(config.in_channels, config.size)
        self.position_conv = PositionConv(config.size)
        self.blocks = nn.ModuleList(DiTBlock(config) for _ in range(config.num_blocks))
        for site, attention in enumerate(one for one in self.modules() if isinstance(one, RotaryAttention)):
            attention.site = site
        self.last_modulation = nn.Linear(config.size, 2 * config.size)
        self.out = nn.Linear(config.size, config.out_channels)

    @property
    def memory_shape(self) -> MemoryShape:
        config = self.config
        keys = 2 * config.num_heads * config.head_dim
        return MemoryShape(config.num_blocks, keys, POSITION_KERNEL - 1, 2 * config.size)

    def time_biases(self, t: Tensor) -> Tensor:
        """t: [batch] float32 → modulations [6 · blocks + 2, batch, 1, size]; the last two are for the final norm."""
        time = silu(self.time_embedding(t))
        blocks = [cast(DiTBlock, block) for block in self.blocks]
        parts = [block.modulation(time).chunk(PER_BLOCK, dim=-1) for block in blocks]
        parts.append(self.last_modulation(time).chunk(2, dim=-1))
        return torch.stack([one for part in parts for one in part])[:, :, None]

    def velocity(self, features: Tensor, context: VelocityContext) -> Tensor:
        positions = context.positions
        if positions is None:
            positions = torch.arange(features.shape[1], device=features.device)[None]
        rotation = rotation_of(positions, self.config.head_dim)
        # The weight has the official order of inputs: x, condition, mu, speaker. `features` has x, mu, speaker,
        # condition.
        first, condition, mu, speaker = self.input.weight.chunk(4, dim=1)
        x = linear(features, torch.cat((first, mu, speaker, condition), dim=1), self.input.bias)
        x = x + self.position_conv(x, context.memory)
        *modulations, scale, shift = context.biases.unbind()
        grouped = torch.stack(modulations).unflatten(0, (-1, PER_BLOCK))
        for block, own in zip(self.blocks, grouped, strict=True):
            x = block(x, own, rotation, context.mask, context.memory)
        return self.out(_modulated(x, shift, scale))

    def lay_out(self) -> None:
        for block in self.blocks:
            attention = cast(DiTBlock, block).attention
            lay_together((attention.query.weight, attention.key.weight, attention.value.weight))
        for module in self.modules():
            if isinstance(module, Linear):
                module.pack()


def _modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:], eps=NORM_EPS) * (1 + scale) + shift


def _tanh_gelu(x: Tensor) -> Tensor:
    return gelu(x, approximate="tanh")
