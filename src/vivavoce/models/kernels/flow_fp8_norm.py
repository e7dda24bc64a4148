"""LayerNorm of a residual stream, into e4m3: the product that follows reads half of the bytes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vivavoce.models.kernels.flow_fp8_math import as_e4m3, e4m3_scales
from vivavoce.models.kernels.flow_fp8_product import Rows
from vivavoce.models.kernels.flow_math import layer_norm_rows
from vivavoce.models.kernels.flow_norm import Norm
from vivavoce.models.quantised import E4M3

_ROWS = 16


@triton.jit(do_not_specialize=["num_rows"])
def _norm_e4m3(
    x, shift, weight, bias, out, scales, num_rows, SIZE: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    row, channel = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, BLOCK)
    inside = channel < SIZE
    there = (row < num_rows)[:, None] & inside[None, :]
    at = row[:, None] * SIZE + channel[None, :]
    value = tl.load(x + at, there, 0.0).to(tl.float32) + tl.load(shift + channel, inside, 0.0)[None, :].to(tl.float32)
    value = layer_norm_rows(
        value, tl.load(weight + channel, inside, 0.0), tl.load(bias + channel, inside, 0.0), inside, SIZE
    )
    scale = e4m3_scales(value)
    tl.store(out + at, as_e4m3(value, scale), there)
    tl.store(scales + row, scale, row < num_rows)


def shifted_layer_norm_e4m3(x: Tensor, norm: Norm) -> Rows:
    """LayerNorm(x + shift) with one scale for each row; x: [rows, channels] float32 or 16 bit, contiguous."""
    rows, size = x.shape
    out = torch.empty(rows, size, dtype=E4M3, device=x.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(size)
    _norm_e4m3[(triton.cdiv(rows, _ROWS),)](
        x, norm.shift, norm.weight, norm.bias, out, scales, rows, size, block, _ROWS, num_warps=4
    )
    return Rows(out, scales)
