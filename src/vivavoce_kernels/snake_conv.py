"""Convolutions over packed signals (channels last), fused with the operations after a convolution in a vocoder.

A convolution is one implicit matrix product, with a row per position and a sum over taps and channels. The epilogue
adds bias and residuals, and clears positions between the rows. It stores the sum, or the activated input of the next
convolution, or both. So each value is activated once, not once per tap.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

import triton
from vivavoce_kernels.common import launched

PRECISION = "ieee"  # TF32 is not used: pitches are summed to phases, so an error of a thousandth is audible


class Activation(IntEnum):
    SNAKE = 0  # x + sin²(αx) / α, with one α per channel
    LEAKY = 1
    ELU = 2


@dataclass(frozen=True)
class SnakeTile:
    """rows, columns (32 or more), depth: sizes of a program's tile; warps; stages: pipeline stages of the loads."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


@dataclass(frozen=True, eq=False)
class Convolution:
    """Output position m reads input positions m · stride + tap · dilation − offset. weight: [taps · channels in,
    columns], in the products' dtype. bias: [columns] float32. rate: output positions per frame. Columns are the
    channels of one position, or of `fan` consecutive positions (transposed convolution). open_end: each row has one
    more output position, the first in the frame after the row. mirrored: a row's first position gets the value of its
    third.
    """

    weight: Tensor
    bias: Tensor
    taps: int
    channels: int
    rate: int
    dilation: int = 1
    offset: int = 0
    stride: int = 1
    fan: int = 1
    open_end: bool = False
    mirrored: bool = False


@dataclass(frozen=True, eq=False)
class Activated:
    """How to activate a sum. count: number of activated outputs; alpha: [count, columns] float32, α of each output for
    SNAKE; inverse: 1 / α; slope: for LEAKY, the factor of negative values.
    """

    kind: Activation
    count: int = 1
    alpha: Tensor | None = None
    inverse: Tensor | None = None
    slope: float = 0.0


NOTHING = Activated(Activation.SNAKE, 0)


@triton.jit
def _snake(x, alpha, inverse, FAST: tl.constexpr):
    # The hardware's sine has an error of up to 1e-5 here: invisible in 16 bits, but too much for float32.
    wave = libdevice.fast_sinf(alpha * x) if FAST else tl.sin(alpha * x)
    return x + wave * wave * inverse


