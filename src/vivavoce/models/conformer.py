"""Conformer blocks with relative attention, for CosyVoice's encoders and CosyVoice 1's language model."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import silu

from vivavoce.checkpoint.config import ConformerConfig
from vivavoce.models.layers import FeedForward, Memory, RelativeAttention, RelativeSpan

ATTENTION_NORM_EPS = 1e-12


class Embed(nn.Module):
    """Linear and LayerNorm, scaled by sqrt(size) like the position table (which is added in attention)."""

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(input_size, size)
        self.norm = nn.LayerNorm(size, eps=1e-5)
        self.scale = math.sqrt(size)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x)) * self.scale


class ConformerBlock(nn.Module):
    """Pre-norm relative attention and feed-forward; this family's conformer has no convolution module."""

    def __init__(self, size: int, num_heads: int, inner: int, activation: Callable[[Tensor], Tensor] = silu) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(size, eps=ATTENTION_NORM_EPS)
        self.attention = RelativeAttention(size, num_heads)
        self.feed_forward_norm = nn.LayerNorm(size, eps=ATTENTION_NORM_EPS)
        self.feed_forward = FeedForward(size, inner, activation)

    def forward(self, x: Tensor, span: RelativeSpan, memory: Memory | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), span, memory)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Conformer(nn.Module):
    """CosyVoice 1's stack of blocks; activation: in the feed-forwards; embedded: after the embedding, None: none."""

    def __init__(
        self,
        config: ConformerConfig,
        activation: Callable[[Tensor], Tensor] = silu,
        embedded: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        size = config.hidden_size
        self.embed = Embed(config.input_size, size)
        self.blocks = nn.ModuleList(
            ConformerBlock(size, config.num_heads, config.feed_forward_size, activation)
            for _ in range(config.num_blocks)
        )
        self.norm = nn.LayerNorm(size, eps=1e-5)
        self._embedded = embedded

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x: [batch, time, input]; mask: [batch, 1, 1 or time, time] bool, None: attend to all  →  [.., size]."""
        x = self.embed(x) if self._embedded is None else self._embedded(self.embed(x))
        span = RelativeSpan.of(x, x.shape[1], mask)
        for block in self.blocks:
            x = block(x, span, None)
        return self.norm(x)
