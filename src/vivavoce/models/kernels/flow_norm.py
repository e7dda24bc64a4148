"""LayerNorm of a residual stream to which the biases of some products were not added yet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from vivavoce.models.kernels.flow_math import layer_norm_rows

_ROWS = 16


@dataclass(frozen=True, eq=False)
class Norm:
    """A LayerNorm of x + shift; all [channels]."""

    shift: Tensor
    weight: Tensor
    bias: Tensor


@triton.jit(do_not_specialize=["num_rows"])
def _norm(x, shift, weight, bias, out, num_rows, SIZE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    row, channel = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = channel < SIZE
    there = (row < num_rows)[:, None] & inside[None, :]
    at = row[:, None] * SIZE + channel[None, :]
    value = tl.load(x + at, there, 0.0).to(tl.float32) + tl.load(shift + channel, inside, 0.0)[None, :].to(tl.float32)
    value = layer_norm_rows(
        value, tl.load(weight + channel, inside, 0.0), tl.load(bias + channel, inside, 0.0), inside, SIZE
    )
    tl.store(out + at, value.to(out.dtype.element_ty), there)


def shifted_layer_norm(x: Tensor, shift: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """LayerNorm(x + shift).

    x: [rows, channels] float32 or 16 bit, contiguous; shift: [channels], what every row of x still lacks; weight and
    bias: [channels]  →  as x
    """
    out = torch.empty_like(x)
    rows, size = x.shape
    block = triton.next_power_of_2(size)
    _norm[(triton.cdiv(rows, _ROWS),)](x, shift, weight, bias, out, rows, size, block, _ROWS, num_warps=4)
    return out
