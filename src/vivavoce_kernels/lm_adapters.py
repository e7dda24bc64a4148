"""LoRA adapters beside products of few rows: each tile of rows has an adapter of its own, or none.

Two kernels for a product: `A·x`, whose few outputs go to memory, then `B·(A·x)`, which is added to the product's
output. A tile without an adapter, or whose adapter does not change the product, ends at once. A tile is one row of a
decode step, or some rows of one sequence in a prefill. Each output is made by one program in a fixed order, so that its
bits do not depend on the other tiles.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

import triton
from vivavoce_kernels.common import launched
from vivavoce_kernels.lm_rows import launch_options, wait_for_inputs

_ROWS = tl.constexpr(16)  # rows of a tile, and ranks of a step: the least sizes of a tensor core's product
_LONG, _SPLITS = 2048, 4
"""From `_LONG` inputs on, `_SPLITS` programs share them; their sums are added up in a fixed order."""


@triton.jit(do_not_specialize=["rows", "step"])
def _shrink_kernel(
    x, down, ranks, places, out, rows, step, stride,
    inputs: tl.constexpr, rank: tl.constexpr, width: tl.constexpr, tile: tl.constexpr, block: tl.constexpr,
    part: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    number, first, split = tl.program_id(0).to(tl.int64), tl.program_id(1) * _ROWS, tl.program_id(2)
    if dependent:
        wait_for_inputs()
    place = tl.load(places + number * step) - 1
    used = tl.load(ranks + tl.maximum(place, 0))
    if (place >= 0) & (first % rank < used):
        own, j = tl.arange(0, _ROWS), first + tl.arange(0, _ROWS)
        k = split * part + tl.arange(0, block)
        m = number * tile + own
        inside = (own < tile) & (m < rows)
        weights = down + place * stride + j[:, None] * inputs + k[None, :]
        columns = x + m[None, :] * inputs + k[:, None]
        total = tl.zeros([_ROWS, _ROWS], tl.float32)
        for start in range(0, part, block):
            there = k + start < inputs
            w = tl.load(weights + start, there[None, :], 0.0)
            v = tl.load(columns + start, there[:, None] & inside[None, :], 0.0)
            total = tl.dot(w, v, total, input_precision="ieee")
        tl.store(out + (split * rows + m)[None, :] * width + j[:, None], total, inside[None, :])


@triton.jit(do_not_specialize=["rows", "step"])
def _expand_kernel(
    low, up, ranks, places, out, rows, step, stride,
    outputs: tl.constexpr, first_end: tl.constexpr, second_end: tl.constexpr, rank: tl.constexpr, width: tl.constexpr,
    tile: tl.constexpr, block: tl.constexpr, splits: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    number, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * block
    if dependent:
        wait_for_inputs()
    place = tl.load(places + number * step) - 1
    used = tl.load(ranks + tl.maximum(place, 0))
    if (place >= 0) & (used > 0):
        part = (first >= first_end).to(tl.int32) + (first >= second_end).to(tl.int32)
        own, r, n = tl.arange(0, _ROWS), tl.arange(0, _ROWS), first + tl.arange(0, block)
        m = number * tile + own
        inside = ((own < tile) & (m < rows))[None, :]
        total = tl.zeros([block, _ROWS], tl.float32)
        for begin in range(0, used, _ROWS):
            w = tl.load(up + place * stride + n[:, None] * rank + (begin + r)[None, :])
            at = low + m[None, :] * width + part * rank + (begin + r)[:, None]
            v = tl.zeros([_ROWS, _ROWS], tl.float32)
            for split in tl.static_range(splits):
                v += tl.load(at + split * rows * width, inside, 0.0)
            total = tl.dot(w, v.to(w.dtype), total, input_precision="ieee")
        spot = out + m[None, :] * outputs + n[:, None]
        total += tl.load(spot, inside, 0.0).to(tl.float32)
        tl.store(spot, total.to(out.dtype.element_ty), inside)


def add_adapters(
    x: Tensor, down: Tensor, up: Tensor, ends: tuple[int, ...], ranks: Tensor, stride: int, places: Tensor, tile: int,
    out: Tensor, *, dependent: bool,
) -> None:  # fmt: skip
    """Add B·(A·x) to `out`, in place, for the rows that have an adapter.

    x: [rows, inputs]; down: [parts · rank, inputs], up: [outputs, rank], of the adapter in the first place, with up to
    three parts, and `stride` numbers before the next place; ends: of the parts' outputs; ranks: [places] int32, 0 where
    an adapter has no such pair; places: [tiles] int64, of any stride: 1 + the place, 0 for none; tile: rows of each, 16
    at most; out: [rows, outputs] of any float dtype. ValueError: the parts' sizes fit no block of outputs.
    """
    (rows, inputs), (outputs, rank), width = x.shape, up.shape, len(down)
    block = min(128, *(end & -end for end in ends))
    if block < 16:
        raise ValueError(f"adapters: parts that end at {ends} outputs are not of multiples of 16; run without kernels")
    splits = _SPLITS if inputs >= _LONG else 1
    step = min(128, triton.next_power_of_2(inputs))
    part = triton.cdiv(inputs, splits * step) * step
    low = torch.empty(splits, rows, width, dtype=torch.float32, device=x.device)
    given = (ranks, places)
    sizes = {"rank": rank, "width": width, "tile": tile, "dependent": dependent, **launch_options(dependent)}
    launched(_shrink_kernel, (len(places), width // 16, splits))(
        x, down, *given, low, rows, places.stride(0), stride, inputs=inputs, block=step, part=part, num_warps=4,
        num_stages=3, **sizes,
    )  # fmt: skip
    first_end, second_end = (*ends, outputs, outputs)[:2]
    launched(_expand_kernel, (len(places), outputs // block))(
        low, up, *given, out, rows, places.stride(0), stride, outputs=outputs, first_end=first_end,
        second_end=second_end, block=block, splits=splits, num_warps=4, num_stages=2, **sizes,
    )  # fmt: skip
