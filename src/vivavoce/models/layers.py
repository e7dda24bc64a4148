"""Building blocks that several networks share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention, silu

from vivavoce.models.layout import Linear

ATTENTION_NORM_EPS = 1e-12


@dataclass(frozen=True)
class MemoryShape:
    """Sizes of a memory. sites: number of attention layers. key_channels: number of channels of a key and its value
    together. tail: number of earlier inputs that each convolution needs. tail_channels: sum of the input channels of
    all convolutions."""

    sites: int
    key_channels: int
    tail: int
    tail_channels: int


class Memory(Protocol):
    """Cached state of a batch's rows for one pass through a network. Each call returns a layer's old state and saves
    its new state, so each layer must call it once."""

    def extend(self, first: int, x: Tensor) -> Tensor:
        """Prepend the past inputs of a convolution to its input; x: [batch, time, channels] → [batch, tail + time,
        channels]. first: index of this convolution's first channel among the channels of all convolutions."""
        ...

    def recall(self, site: int, keys: Tensor) -> Tensor:
        """Store new keys and values [batch, time, key channels] of attention layer `site`. Return all keys and values
        of the rows, [batch, keys, key channels]; beyond a row's end they are arbitrary, but finite."""
        ...


class PairRunner(Protocol):
    """Computes two independent tensors, one after the other or in parallel."""

    def __call__(self, first: Callable[[], Tensor], second: Callable[[], Tensor]) -> tuple[Tensor, Tensor]: ...


