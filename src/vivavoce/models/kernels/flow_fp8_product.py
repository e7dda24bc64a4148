"""Products of the flow's linear layers in e4m3, with what surrounds them.

Rows carry scales of their own, which their maker finds: one for the whole row, or one for each group of channels,
where a program sees no more of the row than that (in the manner of arXiv:2412.19437, section 3.3.2). Rows of 16 bit
are turned into e4m3 on the way to the tensor cores. Tiles are the same for every batch, and sums have one order: what
a row computes does not depend on its neighbours.

torch's own `_scaled_mm` has neither the residual sum nor a result in e4m3 with scales that it finds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from vivavoce.models.kernels.flow_fp8_math import as_e4m3, e4m3_scales, gelu_by_tanh
from vivavoce.models.kernels.flow_math import tile_of
from vivavoce.models.quantised import E4M3, GROUP, EightBits


@dataclass(frozen=True, eq=False)
class Rows:
    """values: [rows, channels] e4m3; scales: [rows, groups] float32; a group is channels / groups of them, and means
    its values · its scale.
    """

    values: Tensor
    scales: Tensor


@dataclass(frozen=True)
class Fp8Tile:
    """How the work is cut: rows and columns of one program, inputs at a time; warps and pipeline stages of its loop."""

    rows: int
    columns: int
    inputs: int
    warps: int
    stages: int


TILE = Fp8Tile(128, 128, GROUP, 8, 3)
"""Of every product, as far as its sizes allow."""


@triton.jit(do_not_specialize=["num_rows"])
def _fp8_product(
    x,
    scales,
    weight,
    weight_scales,
    bias,
    out,
    out_scales,
    num_rows,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    GROUPS: tl.constexpr,
    EXPAND: tl.constexpr,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    # Columns go first: programs of the same rows run together, and read them once.
    column, row = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    part = tl.arange(0, INPUTS)
    present = row < num_rows
    there = present[:, None]
    sum = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, IN, INPUTS):
        channel = start + part
        if IN % INPUTS == 0:
            value = tl.load(x + row[:, None] * IN + channel[None, :], there, 0.0)
            factor = tl.load(weight + column[None, :] * IN + channel[:, None])
        else:
            inside = channel < IN
            value = tl.load(x + row[:, None] * IN + channel[None, :], there & inside[None, :], 0.0)
            factor = tl.load(weight + column[None, :] * IN + channel[:, None], inside[:, None], 0.0)
        if GROUPS == 0:
            wide = value.to(tl.float32)
            scale = e4m3_scales(wide)
            sum += tl.dot(as_e4m3(wide, scale), factor) * scale[:, None]
        elif GROUPS == 1:
            sum = tl.dot(value, factor, sum)
        else:
            scale = tl.load(scales + row * GROUPS + start // INPUTS, present, 0.0)
            sum += tl.dot(value, factor) * scale[:, None]
    if GROUPS == 1:
        sum *= tl.load(scales + row, present, 0.0)[:, None]
    sum *= tl.load(weight_scales + column)[None, :]
    target = out + row[:, None] * OUT + column[None, :]
    if EXPAND:
        sum = gelu_by_tanh(sum + tl.load(bias + column)[None, :].to(tl.float32))
        found = e4m3_scales(sum)
        tl.store(target, as_e4m3(sum, found), there)
        tl.store(out_scales + row * (OUT // COLUMNS) + tl.program_id(0), found, present)
    else:
        if ADD:
            sum += tl.load(target, there, 0.0).to(tl.float32)
        tl.store(target, sum.to(out.dtype.element_ty), there)


def _launch(
    x: Tensor, scales: Tensor | None, weight: EightBits, bias: Tensor | None, out: Tensor, *, add: bool
) -> Rows:
    (rows, size), columns = x.shape, len(weight.values)
    cut, groups = TILE, 0 if scales is None else scales.shape[1]
    wide = tile_of(columns, cut.columns)
    inputs = size // groups if groups > 1 else min(cut.inputs, triton.next_power_of_2(size))
    found = torch.empty(rows, columns // wide, dtype=torch.float32, device=x.device) if bias is not None else out
    _fp8_product[(columns // wide, triton.cdiv(rows, cut.rows))](
        x,
        x if scales is None else scales,
        weight.values,
        weight.scales,
        weight.scales if bias is None else bias,
        out,
        found,
        rows,
        size,
        columns,
        groups,
        bias is not None,
        add,
        cut.rows,
        wide,
        inputs,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    return Rows(out, found)


def fp8_product(x: Rows, weight: EightBits, dtype: torch.dtype) -> Tensor:
    """x · weightᵀ; weight: [out, in] e4m3  →  [rows, out] dtype."""
    out = torch.empty(len(x.values), len(weight.values), dtype=dtype, device=x.values.device)
    return _launch(x.values, x.scales, weight, None, out, add=False).values


def fp8_expand(x: Rows, weight: EightBits, bias: Tensor) -> Rows:
    """GELU(x · weightᵀ + bias) in groups of up to `GROUP` channels; weight: [out, in] e4m3; bias: [out]."""
    out = torch.empty(len(x.values), len(weight.values), dtype=E4M3, device=x.values.device)
    return _launch(x.values, x.scales, weight, bias, out, add=False)


def fp8_add(into: Tensor, x: Rows | Tensor, weight: EightBits) -> None:
    """Add x · weightᵀ in place.

    into: [rows, out]; x: rows, or [rows, in] of 16 bit or float32, contiguous, which are turned into e4m3 in groups of
    up to `GROUP` channels; weight: [out, in] e4m3
    """
    values, scales = (x.values, x.scales) if isinstance(x, Rows) else (x, None)
    _launch(values, scales, weight, None, into, add=True)
