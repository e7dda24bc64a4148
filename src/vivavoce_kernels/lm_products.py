"""Matrix products of few rows. Reading the weights takes most of their time.

The weights are the left operand, so a small batch pads columns of a tile and not rows. Several programs may divide the
inner dimension: each writes its sums to its own float32 plane, and the next normalisation adds the planes in a fixed
order, whichever program ends first. For many rows torch's library is faster; `TILES` decides for each product.

A single row uses other kernels, without tensor cores, that include the operations around the product: norms, the
residual sum, SwiGLU, and the merge of a partial attention. A layer then has only five kernels, which saves time.
To save more time, each program requests its rows of the weights before it waits for its input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import triton.language as tl
from torch import Tensor
from torch.nn.functional import linear

import triton
from vivavoce_kernels.common import launched
from vivavoce_kernels.lm_adapters import NO_LOW_RANK, LowRankRows, add_joined, add_low_rank, expand, joined_up, row_sums
from vivavoce_kernels.lm_attention import PartialAttention
from vivavoce_kernels.lm_rows import launch_options, swiglu, wait_for_inputs


@dataclass(frozen=True)
class Tile:
    """outputs, inputs: weights in a step; splits: programs that divide the inputs; warps, stages: compiler options."""

    outputs: int
    inputs: int
    splits: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Shape:
    """The sizes of a product, by which tables find its tile. A gated product's outputs are counted after SwiGLU."""

    outputs: int
    inputs: int
    gated: bool = False


Tiles = Mapping[Shape, Mapping[int, Tile]]  # tile by shape and row class; a product without a tile uses the library

ROW_CLASSES = (16, 32, 64, 128)  # possible numbers of rows of a tile; several programs divide a larger batch

_HIDDEN, _INNER, _QKV = 896, 4864, 1152
_IDS = (6564, 6761)  # outputs of the speech heads of CosyVoice2 and CosyVoice3
_ID_TILES = {
    16: Tile(32, 128, 1, 4, 4),
    32: Tile(64, 64, 1, 4, 5),
    64: Tile(64, 64, 1, 4, 5),
    128: Tile(128, 64, 1, 8, 4),
}
TILES: Tiles = {
    Shape(_QKV, _HIDDEN): {16: Tile(16, 128, 1, 4, 7), 32: Tile(16, 128, 1, 4, 7)},
    Shape(_HIDDEN, _HIDDEN): {16: Tile(16, 64, 2, 4, 6), 32: Tile(16, 64, 2, 4, 6), 64: Tile(16, 64, 2, 4, 6)},
    Shape(_INNER, _HIDDEN, True): {16: Tile(64, 128, 1, 4, 3), 32: Tile(64, 64, 1, 4, 4), 64: Tile(64, 64, 1, 4, 4)},
    Shape(_HIDDEN, _INNER): {16: Tile(32, 64, 4, 4, 6), 32: Tile(64, 64, 4, 4, 6), 64: Tile(64, 64, 4, 4, 6)},
    **{Shape(ids, _HIDDEN): _ID_TILES for ids in _IDS},
}
"""Tiles for the sizes of CosyVoice2, measured on one H200 in bfloat16. CosyVoice3 differs only in its head."""

ADAPTED_TILES: Tiles = {Shape(_QKV, _HIDDEN): {64: Tile(16, 128, 1, 4, 5)}}
"""Tiles for rows with adapters if `TILES` has none: to add adapters, the library would need one more kernel."""


def row_class(rows: int) -> int:
    return next((one for one in ROW_CLASSES if rows <= one), ROW_CLASSES[-1])


