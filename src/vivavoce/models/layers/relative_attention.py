"""Self-attention with relative sinusoidal positions (Transformer-XL, arXiv:1901.02860, appendix B)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention


class KeyMemory(Protocol):
    """Gives an attention the keys and values of its rows' past."""

    def recall(self, site: int, keys: Tensor) -> Tensor:
        """keys: [batch, time, 2 · size], new keys and values side by side  →  [batch, keys, 2 · size]."""
        ...


def relative_positions(queries: int, keys: int, channels: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Sinusoids of the relative positions keys − 1 … −(queries − 1), sine in even and cosine in odd channels.

    →  [keys + queries − 1, channels]
    """
    position = torch.arange(keys - 1, -queries, -1, device=device, dtype=torch.float32)
    rate = torch.exp(torch.arange(0, channels, 2, device=device, dtype=torch.float32) * -(math.log(10000.0) / channels))
    angle = position[:, None] * rate
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1).to(dtype)


@dataclass(frozen=True, eq=False)
class Sight:
    """What the queries of a padded batch see, and how far from them it lies.

    mask: [batch, 1, 1 or queries, keys] bool, True where a query may look, None if that is everywhere; table: of
    `relative_positions`; columns: [batch, 1, queries, keys] int64, the table's row for each pair, None if the last
    query stands at the last key in every row.
    """

    mask: Tensor | None
    keys: int
    table: Tensor
    columns: Tensor | None = None

    @classmethod
    def of(cls, x: Tensor, keys: int, mask: Tensor | None, past: Tensor | None = None) -> Sight:
        """For queries x: [batch, queries, size].

        past: [batch] int64, the position of each row's first query; None: keys − queries for all.
        """
        queries = x.shape[1]
        table = relative_positions(queries, keys, x.shape[2], x.device, x.dtype)
        if past is None:
            return cls(mask, keys, table)
        query, key = (torch.arange(size, device=x.device) for size in (queries, keys))
        columns = key - query[:, None] + (keys - 1 - past)[:, None, None, None]
        # Positions of padding may lie further apart than the table reaches; nothing depends on what they see.
        return cls(mask, keys, table, columns.clamp_(0, len(table) - 1))

    def by_key(self, scores: Tensor) -> Tensor:
        """Turn columns of relative positions into columns of keys.

        scores: [batch, heads, queries, keys + queries − 1]  →  [batch, heads, queries, keys]
        """
        if self.columns is not None:
            return scores.gather(3, self.columns.expand(-1, scores.shape[1], -1, -1))
        # Query i finds key j in column queries − 1 − i + j: rows that are read one column further each.
        batch, heads, queries, width = scores.shape
        padded = pad(scores, (1, 0)).view(batch, heads, width + 1, queries)
        return padded[:, :, 1:].reshape(batch, heads, queries, width)[..., : self.keys]


class RelativeAttention(nn.Module):
    """Attention whose scores add content and distance: (q + u)·k + (q + v)·p(i − j)."""

    site = 0
    """Its place among the attentions that share a memory."""

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

    def forward(self, x: Tensor, sight: Sight, memory: KeyMemory | None = None) -> Tensor:
        """x: [batch, time, size]; memory: of what precedes x  →  [batch, time, size]."""
        heads = (self.num_heads, self.head_dim)
        query = self.query(x).unflatten(-1, heads)
        key, value = self.key(x), self.value(x)
        if memory is not None:
            key, value = memory.recall(self.site, torch.cat((key, value), dim=-1)).chunk(2, dim=-1)
        position = self.position(sight.table).unflatten(-1, heads).permute(1, 2, 0)
        bias = sight.by_key((query + self.position_bias).transpose(1, 2) @ position) / math.sqrt(self.head_dim)
        if sight.mask is not None:
            bias = bias.masked_fill(~sight.mask, float("-inf"))
        out = scaled_dot_product_attention(
            (query + self.content_bias).transpose(1, 2),
            key.unflatten(-1, heads).transpose(1, 2),
            value.unflatten(-1, heads).transpose(1, 2),
            attn_mask=bias,
        )
        return self.out(out.transpose(1, 2).flatten(2))
