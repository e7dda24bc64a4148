"""Self-attention with relative sinusoidal positions (Transformer-XL, arXiv:1901.02860, appendix B)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention


def relative_positions(size: int, channels: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Sinusoids of the relative positions size − 1 … −(size − 1), sine in even and cosine in odd channels.

    →  [2 · size − 1, channels]
    """
    position = torch.arange(size - 1, -size, -1, device=device, dtype=torch.float32)
    rate = torch.exp(torch.arange(0, channels, 2, device=device, dtype=torch.float32) * -(math.log(10000.0) / channels))
    angle = position[:, None] * rate
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1).to(dtype)


class RelativeAttention(nn.Module):
    """Attention whose scores add content and distance: (q + u)·k + (q + v)·p(i − j)."""

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

    def forward(self, x: Tensor, table: Tensor, mask: Tensor) -> Tensor:
        """x: [batch, time, size]; table: of `relative_positions(time)`; mask: [batch, 1, 1 or time, time] bool, True
        where a query may look  →  [batch, time, size].
        """
        batch, time, size = x.shape
        query = self.query(x).view(batch, time, self.num_heads, self.head_dim)
        key = self.key(x).view(batch, time, self.num_heads, self.head_dim).transpose(1, 2)
        value = self.value(x).view(batch, time, self.num_heads, self.head_dim).transpose(1, 2)
        position = self.position(table).view(-1, self.num_heads, self.head_dim).permute(1, 2, 0)
        distance = _shift((query + self.position_bias).transpose(1, 2) @ position) / math.sqrt(self.head_dim)
        bias = distance.masked_fill(~mask, float("-inf"))
        out = scaled_dot_product_attention((query + self.content_bias).transpose(1, 2), key, value, attn_mask=bias)
        return self.out(out.transpose(1, 2).reshape(batch, time, size))


def _shift(scores: Tensor) -> Tensor:
    """Turn columns of relative positions into columns of keys: out[i, j] = scores[i, time − 1 − i + j].

    scores: [batch, heads, time, 2 · time − 1]  →  [batch, heads, time, time]
    """
    batch, heads, time, _ = scores.shape
    padded = pad(scores, (1, 0)).view(batch, heads, 2 * time, time)
    return padded[:, :, 1:].reshape(batch, heads, time, 2 * time - 1)[..., :time]
