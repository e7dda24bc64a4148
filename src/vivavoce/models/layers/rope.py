"""Rotary position embedding, halves rotated (arXiv:2104.09864, in the layout of Llama and Qwen2)."""

from __future__ import annotations

import torch
from torch import Tensor


def rotary_tables(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines for `positions` in float32.

    positions: [batch, time] int  →  two of [batch, 1, time, head_dim]
    """
    exponent = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions[..., None].float() * (1.0 / theta**exponent)
    angles = torch.cat((angles, angles), dim=-1)[:, None]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (i, i + head_dim / 2) by its position's angle.

    x: [batch, heads, time, head_dim]; cos, sin: [batch, 1, time, head_dim]
    """
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x * cos + turned * sin).to(x.dtype)
