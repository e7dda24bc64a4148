"""Matrix products of few rows: what limits them is how fast the weights are read.

The weights are the left operand, so that a small batch pads columns of a tile and not rows. The inner dimension may be
split over programs; each part's sums go to a float32 plane of their own, which the next normalisation adds up in a
fixed order: nothing is added in the order in which programs happen to end. From some number of rows on a library is
faster; which way a product takes is looked up in a table of tiles.

Weights may be int8 with a scale for each output: half of the bytes are read, they are widened in registers, and the
sums are scaled. No library multiplies such weights with 16-bit rows, so every number of rows takes the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear

from vivavoce.models.kernels.compile_ahead import launched
from vivavoce.models.kernels.lm_launch import options, wait_for_inputs
from vivavoce.models.kernels.lm_swiglu import swiglu


@dataclass(frozen=True)
class Tile:
    """How a product is cut: outputs and inputs of one step of a program, parts of the inner dimension, and the
    compiler's warps and stages.
    """

    outputs: int
    inputs: int
    splits: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Shape:
    """What a product's tile depends on besides the number of rows; outputs are those after SwiGLU if it is gated."""

    outputs: int
    inputs: int
    gated: bool = False


Tiles = Mapping[Shape, Mapping[int, Tile]]
"""Tiles by shape and class of rows; what stands in no table is the library's."""

ROW_CLASSES = (16, 32, 64, 128)
"""Columns of a tile; more rows than the last one take several programs side by side."""

_HIDDEN, _INNER, _QKV, _IDS = 896, 4864, 1152, 6564
TILES: Tiles = {
    Shape(_QKV, _HIDDEN): {16: Tile(16, 128, 1, 4, 7), 32: Tile(16, 128, 1, 4, 7)},
    Shape(_HIDDEN, _HIDDEN): {16: Tile(16, 64, 2, 4, 6), 32: Tile(16, 64, 2, 4, 6), 64: Tile(16, 64, 2, 4, 6)},
    Shape(_INNER, _HIDDEN, gated=True): {
        16: Tile(64, 128, 1, 4, 3),
        32: Tile(64, 64, 1, 4, 4),
        64: Tile(64, 64, 1, 4, 4),
    },
    Shape(_HIDDEN, _INNER): {16: Tile(32, 64, 4, 4, 6), 32: Tile(64, 64, 4, 4, 6), 64: Tile(64, 64, 4, 4, 6)},
    Shape(_IDS, _HIDDEN): {
        16: Tile(32, 128, 1, 4, 4),
        32: Tile(64, 64, 1, 4, 5),
        64: Tile(64, 64, 1, 4, 5),
        128: Tile(128, 64, 1, 8, 4),
    },
}
"""CosyVoice2's sizes, as measured on one H200 in bfloat16."""

INT8_TILES: Tiles = {
    Shape(_QKV, _HIDDEN): {
        16: Tile(16, 128, 1, 4, 7),
        32: Tile(16, 128, 1, 4, 7),
        64: Tile(32, 128, 1, 4, 4),
        128: Tile(64, 64, 1, 4, 4),
    },
    Shape(_HIDDEN, _HIDDEN): {
        16: Tile(16, 64, 2, 4, 6),
        32: Tile(16, 64, 2, 4, 6),
        64: Tile(16, 64, 2, 4, 6),
        128: Tile(64, 64, 2, 4, 4),
    },
    Shape(_INNER, _HIDDEN, gated=True): {
        16: Tile(64, 128, 1, 4, 3),
        32: Tile(64, 128, 1, 4, 3),
        64: Tile(64, 64, 1, 4, 4),
        128: Tile(64, 64, 1, 8, 3),
    },
    Shape(_HIDDEN, _INNER): {
        16: Tile(32, 64, 4, 4, 6),
        32: Tile(64, 64, 4, 4, 6),
        64: Tile(64, 64, 4, 4, 6),
        128: Tile(64, 64, 4, 4, 4),
    },
}
"""The same sizes with int8 weights; other sizes take `plain_tile`."""


def plain_tile(inputs: int) -> Tile:
    """A tile of any product whose inputs are a multiple of 16, neither split nor tuned.

    Raises:
        ValueError: they are not.
    """
    step = min(inputs & -inputs, 64)
    if step < 16:
        raise ValueError(f"{inputs} inputs of a product, int8 weights need a multiple of 16; leave int8 out")
    return Tile(64, step, 1, 4, 3)


def row_class(rows: int) -> int:
    """The smallest class that holds so many rows, or the last one."""
    return next((one for one in ROW_CLASSES if rows <= one), ROW_CLASSES[-1])