@triton.jit
def _finish(
    accumulator, m, n, tag, inside, reached, bias, added, also_added, alpha, inverse, raw, activated, positions,
    scale, slope,
    OUT: tl.constexpr, RATE: tl.constexpr, FAN: tl.constexpr, OPEN_END: tl.constexpr, MIRRORED: tl.constexpr,
    ADDS: tl.constexpr, RAW: tl.constexpr, ACTIVATED: tl.constexpr, KIND: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    column = n < OUT
    stored = (m < positions)[:, None] & column[None, :]
    kept = reached[:, None]
    if FAN > 1 and OPEN_END:
        kept = inside[:, None] | (reached[:, None] & (n < OUT // FAN)[None, :])
    here = m[:, None] * OUT + n[None, :]
    total = accumulator + tl.load(bias + n, mask=column, other=0.0)[None, :]
    # Do not load summands where the output is cleared, because they may hold NaN there.
    if ADDS > 0:
        total += tl.load(added + here, mask=stored & kept, other=0.0).to(tl.float32)
    if ADDS > 1:
        total += tl.load(also_added + here, mask=stored & kept, other=0.0).to(tl.float32)
    total = tl.where(kept, total * scale, 0.0)
    if RAW:
        value = total.to(raw.dtype.element_ty)
        if MIRRORED:
            part = (m % RATE * FAN)[:, None] + (n // (OUT // FAN))[None, :]
            first = (tag == 3)[:, None]
            tl.store(raw + here, value, mask=stored & ~(first & (part == 0)))
            tl.store(raw + here - 2 * (OUT // FAN), value, mask=stored & first & (part == 2))
        else:
            tl.store(raw + here, value, mask=stored)
    for which in tl.static_range(ACTIVATED):
        if KIND == 0:
            slots = which * OUT + n
            a = tl.load(alpha + slots, mask=column, other=0.0)[None, :]
            value = _snake(total, a, tl.load(inverse + slots, mask=column, other=0.0)[None, :], FAST)
        elif KIND == 1:
            value = tl.where(total >= 0, total, total * slope)
        else:
            value = tl.where(total >= 0, total, tl.exp(total) - 1)
        value = value.to(activated.dtype.element_ty)
        tl.store(activated + which * (positions * OUT) + here, value, mask=stored)


@triton.jit(do_not_specialize=["positions", "in_positions", "taps", "dilation", "offset"])
def _convolve(
    x, weight, bias, tags, added, also_added, alpha, inverse, raw, activated,
    positions, in_positions, taps, dilation, offset,
    scale, slope,
    IN: tl.constexpr, OUT: tl.constexpr, RATE: tl.constexpr, STRIDE: tl.constexpr, FAN: tl.constexpr,
    OPEN_END: tl.constexpr, MIRRORED: tl.constexpr,
    ADDS: tl.constexpr, RAW: tl.constexpr, ACTIVATED: tl.constexpr, KIND: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    columns: tl.constexpr = (OUT + BN - 1) // BN
    blocks: tl.constexpr = (IN + BK - 1) // BK
    # Neighbouring programs read the same positions, so the second program finds them in the cache.
    m = tl.program_id(0) // columns * BM + tl.arange(0, BM)
    n = tl.program_id(0) % columns * BN + tl.arange(0, BN)
    tag = tl.load(tags + m // RATE, mask=m < positions, other=0)
    inside = (tag == 1) | (tag == 3)
    reached = inside | (tag == 2) & (m % RATE == 0) if OPEN_END else inside
    # A tile that contains only padding skips the sum.
    steps = tl.max(reached.to(tl.int32), axis=0) * taps * blocks
    exact: tl.constexpr = tl.float64 if weight.dtype.element_ty == tl.float64 else tl.float32
    accumulator = tl.zeros((BM, BN), exact)
    depth = tl.arange(0, BK)
    place = m * STRIDE - offset
    signal = x + place[:, None] * IN + depth[None, :]
    weights = weight + depth[:, None] * OUT + n[None, :]
    whole: tl.constexpr = IN % BK == 0 and OUT % BN == 0
    for step in range(0, steps):
        tap = step // blocks
        channel = (step - tap * blocks) * BK
        shift = tap * dilation
        there = ((place + shift >= 0) & (place + shift < in_positions))[:, None]
        if IN % BK != 0:
            there = there & (channel + depth < IN)[None, :]
        left = tl.load(signal + (shift * IN + channel), mask=there, other=0.0)
        if whole:
            right = tl.load(weights + step * (BK * OUT))
        else:
            known = (channel + depth < IN)[:, None] & (n < OUT)[None, :]
            right = tl.load(weights + (tap * IN + channel) * OUT, mask=known, other=0.0)
        left = left.to(weight.dtype.element_ty)
        accumulator = tl.dot(left, right, accumulator, input_precision=PRECISION, out_dtype=exact)
    # Finish in two halves: all columns at once would use the registers of a second program on the multiprocessor.
    low, high = tl.split(tl.permute(tl.reshape(accumulator, (BM, 2, BN // 2)), (0, 2, 1)))
    n = tl.program_id(0) % columns * BN + tl.arange(0, BN // 2)
    for half in tl.static_range(2):
        _finish(
            low if half == 0 else high, m, n + half * (BN // 2), tag, inside, reached,
            bias, added, also_added, alpha, inverse, raw, activated, positions, scale, slope,
            OUT, RATE, FAN, OPEN_END, MIRRORED, ADDS, RAW, ACTIVATED, KIND, FAST,
        )  # fmt: skip


def convolve(
    x: Tensor,
    conv: Convolution,
    tags: Tensor,
    tile: SnakeTile,
    *,
    added: tuple[Tensor, ...] = (),
    scale: float = 1.0,
    raw: torch.dtype | None = None,
    activated: Activated | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute (convolution + bias + added) · scale, with zeros outside rows. x: [positions in, channels in], converted
    to the weights' dtype. tags: [frames] int32: 0 padding, 1 in a row, 2 the frame after a row, 3 a row's first frame.
    added: up to two tensors [positions · fan, columns / fan]  →  the sum [positions · fan, columns / fan] in the dtype
    `raw`, and the activated sum, [count, positions · fan, columns / fan] in the weights' dtype, as the input of the
    next convolution. A result that is not requested is empty.
    """
    positions, columns, wanted = len(tags) * conv.rate, conv.weight.shape[1], activated or NOTHING
    assert max(positions * columns, x.numel()) < 2**31, "offsets are 32 bit"
    assert len(x) == positions * conv.stride, (len(x), positions, conv.stride)
    shape = (positions * conv.fan, columns // conv.fan)
    total = x.new_empty(shape if raw else 0, dtype=raw or x.dtype)
    made = x.new_empty((wanted.count, *shape), dtype=conv.weight.dtype)
    alpha, inverse = (conv.bias if one is None else one for one in (wanted.alpha, wanted.inverse))
    first, second, *_ = (*added, conv.bias, conv.bias)
    grid = (triton.cdiv(positions, tile.rows) * triton.cdiv(columns, tile.columns),)
    launched(_convolve, grid)(
        x, conv.weight, conv.bias, tags, first, second, alpha, inverse, total, made,
        positions, len(x), conv.taps, conv.dilation, conv.offset, scale, wanted.slope,
        IN=conv.channels, OUT=columns, RATE=conv.rate, STRIDE=conv.stride, FAN=conv.fan,
        OPEN_END=conv.open_end, MIRRORED=conv.mirrored,
        ADDS=len(added), RAW=raw is not None, ACTIVATED=wanted.count, KIND=int(wanted.kind),
        BM=tile.rows, BN=tile.columns, BK=tile.depth, PRECISION=PRECISION,
        FAST=conv.weight.dtype != torch.float32 and x.is_cuda, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return total, made


_MULTIPROCESSORS = 132
_ENOUGH = 0.75  # with fewer programs per multiprocessor, smaller tiles are faster
_CUTS = ((128, 128, 8, 3), (64, 128, 4, 4), (128, 64, 4, 3), (64, 64, 4, 4))
"""Rows, columns, warps and stages of 16-bit tiles, measured on one H200; the first with enough programs is used."""


def tile_for(conv: Convolution, frames: int, device: torch.device) -> SnakeTile:
    positions, columns = frames * conv.rate, conv.weight.shape[1]
    if device.type == "cpu":
        # In Triton's interpreter the time depends on the number of programs, not on their size, so tiles are large.
        rows = min(4096, max(16, triton.next_power_of_2(positions)))
        return SnakeTile(rows, min(256, max(32, triton.next_power_of_2(columns))), _depth(conv.channels, 128), 4, 2)
    if conv.weight.element_size() > 2:
        # float32 cannot use tensor cores, so a long sum is slow. Few positions therefore get the smallest tiles.
        few = positions * columns < _MULTIPROCESSORS * 32 * 64
        side = 32 if few else 64
        narrow = min(side, max(32, triton.next_power_of_2(columns)))
        return SnakeTile(side, narrow, 32 if few and conv.channels % 32 == 0 else 16, 4, 3)
    depth = _depth(conv.channels, 64)
    for rows, wide, warps, stages in _CUTS:
        programs = -(-positions // rows) * (columns // wide)
        if columns % wide == 0 and programs >= _ENOUGH * _MULTIPROCESSORS:
            return SnakeTile(rows, wide, depth, warps, stages)
    return SnakeTile(64, 32, depth, 4, 4)


def _depth(channels: int, most: int) -> int:
    """Return the largest of 128, 64 and 32 that is ≤ `most` and divides the channels, else 16."""
    return next((depth for depth in (128, 64, 32) if depth <= most and channels % depth == 0), 16)