@triton.jit(do_not_specialize=["rows", "step"])
def _product_kernel(
    x, weight, bias, out, low, up, places, step, stride, rows,
    outputs: tl.constexpr, inputs: tl.constexpr, with_bias: tl.constexpr, gated: tl.constexpr,
    block_rows: tl.constexpr, block_outputs: tl.constexpr, block_inputs: tl.constexpr, splits: tl.constexpr,
    rank: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, low_splits: tl.constexpr, ranks: tl.constexpr,
    owners: tl.constexpr, first_end: tl.constexpr, second_end: tl.constexpr, dependent: tl.constexpr,
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
    if rank > 0:
        # The first split adds B·(A·x); in others, no row has an adapter.
        place = tl.load(places + (m // tile) * step, m < tl.where(split == 0, rows, 0), 0)
        first = tl.program_id(0) * block_outputs
        part_of = (first >= first_end).to(tl.int32) + (first >= second_end).to(tl.int32)
    if owners > 0:
        low_w = joined_up(up, place, n, inside_n, stride, rank, ranks, owners)
        if gated:
            low_up_w = joined_up(up, place, n + outputs, inside_n, stride, rank, ranks, owners)
    if dependent:
        wait_for_inputs()
    if owners > 0:
        sums = row_sums(low, place, m, part_of, rows, rank, width, low_splits, ranks)
        if gated:
            sums_up = row_sums(low, place, m, 1, rows, rank, width, low_splits, ranks)
    for start in range(0, part, block_inputs):
        w = tl.load(weights + start, inside_n[:, None], 0.0)
        v = tl.load(columns + start, inside_m[None, :], 0.0)
        total = tl.dot(w, v, total, input_precision="ieee")
        if gated:
            up_weights = tl.load(weights + outputs * inputs + start, inside_n[:, None], 0.0)
            total_up = tl.dot(up_weights, v, total_up, input_precision="ieee")
    if owners > 0:
        total = add_joined(total, low_w, sums, place, ranks, owners)
        if gated:
            total_up = add_joined(total_up, low_up_w, sums_up, place, ranks, owners)
    elif rank > 0:
        total = add_low_rank(total, low, up, place, m, n, inside_n, part_of, rows, stride, rank, width, low_splits)
        if gated:
            total_up = add_low_rank(
                total_up, low, up, place, m, n + outputs, inside_n, 1, rows, stride, rank, width, low_splits
            )
    if with_bias:
        total += tl.load(bias + n, inside_n, 0.0).to(tl.float32)[:, None]
    if gated:
        total = total * tl.sigmoid(total) * total_up
    at = (split * rows + m)[None, :] * outputs + n[:, None]
    tl.store(out + at, total.to(out.dtype.element_ty), inside_m[None, :] & inside_n[:, None])


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None, tiles: Tiles, *, dependent: bool, gated: bool = False,
    wide: bool = False, low: LowRankRows | None = None,
) -> Tensor:  # fmt: skip
    """Compute x · weightᵀ + bias, then SwiGLU if `gated`. The library computes it if `tiles` has no tile for it.

    x: [rows, inputs]. weight: [outputs, inputs], or [2 · outputs, inputs] if gated, gates first. low: A·x of the rows'
    adapters; B·(A·x) is added before SwiGLU  →  [planes, rows, outputs], whose sum over the planes is the product.
    Planes are float32 if there are several or if our kernel runs with `wide`, else x's dtype. ValueError: the tile does
    not fit.
    """
    outputs, inputs = len(weight) // 2 if gated else len(weight), weight.shape[1]
    shape, rows = Shape(outputs, inputs, gated), row_class(len(x))
    tile = tiles.get(shape, {}).get(rows)
    if tile is None and low is not None:
        tile = ADAPTED_TILES.get(shape, {}).get(rows)
    if tile is None:
        whole = linear(x, weight, bias)
        if low is not None:
            expand(low, whole, dependent=dependent)
        return (swiglu(whole, dependent=dependent) if gated else whole)[None]
    return multiply(x, weight, bias, tile, dependent=dependent, gated=gated, wide=wide, low=low)


def multiply(
    x: Tensor, weight: Tensor, bias: Tensor | None, tile: Tile, *, dependent: bool, gated: bool, wide: bool,
    low: LowRankRows | None = None,
) -> Tensor:  # fmt: skip
    """Compute `product` with our kernel. The output is float32 if `wide` is set or the tile splits the sums."""
    rows, inputs = x.shape
    outputs = len(weight) // 2 if gated else len(weight)
    if inputs % (tile.splits * tile.inputs):
        raise ValueError(
            f"tile: {tile.splits} splits in steps of {tile.inputs} do not divide {inputs} inputs; choose divisors"
        )
    if (gated or bias is not None) and tile.splits > 1:
        raise ValueError(f"tile: {tile.splits} splits cannot be added up after a bias or SwiGLU; choose 1")
    if low is not None and any(end % tile.outputs for end in low.ends):
        raise ValueError(
            f"tile: {tile.outputs} outputs per program do not divide the parts that end at {low.ends}; choose a divisor"
        )
    first_end, second_end = (outputs, outputs) if low is None or gated else (*low.ends, outputs, outputs)[:2]
    block_rows = row_class(rows)
    dtype = torch.float32 if wide or tile.splits > 1 else x.dtype
    out = torch.empty(tile.splits, rows, outputs, dtype=dtype, device=x.device)
    grid = (triton.cdiv(outputs, tile.outputs), triton.cdiv(rows, block_rows), tile.splits)
    launched(_product_kernel, grid)(
        x, weight, weight if bias is None else bias, out, *((x, x, x, 0, 0) if low is None else low.arguments()), rows,
        outputs=outputs, inputs=inputs, with_bias=bias is not None, gated=gated,
        block_rows=block_rows, block_outputs=tile.outputs, block_inputs=tile.inputs, splits=tile.splits,
        **(NO_LOW_RANK if low is None else low.sizes()), first_end=first_end, second_end=second_end,
        dependent=dependent, num_warps=tile.warps, num_stages=tile.stages, **launch_options(dependent),
    )  # fmt: skip
    return out


@dataclass(frozen=True)
class Strip:
    """outputs: outputs that one program computes; warps: an option of the compiler."""

    outputs: int
    warps: int


Strips = Mapping[Shape, Strip]

STRIPS: Strips = {
    Shape(_QKV, _HIDDEN): Strip(1, 4),
    Shape(_HIDDEN, _HIDDEN): Strip(4, 4),
    Shape(_INNER, _HIDDEN, gated=True): Strip(1, 4),
    Shape(_HIDDEN, _INNER): Strip(4, 8),
    **{Shape(ids, _HIDDEN): Strip(4, 4) for ids in _IDS},
}  # for the sizes of CosyVoice2 and CosyVoice3, measured like `TILES`


@triton.jit
def _merged(acc, stats, k, inside, head_dim: tl.constexpr, split_k: tl.constexpr):
    """Merge the splits of a `PartialAttention`  →  the channels k of its output, where k counts through all heads."""
    first = (k // head_dim) * split_k
    m_all = tl.load(stats + first * 2, inside, 0.0)
    for split in tl.static_range(1, split_k):
        m_all = tl.maximum(m_all, tl.load(stats + (first + split) * 2, inside, 0.0))
    acc_all, l_all = tl.zeros_like(m_all), tl.zeros_like(m_all)
    for split in tl.static_range(split_k):
        at = first + split
        alpha = tl.exp(tl.load(stats + at * 2, inside, 0.0) - m_all)
        l_all += alpha * tl.load(stats + at * 2 + 1, inside, 0.0)
        acc_all += alpha * tl.load(acc + at * head_dim + k % head_dim, inside, 0.0)
    return acc_all / tl.maximum(l_all, 1e-30)


@triton.jit
def _vector_kernel(
    x, stats, scaling, weight, bias, out, eps,
    outputs: tl.constexpr, inputs: tl.constexpr, block_outputs: tl.constexpr, block_inputs: tl.constexpr,
    normed: tl.constexpr, with_bias: tl.constexpr, gated: tl.constexpr, added: tl.constexpr,
    split_k: tl.constexpr, head_dim: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * block_outputs + tl.arange(0, block_outputs)
    k = tl.arange(0, block_inputs)
    inside_n, inside_k = n < outputs, k < inputs
    inside = inside_n[:, None] & inside_k[None, :]
    at = n[:, None] * inputs + k[None, :]
    w = tl.load(weight + at, inside, 0.0)
    if gated:
        up = tl.load(weight + outputs * inputs + at, inside, 0.0)
    if normed:
        norm_weight = tl.load(scaling + k, inside_k, 0.0).to(tl.float32)
    if dependent:
        wait_for_inputs()
    if split_k > 0:
        row = _merged(x, stats, k, inside_k, head_dim, split_k)
    else:
        row = tl.load(x + k, inside_k, 0.0).to(tl.float32)
    if normed:
        row *= tl.rsqrt(tl.sum(row * row, 0) / inputs + eps)
        row *= norm_weight
    total = tl.sum(w.to(tl.float32) * row[None, :], 1)
    if with_bias:
        total += tl.load(bias + n, inside_n, 0.0).to(tl.float32)
    if gated:
        total_up = tl.sum(up.to(tl.float32) * row[None, :], 1)
        total = total * tl.sigmoid(total) * total_up
    if added:
        total += tl.load(out + n, inside_n, 0.0)
    tl.store(out + n, total.to(out.dtype.element_ty), inside_n)


def vector_product(
    x: Tensor | PartialAttention, weight: Tensor, bias: Tensor | None, out: Tensor, strip: Strip, *, dependent: bool,
    scaling: Tensor | None = None, eps: float = 0.0, gated: bool = False,
    added: bool = False,
) -> None:  # fmt: skip
    """Write the product of one row and the weights to `out` [1, outputs]; added: add it to `out`, which is then
    float32. x: [1, inputs], or a partial attention with `inputs` channels; weight: as in `product`; scaling: [inputs],
    weight of an RMSNorm with this eps, applied to x first; dependent: see `lm_rows.dependent_launches`.
    """
    inputs = weight.shape[1]
    outputs = len(weight) // 2 if gated else len(weight)
    partial = x if isinstance(x, PartialAttention) else PartialAttention(x, x, 0)
    launched(_vector_kernel, (triton.cdiv(outputs, strip.outputs),))(
        partial.acc, partial.stats, weight if scaling is None else scaling, weight,
        weight if bias is None else bias, out, eps, outputs=outputs, inputs=inputs,
        block_outputs=strip.outputs, block_inputs=triton.next_power_of_2(inputs), normed=scaling is not None,
        with_bias=bias is not None, gated=gated, added=added, split_k=partial.splits,
        head_dim=partial.acc.shape[1], dependent=dependent, num_warps=strip.warps, **launch_options(dependent),
    )  # fmt: skip