@triton.jit(do_not_specialize=["rows"])
def _product_kernel(
    x, weight, scale, bias, out, rows,
    outputs: tl.constexpr, inputs: tl.constexpr, scaled: tl.constexpr, with_bias: tl.constexpr, gated: tl.constexpr,
    block_rows: tl.constexpr, block_outputs: tl.constexpr, block_inputs: tl.constexpr, splits: tl.constexpr,
    dependent: tl.constexpr,
):  # fmt: skip
    part: tl.constexpr = inputs // splits
    n = tl.program_id(0) * block_outputs + tl.arange(0, block_outputs)
    m = tl.program_id(1) * block_rows + tl.arange(0, block_rows)
    split = tl.program_id(2)
    k = split * part + tl.arange(0, block_inputs)
    inside_n, inside_m = n < outputs, m < rows
    weights = weight + n[:, None] * inputs + k[None, :]
    columns = x + m[None, :] * inputs + k[:, None]
    total = tl.zeros([block_outputs, block_rows], tl.float32)
    total_up = tl.zeros([block_outputs, block_rows], tl.float32)
    if dependent:
        wait_for_inputs()
    for start in range(0, part, block_inputs):
        w = tl.load(weights + start, inside_n[:, None], 0.0)
        v = tl.load(columns + start, inside_m[None, :], 0.0)
        total = tl.dot(w.to(v.dtype), v, total, input_precision="ieee")
        if gated:
            up = tl.load(weights + outputs * inputs + start, inside_n[:, None], 0.0)
            total_up = tl.dot(up.to(v.dtype), v, total_up, input_precision="ieee")
    if scaled:
        total *= tl.load(scale + n, inside_n, 0.0)[:, None]
        if gated:
            total_up *= tl.load(scale + outputs + n, inside_n, 0.0)[:, None]
    if with_bias:
        total += tl.load(bias + n, inside_n, 0.0).to(tl.float32)[:, None]
    if gated:
        total = total * tl.sigmoid(total) * total_up
    place = (split * rows + m)[None, :] * outputs + n[:, None]
    tl.store(out + place, total.to(out.dtype.element_ty), inside_m[None, :] & inside_n[:, None])


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None, tiles: Tiles, *, dependent: bool, scale: Tensor | None = None,
    gated: bool = False, wide: bool = False,
) -> Tensor:  # fmt: skip
    """x · weightᵀ + bias, and SwiGLU of it if gated.

    x: [rows, inputs]; weight: [outputs, inputs], or [2 · outputs, inputs] with the gates first; bias: [outputs];
    scale: [len(weight)] float32, what each row of an int8 weight is to be multiplied by; None: it is of x's dtype;
    wide: float32 is wanted, as far as the way taken has it  →  [planes, rows, outputs], to be added up; x's dtype
    where it is one plane and not wide

    Raises:
        ValueError: the table's tile does not fit the sizes.
    """
    outputs, inputs = len(weight) // 2 if gated else len(weight), weight.shape[1]
    tile = tiles.get(Shape(outputs, inputs, gated), {}).get(row_class(len(x)))
    if tile is None and scale is not None:
        tile = plain_tile(inputs)
    if tile is None:
        whole = linear(x, weight, bias)
        return (swiglu(whole, dependent=dependent) if gated else whole)[None]
    return multiply(x, weight, bias, tile, dependent=dependent, scale=scale, gated=gated, wide=wide)


def multiply(
    x: Tensor, weight: Tensor, bias: Tensor | None, tile: Tile, *, dependent: bool, gated: bool, wide: bool,
    scale: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The same by our kernel, with this tile; for float32 sums `wide` or split."""
    rows, inputs = x.shape
    outputs = len(weight) // 2 if gated else len(weight)
    _check(tile, inputs, alone=gated or bias is not None)
    block_rows = row_class(rows)
    dtype = torch.float32 if wide or tile.splits > 1 else x.dtype
    out = torch.empty(tile.splits, rows, outputs, dtype=dtype, device=x.device)
    grid = (triton.cdiv(outputs, tile.outputs), triton.cdiv(rows, block_rows), tile.splits)
    launched(_product_kernel, grid)(
        x, weight, weight if scale is None else scale, weight if bias is None else bias, out, rows,
        outputs=outputs, inputs=inputs, scaled=scale is not None, with_bias=bias is not None, gated=gated,
        block_rows=block_rows, block_outputs=tile.outputs, block_inputs=tile.inputs, splits=tile.splits,
        dependent=dependent, num_warps=tile.warps, num_stages=tile.stages, **options(dependent),
    )  # fmt: skip
    return out


def _check(tile: Tile, inputs: int, *, alone: bool) -> None:
    if inputs % (tile.splits * tile.inputs):
        raise ValueError(
            f"tile: {tile.splits} parts in steps of {tile.inputs} do not make {inputs} inputs; choose divisors of them"
        )
    if alone and tile.splits > 1:
        raise ValueError(f"tile: {tile.splits} parts cannot be added up after a bias or SwiGLU; choose 1")
