"""LoRA adapters for products of few rows: the kernels add B·A·x to each row's output, for the row's own adapter.

The norm before a product, or a separate kernel, computes `A·x` and writes its few outputs to memory. `B·(A·x)` is added
in the product's own kernel, or by another kernel after the library's product. Rows with different adapters share a
tile: the ranks of all adapters form one inner dimension, where a row is 0 outside its own adapter's ranks. Adding such
zeros is exact, so a row's result is bitwise independent of other rows' adapters.

To save time, kernels request A and B before they wait for their input: A if a program computes a single row, B if all
places together have few ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

import triton
from vivavoce_kernels.common import launched
from vivavoce_kernels.lm_rows import LEAST, add_norm, add_norm_kernel, launch_options, rows_of_a, wait_for_inputs

_RANKS = tl.constexpr(64)  # inner size of one step of the product with B, over the ranks of all adapters
_LONG, _SPLITS = 2048, 4
"""From `_LONG` inputs on, `_SPLITS` programs divide the inner sum of A·x; their sums are added in a fixed order."""
_ROW_INPUTS, _ROW_VALUES = 1024, 6 << 20
"""A program computes A·x for one row and up to `_ROW_INPUTS` inputs if all rows together read at most `_ROW_VALUES` of
A; otherwise it computes a tile of rows, which read A only once."""
_JOINED = 256  # a kernel loads B of all places at once if this takes at most this number of bytes per output


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
    matrix B at the first place. ends: the output at which each part of the product ends; at most three parts.
    """

    sums: Tensor
    up: Tensor
    ends: tuple[int, ...]
    rows: RowAdapters

    def arguments(self) -> tuple[Tensor, Tensor, Tensor, int, int]:
        """Arguments for the kernels that add B·(A·x)."""
        return self.sums, self.up, self.rows.places, self.rows.places.stride(0), self.rows.stride

    def sizes(self) -> dict[str, int]:
        """ranks, owners: rank and number of places, rounded up to powers of two; owners is 0 for `add_low_rank`."""
        (splits, _, width), rank, size = self.sums.shape, self.up.shape[1], self.up.element_size()
        ranks, owners = triton.next_power_of_2(rank), triton.next_power_of_2(self.rows.count)
        sizes = {"rank": rank, "width": width, "tile": self.rows.tile, "low_splits": splits, "ranks": ranks}
        return {**sizes, "owners": owners if owners * ranks * size <= _JOINED else 0}


NO_LOW_RANK = {"rank": 0, "width": 0, "tile": 1, "low_splits": 1, "ranks": 1, "owners": 0}


