"""What the token encoder computes between its products, value by value or row by row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from vivavoce.models.kernels.compile_ahead import launched
from vivavoce.models.kernels.flow_math import layer_norm_rows

_VALUES = 4096


@dataclass(frozen=True, eq=False)
class ShiftedNorm:
    """A LayerNorm of x + shift; all [channels], shift: what every row of x has too little, if below 0 too much."""

    shift: Tensor
    weight: Tensor
    bias: Tensor
    eps: float


@triton.jit(do_not_specialize=["num_rows"])
def _norm(
    x,
    shift,
    weight,
    bias,
    out,
    num_rows,
    EPS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    row, channel = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = channel < SIZE
    there = (row < num_rows)[:, None] & inside[None, :]
    at = row[:, None] * SIZE + channel[None, :]
    value = tl.load(x + at, there, 0.0).to(tl.float32) + tl.load(shift + channel, inside, 0.0)[None, :].to(tl.float32)
    value = layer_norm_rows(
        value, tl.load(weight + channel, inside, 0.0), tl.load(bias + channel, inside, 0.0), inside, SIZE, EPS
    )
    tl.store(out + at, value.to(out.dtype.element_ty), there)


@triton.jit(do_not_specialize=["count"])
def _silu(x, count, VALUES: tl.constexpr):
    at = tl.program_id(0) * VALUES + tl.arange(0, VALUES)
    value = tl.load(x + at, at < count, 0.0).to(tl.float32)
    tl.store(x + at, (value / (1 + tl.exp(-value))).to(x.dtype.element_ty), at < count)


def layer_norm(x: Tensor, norm: ShiftedNorm, rows: int) -> Tensor:
    """LayerNorm(x + shift), in float32 inside.

    x: [rows, channels] float32 or 16 bit, contiguous; rows: of one program  →  as x
    """
    out = torch.empty_like(x)
    count, size = x.shape
    launched(_norm, (triton.cdiv(count, rows),))(
        x,
        norm.shift,
        norm.weight,
        norm.bias,
        out,
        count,
        norm.eps,
        size,
        triton.next_power_of_2(size),
        rows,
        num_warps=4,
    )
    return out


def silu_(x: Tensor) -> Tensor:
    """x · sigmoid(x) in place; x: contiguous, fewer than 2³¹ values  →  x."""
    count = x.numel()
    launched(_silu, (triton.cdiv(count, _VALUES),))(x, count, _VALUES, num_warps=4)
    return x
