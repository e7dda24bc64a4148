"""The flow's causal convolution of width 3 over packed rows, with what surrounds it.

What precedes a row's first new frame comes from the tails that the row's last chunk left, and is zero without any.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from vivavoce.models.kernels.flow_math import layer_norm_rows, mish, tile_of

TAIL = 2
"""Frames that precede a convolution's first one."""


@dataclass(frozen=True)
class ConvTile:
    """How the work is cut: frames of one program, input channels at a time; warps and pipeline stages of its loop."""

    frames: int
    channels: int
    warps: int
    stages: int


@dataclass(frozen=True, eq=False)
class Tails:
    """What convolutions read and leave at the edges of a batch's rows.

    before, after: [2, rows, TAIL, channels of all convolutions], before the rows' first new frames and at their ends.
    """

    before: Tensor
    after: Tensor


@dataclass(frozen=True, eq=False)
class ConvWeights:
    """A causal convolution; weight: [out, 3, in] contiguous; bias: [out]; first: its first channel among all tails."""

    weight: Tensor
    bias: Tensor
    first: int


@dataclass(frozen=True, eq=False)
class Frames:
    """Where packed frames stand; int32.

    row, local: [frames], as in `flow_pages.keep_in_pages`; length: [rows], new frames of each.
    """

    row: Tensor
    local: Tensor
    length: Tensor


@triton.jit(do_not_specialize=["level", "frames", "rows", "first_16", "skip_parts"])
def _conv(
    x,
    weight,
    bias,
    norm_weight,
    norm_bias,
    times,
    step,
    skipped,
    skip_weight,
    skip_bias,
    before,
    after,
    row,
    local,
    length,
    out,
    level,
    frames,
    rows,
    first_16,
    skip_parts,
    PARTS: tl.constexpr,
    SKIP: tl.constexpr,
    OUT: tl.constexpr,
    LEVELS: tl.constexpr,
    TAILS: tl.constexpr,
    NORM: tl.constexpr,
    BLOCK: tl.constexpr,
    FRAMES: tl.constexpr,
    STEP: tl.constexpr,
    SKIP_STEP: tl.constexpr,
):
    frame, copy = tl.program_id(0) * FRAMES + tl.arange(0, FRAMES), tl.program_id(1)
    channel, part = tl.arange(0, BLOCK), tl.arange(0, STEP)
    inside = channel < OUT
    there = frame < frames
    # As products with constants, so that the compiler sees by what they can be divided, and loads many at once.
    first, skip_size = first_16 * 16, skip_parts * SKIP_STEP
    size: tl.constexpr = PARTS * STEP
    at = copy * frames + frame
    place = tl.load(local + frame, there, -1)
    real = place >= 0
    owner = tl.load(row + frame, real, 0)
    line = (copy * rows + owner) * 2
    sum = tl.zeros([FRAMES, BLOCK], tl.float32)
    for turn in range(0, 3 * PARTS):
        tap, source = turn // PARTS, turn % PARTS * STEP + part
        value = tl.load(x + (at + tap - 2)[:, None] * size + source[None, :], (real & (place + tap >= 2))[:, None], 0.0)
        if TAILS > 0:
            value += tl.load(
                before + (line + place + tap)[:, None] * TAILS + (first + source)[None, :],
                (real & (place + tap < 2))[:, None],
                0.0,
            )
        taps = tl.load(weight + channel[None, :] * (3 * size) + (turn * STEP + part)[:, None], inside[None, :], 0.0)
        sum = tl.dot(value, taps, sum, input_precision="ieee")
    sum += tl.load(bias + channel, inside, 0.0)[None, :].to(tl.float32)
    if NORM:
        sum = layer_norm_rows(
            sum, tl.load(norm_weight + channel, inside, 0.0), tl.load(norm_bias + channel, inside, 0.0), inside, OUT
        )
        sum = mish(sum)
    if LEVELS > 0:
        time = times + (tl.load(step) * LEVELS + level) * OUT
        sum += tl.load(time + channel, inside, 0.0)[None, :].to(tl.float32)
    if SKIP:
        sum += tl.load(skip_bias + channel, inside, 0.0)[None, :].to(tl.float32)
        wide = tl.arange(0, SKIP_STEP)
        for start in range(0, skip_size, SKIP_STEP):
            source = start + wide
            value = tl.load(skipped + at[:, None] * skip_size + source[None, :], real[:, None], 0.0)
            taps = tl.load(skip_weight + channel[None, :] * skip_size + source[:, None], inside[None, :], 0.0)
            sum = tl.dot(value, taps, sum, input_precision="ieee")
    tl.store(
        out + at[:, None] * OUT + channel[None, :],
        sum.to(out.dtype.element_ty),
        there[:, None] & inside[None, :],
    )
    if TAILS > 0:
        # Here and not with the other reading of x: there it would take registers that the sums need.
        kept = place - tl.load(length + owner, real, 0) + 2
        leaves = (real & (kept >= 0))[:, None]
        for start in range(0, size, STEP):
            source = start + part
            value = tl.load(x + at[:, None] * size + source[None, :], leaves, 0.0)
            tl.store(after + (line + kept)[:, None] * TAILS + (first + source)[None, :], value, leaves)


def causal_conv(
    x: Tensor,
    conv: ConvWeights,
    frames: Frames,
    tails: Tails | None,
    cut: ConvTile,
    *,
    norm: tuple[Tensor, Tensor] | None = None,
    time: tuple[Tensor, Tensor, int] | None = None,
    skip: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:
    """Convolution, then LayerNorm and Mish, then what is added, as far as they are given.

    Args:
        x: [2 · frames, in], contiguous.
        tails: None: rows begin with what they have, and leave nothing.
        norm: weight and bias of the LayerNorm that Mish follows.
        time: biases of all steps and levels [steps, levels, out], the step [1] int32, and the level.
        skip: [2 · frames, skipped] contiguous, the weight [out, skipped] and bias [out] of a convolution of width 1.

    Returns:
        [2 · frames, out]; finite in padding, whatever x is there. The last inputs of each row are in `tails.after`.
    """
    count, size = len(frames.row), x.shape[1]
    channels = len(conv.bias)
    out = torch.empty(2 * count, channels, dtype=x.dtype, device=x.device)
    skipped = skip[0].shape[1] if skip else size
    step, skip_step = tile_of(size, cut.channels), tile_of(skipped, cut.channels)
    _conv[(triton.cdiv(count, cut.frames), 2)](
        x,
        conv.weight,
        conv.bias,
        *(norm or (conv.bias, conv.bias)),
        *(time[:2] if time else (conv.bias, frames.length)),
        *(skip or (x, conv.weight, conv.bias)),
        *((tails.before, tails.after) if tails else (x, x)),
        frames.row,
        frames.local,
        frames.length,
        out,
        time[2] if time else 0,
        count,
        len(frames.length),
        conv.first // 16,
        skipped // skip_step,
        size // step,
        skip is not None,
        channels,
        time[0].shape[1] if time else 0,
        tails.before.shape[3] if tails else 0,
        norm is not None,
        triton.next_power_of_2(channels),
        cut.frames,
        step,
        skip_step,
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    return out
