"""Products of the flow's linear layers with what surrounds them.

Every sum runs in the same order whatever the number of rows, so a row computes the same in any company, which the
library's products do not promise.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from vivavoce.models.kernels.flow_math import gelu, tile_of


@dataclass(frozen=True)
class ProductTile:
    """How the work is cut: rows and columns of one program, inputs at a time; warps and pipeline stages of its loop."""

    rows: int
    columns: int
    inputs: int
    warps: int
    stages: int


@triton.jit(do_not_specialize=["num_rows"])
def _product(
    x,
    weight,
    bias,
    out,
    num_rows,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    BIAS: tl.constexpr,
    GELU: tl.constexpr,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.arange(0, INPUTS)
    there = (row < num_rows)[:, None]
    sum = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, IN, INPUTS):
        value = tl.load(x + row[:, None] * IN + (start + part)[None, :], there, 0.0)
        factor = tl.load(weight + column[None, :] * IN + (start + part)[:, None])
        sum = tl.dot(value, factor, sum, input_precision="ieee")
    if BIAS:
        sum += tl.load(bias + column)[None, :].to(tl.float32)
    if GELU:
        sum = gelu(sum)
    target = out + row[:, None] * OUT + column[None, :]
    if ADD:
        sum += tl.load(target, there, 0.0).to(tl.float32)
    tl.store(target, sum.to(out.dtype.element_ty), there)


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cut: ProductTile,
    *,
    gelu: bool = False,
    into: Tensor | None = None,
) -> Tensor:
    """x · weightᵀ + bias, GELU of it if asked, added to `into` where it is given, in place.

    x: [rows, in] contiguous; weight: [out, in] contiguous; bias: [out]; into: [rows, out]  →  [rows, out]
    """
    (rows, size), columns = x.shape, len(weight)
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device) if into is None else into
    wide = tile_of(columns, cut.columns)
    _product[(triton.cdiv(rows, cut.rows), columns // wide)](
        x,
        weight,
        weight if bias is None else bias,
        out,
        rows,
        size,
        columns,
        bias is not None,
        gelu,
        into is not None,
        cut.rows,
        wide,
        tile_of(size, cut.inputs),
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    return out
