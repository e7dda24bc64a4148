"""LoRA adapters for products of few rows: the kernels add B·A·x to each row's output, for the row's own adapter.

A separate kernel computes `A·x` and writes its few outputs to memory. `B·(A·x)` is added in the product's own kernel,
or by another kernel after the library's product. Rows with different adapters share a tile: the ranks of all adapters
form one inner dimension, where a row is 0 outside its own adapter's ranks. Adding such zeros is exact, so a row's
result is bitwise independent of other rows' adapters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl
from torch import Tensor

import triton
from vivavoce_kernels.common import launched
from vivavoce_kernels.lm_rows import launch_options, wait_for_inputs

_LEAST = tl.constexpr(16)  # smallest dimension of a tensor core's product
_RANKS = tl.constexpr(64)  # inner size of one step of the product with B, over the ranks of all adapters
_LONG, _SPLITS = 2048, 4
"""From `_LONG` inputs on, `_SPLITS` programs divide the inner sum of A·x; their sums are added in a fixed order."""


@dataclass(frozen=True)
class RowAdapters:
    """The rows' adapters in a forward pass. Adapters lie at numbered places in memory. places: [tiles] int64, of
    any stride: 1 + the place of the tile's adapter, or 0 for no adapter. tile: rows per tile. count: number of places.
    stride: elements from one place to the next.
    """

    places: Tensor
    tile: int
    count: int
    stride: int


@dataclass(frozen=True)
class LowRankRows:
    """sums: A·x, [splits, rows, parts · rank] float32, undefined for rows without an adapter. up: [outputs, rank], the
    matrix B at the first place. ends: where each of the product's up to three parts ends, in outputs.
    """

    sums: Tensor
    up: Tensor
    ends: tuple[int, ...]
    rows: RowAdapters

    def arguments(self) -> tuple[Tensor, Tensor, Tensor, int, int]:
        """Arguments for the kernels that add B·(A·x)."""
        return self.sums, self.up, self.rows.places, self.rows.places.stride(0), self.rows.stride

    def sizes(self) -> dict[str, int]:
        splits, _, width = self.sums.shape
        return {"rank": self.up.shape[1], "width": width, "tile": self.rows.tile, "low_splits": splits}


NO_LOW_RANK = {"rank": 0, "width": 0, "tile": 1, "low_splits": 1}


@triton.jit(do_not_specialize=["rows", "step"])
def _shrink_kernel(
    x, down, places, out, rows, step, stride,
    inputs: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, block_rows: tl.constexpr, block: tl.constexpr,
    part: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    pieces: tl.constexpr = width // _LEAST
    place = (tl.program_id(0) // pieces).to(tl.int64)
    j = (tl.program_id(0) % pieces) * _LEAST + tl.arange(0, _LEAST)
    m = tl.program_id(1) * block_rows + tl.arange(0, block_rows)
    split = tl.program_id(2)
    k = split * part + tl.arange(0, block)
    mine = tl.load(places + (m // tile) * step, m < rows, 0) == place + 1
    if dependent:
        wait_for_inputs()
    if tl.max(mine.to(tl.int32), 0) > 0:
        weights = down + place * stride + j[:, None] * inputs + k[None, :]
        columns = x + m[None, :] * inputs + k[:, None]
        total = tl.zeros([_LEAST, block_rows], tl.float32)
        for start in range(0, part, block):
            there = k + start < inputs
            w = tl.load(weights + start, there[None, :], 0.0)
            v = tl.load(columns + start, there[:, None] & mine[None, :], 0.0)
            total = tl.dot(w, v, total, input_precision="ieee")
        tl.store(out + (split * rows + m)[None, :] * width + j[:, None], total, mine[None, :])


@triton.jit
def add_low_rank(
    total, low, up, places, m, n, inside_n, part, rows, step, stride,
    rank: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, splits: tl.constexpr,
):  # fmt: skip
    """Return total [outputs n, rows m] + B·(A·x). part: index of the part that these outputs belong to."""
    place = tl.load(places + (m // tile) * step, m < rows, 0)
    last = tl.max(place, 0)
    first = tl.maximum(tl.min(tl.where(place > 0, place, last), 0) - 1, 0)
    # No pipelining: the loop has few steps, and the product's own loop already fills the shared memory.
    for begin in tl.range(first * rank // _RANKS * _RANKS, last * rank, _RANKS, num_stages=1):
        owner, r = (begin + tl.arange(0, _RANKS)) // rank, (begin + tl.arange(0, _RANKS)) % rank
        mine = owner[:, None] + 1 == place[None, :]
        weights = up + owner.to(tl.int64)[None, :] * stride + n[:, None] * rank + r[None, :]
        w = tl.load(weights, inside_n[:, None] & (owner < last)[None, :], 0.0)
        at = low + m[None, :] * width + part * rank + r[:, None]
        v = tl.load(at, mine, 0.0)
        for split in tl.static_range(1, splits):
            v += tl.load(at + split * rows * width, mine, 0.0)
        total = tl.dot(w, v.to(w.dtype), total, input_precision="ieee")
    return total


@triton.jit(do_not_specialize=["rows", "step"])
def _expand_kernel(
    low, up, places, step, stride, out, rows,
    outputs: tl.constexpr, first_end: tl.constexpr, second_end: tl.constexpr, rank: tl.constexpr, width: tl.constexpr,
    tile: tl.constexpr, low_splits: tl.constexpr, block_rows: tl.constexpr, block: tl.constexpr,
    dependent: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * block
    m, n = tl.program_id(1) * block_rows + tl.arange(0, block_rows), first + tl.arange(0, block)
    if dependent:
        wait_for_inputs()
    part = (first >= first_end).to(tl.int32) + (first >= second_end).to(tl.int32)
    total = tl.zeros([block, block_rows], tl.float32)
    total = add_low_rank(
        total, low, up, places, m, n, n < outputs, part, rows, step, stride, rank, width, tile, low_splits
    )
    spot, inside = out + m[None, :] * outputs + n[:, None], (m < rows)[None, :]
    total += tl.load(spot, inside, 0.0).to(tl.float32)
    tl.store(spot, total.to(out.dtype.element_ty), inside)


def shrink(
    x: Tensor, down: Tensor, up: Tensor, ends: tuple[int, ...], rows: RowAdapters, *, dependent: bool
) -> LowRankRows:
    """Compute A·x by each row's adapter. x: [rows, inputs]; down: [parts · rank, inputs], A at the first place;
    dependent: see `lm_rows.dependent_launches`. `rows.places` must be complete before the preceding kernel is launched.
    """
    count, inputs = x.shape
    width, splits = len(down), _SPLITS if inputs >= _LONG else 1
    block, block_rows = min(128, triton.next_power_of_2(inputs)), tile_rows(count)
    part = triton.cdiv(inputs, splits * block) * block
    sums = torch.empty(splits, count, width, dtype=torch.float32, device=x.device)
    grid = (rows.count * width // _LEAST.value, triton.cdiv(count, block_rows), splits)
    launched(_shrink_kernel, grid)(
        x, down, rows.places, sums, count, rows.places.stride(0), rows.stride, inputs=inputs, width=width,
        tile=rows.tile, block_rows=block_rows, block=block, part=part, dependent=dependent, num_warps=4, num_stages=4,
        **launch_options(dependent),
    )  # fmt: skip
    return LowRankRows(sums, up, ends, rows)


def expand(low: LowRankRows, out: Tensor, *, dependent: bool) -> None:
    """Add B·(A·x) to `out` [rows, outputs] in place. ValueError: a part does not end at a multiple of 16 outputs."""
    count, outputs = out.shape
    block, block_rows = min(128, *(end & -end for end in low.ends)), tile_rows(count)
    if block < _LEAST.value:
        raise ValueError(
            f"adapters: parts that end at {low.ends} outputs do not end at multiples of 16; run without kernels"
        )
    first_end, second_end = (*low.ends, outputs, outputs)[:2]
    launched(_expand_kernel, (outputs // block, triton.cdiv(count, block_rows)))(
        *low.arguments(), out, count, outputs=outputs, first_end=first_end, second_end=second_end, **low.sizes(),
        block_rows=block_rows, block=block, dependent=dependent, num_warps=4, num_stages=2,
        **launch_options(dependent),
    )  # fmt: skip


def tile_rows(count: int) -> int:
    """Number of rows in a program's tile when there are `count` rows."""
    return min(64, max(_LEAST.value, triton.next_power_of_2(count)))