@triton.jit(do_not_specialize=["rows", "step"])
def _shrink_kernel(
    x, down, places, out, rows, step, stride,
    inputs: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, block_rows: tl.constexpr, block: tl.constexpr,
    part: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    pieces: tl.constexpr = width // LEAST
    place = (tl.program_id(0) // pieces).to(tl.int64)
    j = (tl.program_id(0) % pieces) * LEAST + tl.arange(0, LEAST)
    m = tl.program_id(1) * block_rows + tl.arange(0, block_rows)
    split = tl.program_id(2)
    k = split * part + tl.arange(0, block)
    mine = tl.load(places + (m // tile) * step, m < rows, 0) == place + 1
    if dependent:
        wait_for_inputs()
    if tl.max(mine.to(tl.int32), 0) > 0:
        weights = down + place * stride + j[:, None] * inputs + k[None, :]
        columns = x + m[None, :] * inputs + k[:, None]
        total = tl.zeros([LEAST, block_rows], tl.float32)
        for start in range(0, part, block):
            there = k + start < inputs
            w = tl.load(weights + start, there[None, :], 0.0)
            v = tl.load(columns + start, there[:, None] & mine[None, :], 0.0)
            total = tl.dot(w, v, total, input_precision="ieee")
        tl.store(out + (split * rows + m)[None, :] * width + j[:, None], total, mine[None, :])


@triton.jit(do_not_specialize=["step"])
def _shrink_row_kernel(
    x, down, places, out, step, stride,
    inputs: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, block: tl.constexpr, part: tl.constexpr,
    dependent: tl.constexpr,
):  # fmt: skip
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    within = tl.arange(0, block)
    k = split * part + within
    place = tl.load(places + row // tile * step)
    inside = (within < tl.where(place > 0, part, 0)) & (k < inputs)
    j, w = rows_of_a(down, place, k, inside, stride, inputs, dependent)
    if dependent:
        wait_for_inputs()
    if place > 0:
        v = tl.load(x + row * inputs + k, inside, 0.0).to(tl.float32)
        total = tl.sum(w.to(tl.float32) * v[None, :], 1)
        tl.store(out + (split * tl.num_programs(0) + row) * width + j, total)


@triton.jit
def _used(place):
    """Return the first place that these rows use, and the place after their last one."""
    last = tl.max(place, 0)
    return tl.maximum(tl.min(tl.where(place > 0, place, last), 0) - 1, 0), last


@triton.jit
def joined_up(up, place, n, inside_n, stride, rank: tl.constexpr, ranks: tl.constexpr, owners: tl.constexpr):
    """Load B of all places that these rows use, side by side  →  [outputs n, owners · ranks]."""
    first, last = _used(place)
    owner, r = tl.arange(0, owners * ranks) // ranks, tl.arange(0, owners * ranks) % ranks
    inside = (owner >= first) & (owner < last) & (r < rank)
    weights = up + owner.to(tl.int64)[None, :] * stride + n[:, None] * rank + r[None, :]
    return tl.load(weights, inside_n[:, None] & inside[None, :], 0.0)


@triton.jit
def row_sums(
    low, place, m, part, rows, rank: tl.constexpr, width: tl.constexpr, splits: tl.constexpr, ranks: tl.constexpr
):
    """Load the planes of A·x for one part of a product  →  [splits, ranks, rows m]."""
    split, r = tl.arange(0, splits)[:, None, None], tl.arange(0, ranks)[None, :, None]
    at = low + (split * rows + m[None, None, :]) * width + part * rank + r
    return tl.load(at, (r < rank) & (place > 0)[None, None, :], 0.0)


@triton.jit
def add_joined(total, up, sums, place, ranks: tl.constexpr, owners: tl.constexpr):
    """Return total [outputs, rows] + B·(A·x), from `joined_up` and `row_sums`."""
    mine = tl.arange(0, owners)[:, None, None] + 1 == place[None, None, :]
    v = tl.where(mine, tl.sum(sums, 0).to(up.dtype)[None, :, :], 0.0)
    return tl.dot(up, tl.reshape(v, [owners * ranks, total.shape[1]]), total, input_precision="ieee")


@triton.jit
def add_low_rank(
    total, low, up, place, m, n, inside_n, part, rows, stride,
    rank: tl.constexpr, width: tl.constexpr, splits: tl.constexpr,
):  # fmt: skip
    """Do the same as `add_joined`, but load B and A·x in steps, for many ranks. part: the part of these outputs."""
    first, last = _used(place)
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
    tile: tl.constexpr, low_splits: tl.constexpr, ranks: tl.constexpr, owners: tl.constexpr,
    block_rows: tl.constexpr, block: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * block
    m, n = tl.program_id(1) * block_rows + tl.arange(0, block_rows), first + tl.arange(0, block)
    place = tl.load(places + (m // tile) * step, m < rows, 0)
    if owners > 0:
        w = joined_up(up, place, n, n < outputs, stride, rank, ranks, owners)
    if dependent:
        wait_for_inputs()
    part = (first >= first_end).to(tl.int32) + (first >= second_end).to(tl.int32)
    spot, inside = out + m[None, :] * outputs + n[:, None], (m < rows)[None, :]
    total = tl.zeros([block, block_rows], tl.float32)
    if owners > 0:
        sums = row_sums(low, place, m, part, rows, rank, width, low_splits, ranks)
        before = tl.load(spot, inside, 0.0)
        total = add_joined(total, w, sums, place, ranks, owners)
    else:
        before = tl.load(spot, inside, 0.0)
        total = add_low_rank(total, low, up, place, m, n, n < outputs, part, rows, stride, rank, width, low_splits)
    tl.store(spot, (total + before.to(tl.float32)).to(out.dtype.element_ty), inside)


def _row_by_row(count: int, down: Tensor) -> bool:
    return count * down.numel() <= _ROW_VALUES


def shrink(
    x: Tensor, down: Tensor, up: Tensor, ends: tuple[int, ...], rows: RowAdapters, *, dependent: bool
) -> LowRankRows:
    """Compute A·x by each row's adapter. x: [rows, inputs]; down: [parts · rank, inputs], A at the first place;
    dependent: see `lm_rows.dependent_launches`. `rows.places` must be complete before the preceding kernel is launched.
    """
    (count, inputs), width, step = x.shape, len(down), rows.places.stride(0)
    sizes: dict[str, Any] = {"inputs": inputs, "width": width, "tile": rows.tile, "dependent": dependent}
    if _row_by_row(count, down):
        splits = triton.next_power_of_2(triton.cdiv(inputs, _ROW_INPUTS))
        part = triton.cdiv(inputs, splits * LEAST.value) * LEAST.value
        sums = torch.empty(splits, count, width, dtype=torch.float32, device=x.device)
        launched(_shrink_row_kernel, (count, width // LEAST.value, splits))(
            x, down, rows.places, sums, step, rows.stride, **sizes, block=triton.next_power_of_2(part), part=part,
            num_warps=4, **launch_options(dependent),
        )  # fmt: skip
        return LowRankRows(sums, up, ends, rows)
    splits = _SPLITS if inputs >= _LONG else 1
    block, block_rows = min(128, triton.next_power_of_2(inputs)), tile_rows(count)
    part = triton.cdiv(inputs, splits * block) * block
    sums = torch.empty(splits, count, width, dtype=torch.float32, device=x.device)
    launched(_shrink_kernel, (rows.count * width // LEAST.value, triton.cdiv(count, block_rows), splits))(
        x, down, rows.places, sums, count, step, rows.stride, **sizes, block_rows=block_rows, block=block, part=part,
        num_warps=4, num_stages=4, **launch_options(dependent),
    )  # fmt: skip
    return LowRankRows(sums, up, ends, rows)


def add_norm_shrink(
    stream: Tensor, added: Tensor, weight: Tensor, eps: float, down: Tensor, up: Tensor, ends: tuple[int, ...],
    rows: RowAdapters, *, dependent: bool,
) -> tuple[Tensor, Tensor, LowRankRows]:  # fmt: skip
    """Run `add_norm`, then `shrink`; both in one kernel if a program of `shrink` computes a single row  →  the new
    residual stream, the normalised rows, and their A·x. `stream` may be overwritten.
    """
    count, size = stream.shape
    if not _row_by_row(count, down):
        x = add_norm(stream, added, weight, eps, dependent=dependent)
        return stream, x, shrink(x, down, up, ends, rows, dependent=dependent)
    # Several programs read a row of the stream, so its new values need another memory.
    summed, out = torch.empty_like(stream), torch.empty_like(stream, dtype=weight.dtype)
    sums = torch.empty(1, count, len(down), dtype=torch.float32, device=stream.device)
    launched(add_norm_kernel, (count, len(down) // LEAST.value))(
        stream, added, weight, out, stream, summed, down, rows.places, sums, count, rows.places.stride(0), rows.stride,
        eps, size=size, block=triton.next_power_of_2(size), planes=len(added), with_picked=False, width=len(down),
        tile=rows.tile, dependent=dependent, num_warps=4, **launch_options(dependent),
    )  # fmt: skip
    return summed, out, LowRankRows(sums, up, ends, rows)


def expand(low: LowRankRows, out: Tensor, *, dependent: bool) -> None:
    """Add B·(A·x) to `out` [rows, outputs] in place. ValueError: a part does not end at a multiple of 16 outputs."""
    count, outputs = out.shape
    block, block_rows = min(128, *(end & -end for end in low.ends)), tile_rows(count)
    if block < LEAST.value:
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
    return min(64, max(LEAST.value, triton.next_power_of_2(count)))