def in_turn(first: Callable[[], Tensor], second: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
    return first(), second()


def valid_positions(lengths: Tensor, size: int) -> Tensor:
    """Return a mask [batch, size] bool, True for positions within each row's length; lengths: [batch] int."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def keys_before(ends: Tensor, size: int) -> Tensor:
    """Return a mask [batch, 1, queries, size] bool, True for keys before a query's end; ends: [batch, queries] int."""
    return (torch.arange(size, device=ends.device) < ends[..., None])[:, None]


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert a bool mask [batch, 1, queries, keys] to 0 where it is True, and −inf elsewhere. The result has the same
    shape, but its rows start at multiples of 16 values, as fused kernels need."""
    *shape, keys = mask.shape
    bias = torch.zeros(*shape, keys + -keys % 16, dtype=dtype, device=mask.device)[..., :keys]
    return bias.masked_fill_(~mask, float("-inf"))


def zero_padding(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Set x [batch, channels, time] to zero beyond each row's length; lengths: [batch] int, None if rows are full."""
    if lengths is None:
        return x
    return x.masked_fill(~valid_positions(lengths, x.shape[-1])[:, None, :], 0)


class FeedForward(nn.Module):
    def __init__(self, size: int, inner: int, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.expand = Linear(size, inner)
        self.contract = Linear(inner, size)
        self._activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(self._activation(self.expand(x)))


class RMSNorm(nn.Module):
    """x / rms(x) · weight over the last dimension; the mean is always computed in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(x.dtype)


def rotary_tables(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, each [batch, 1, time, head_dim] float32, for positions [batch, time] int."""
    exponent = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions[..., None].float() * (1.0 / theta**exponent)
    angles = torch.cat((angles, angles), dim=-1)[:, None]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs (i, i + head_dim / 2) of x [batch, heads, time, head_dim]; cos, sin: [batch, 1, time, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x * cos + turned * sin).to(x.dtype)


def relative_positions(queries: int, keys: int, channels: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return sinusoids for the relative positions keys − 1 … −(queries − 1): [keys + queries − 1, channels], with sines
    in even channels and cosines in odd channels."""
    position = torch.arange(keys - 1, -queries, -1, device=device, dtype=torch.float32)
    rate = torch.exp(torch.arange(0, channels, 2, device=device, dtype=torch.float32) * -(math.log(10000.0) / channels))
    angle = position[:, None] * rate
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1).to(dtype)


@dataclass(frozen=True, eq=False)
class RelativeSpan:
    """Keys and distances of a call of `RelativeAttention`. mask: [batch, 1, 1 or queries, keys] bool, True where a
    query may attend; None means everywhere. keys: number of keys. table: result of `relative_positions`. columns:
    [batch, 1, queries, keys] int64, the table's row for each query and key; None if in every row the last query is at
    the position of the last key."""

    mask: Tensor | None
    keys: int
    table: Tensor
    columns: Tensor | None = None

    @classmethod
    def of(cls, x: Tensor, keys: int, mask: Tensor | None, past: Tensor | None = None) -> RelativeSpan:
        """x: [batch, queries, size]; past: [batch] int64, number of earlier keys, by default keys − queries."""
        queries = x.shape[1]
        table = relative_positions(queries, keys, x.shape[2], x.device, x.dtype)
        if past is None:
            return cls(mask, keys, table)
        query, key = (torch.arange(size, device=x.device) for size in (queries, keys))
        columns = key - query[:, None] + (keys - 1 - past)[:, None, None, None]
        # Padding may have distances outside the table; its results are not used.
        return cls(mask, keys, table, columns.clamp_(0, len(table) - 1))

    def by_key(self, scores: Tensor) -> Tensor:
        """Rearrange scores by distance, [batch, heads, queries, keys + queries − 1], to scores by key, [batch, heads,
        queries, keys]."""
        if self.columns is not None:
            return scores.gather(3, self.columns.expand(-1, scores.shape[1], -1, -1))
        # The score of query i and key j is in column queries − 1 − i + j: one column earlier for each query.
        batch, heads, queries, width = scores.shape
        padded = pad(scores, (1, 0)).view(batch, heads, width + 1, queries)
        return padded[:, :, 1:].reshape(batch, heads, queries, width)[..., : self.keys]


class RelativeAttention(nn.Module):
    """Attention with relative positions: the score is the sum of content and distance, (q + u)·k + (q + v)·p(i − j)."""

    site = 0  # index among the attention layers that share a memory

    def __init__(self, size: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim = num_heads, size // num_heads
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(size, size)
        self.value = nn.Linear(size, size)
        self.out = nn.Linear(size, size)
        self.position = nn.Linear(size, size, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(num_heads, self.head_dim))
        self.position_bias = nn.Parameter(torch.zeros(num_heads, self.head_dim))

    def forward(self, x: Tensor, span: RelativeSpan, memory: Memory | None = None) -> Tensor:
        heads = (self.num_heads, self.head_dim)
        query = self.query(x).unflatten(-1, heads)
        key, value = self.key(x), self.value(x)
        if memory is not None:
            key, value = memory.recall(self.site, torch.cat((key, value), dim=-1)).chunk(2, dim=-1)
        position = self.position(span.table).unflatten(-1, heads).permute(1, 2, 0)
        bias = span.by_key((query + self.position_bias).transpose(1, 2) @ position) / math.sqrt(self.head_dim)
        if span.mask is not None:
            bias = bias.masked_fill(~span.mask, float("-inf"))
        out = scaled_dot_product_attention(
            (query + self.content_bias).transpose(1, 2),
            key.unflatten(-1, heads).transpose(1, 2),
            value.unflatten(-1, heads).transpose(1, 2),
            attn_mask=bias,
        )
        return self.out(out.transpose(1, 2).flatten(2))


class Embed(nn.Module):
    """A linear layer, LayerNorm and a factor sqrt(size). The attention layers, not this layer, add positions."""

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(input_size, size)
        self.norm = nn.LayerNorm(size, eps=1e-5)
        self.scale = math.sqrt(size)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x)) * self.scale


class ConformerBlock(nn.Module):
    """Relative attention and feed-forward, each with a norm before it; CosyVoice's conformers have no convolution."""

    def __init__(self, size: int, num_heads: int, inner: int, activation: Callable[[Tensor], Tensor] = silu) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(size, eps=ATTENTION_NORM_EPS)
        self.attention = RelativeAttention(size, num_heads)
        self.feed_forward_norm = nn.LayerNorm(size, eps=ATTENTION_NORM_EPS)
        self.feed_forward = FeedForward(size, inner, activation)

    def forward(self, x: Tensor, span: RelativeSpan, memory: Memory | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), span, memory)
        return x + self.feed_forward(self.feed_forward_norm(x))
