"""The flow's matrix products with the operations around them: linear layers, and causal convolutions of width 3.

Unlike torch's library, a linear layer here sums in one order for any number of rows, so a row's result does not depend
on other rows. For a convolution, the inputs before a row's first new frame are the tails that the row's last chunk
left, or zeros if the row has no past.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import triton.language as tl
from torch import Tensor
from torch.nn import functional

import triton
from vivavoce_kernels.common import gelu, gelu_by_tanh, layer_norm_rows, mish, tile_of
from vivavoce_kernels.layouts import RowPlaces

TAIL = 2  # frames that a convolution reads before its first output frame


@dataclass(frozen=True)
class ConvTile:
    """frames: frames per program; channels: input channels per step of the loop; warps; stages: pipeline stages."""

    frames: int
    channels: int
    warps: int
    stages: int


class ConvTails(NamedTuple):
    """Both [2, rows, TAIL, all convolutions' channels]. before: inputs before new frames; after: last inputs."""

    before: Tensor
    after: Tensor


class ConvWeights(NamedTuple):
    """weight: [out, 3, in] contiguous; bias: [out]; first: index of the convolution's first channel in the tails."""

    weight: Tensor
    bias: Tensor
    first: int


@triton.jit(do_not_specialize=["level", "frames", "rows", "first_16", "skip_parts"])
def _conv(
    x, weight, bias, norm_weight, norm_bias, times, step, skipped, skip_weight, skip_bias, before, after, row,
    local, length, out, level, frames, rows, first_16, skip_parts,
    PARTS: tl.constexpr, SKIP: tl.constexpr, OUT: tl.constexpr, LEVELS: tl.constexpr, TAILS: tl.constexpr,
    NORM: tl.constexpr, BLOCK: tl.constexpr, FRAMES: tl.constexpr, STEP: tl.constexpr, SKIP_STEP: tl.constexpr,
):  # fmt: skip
    frame, copy = tl.program_id(0) * FRAMES + tl.arange(0, FRAMES), tl.program_id(1)
    channel, part = tl.arange(0, BLOCK), tl.arange(0, STEP)
    inside = channel < OUT
    there = frame < frames
    # Written as products with constants, so that the compiler knows the divisors and uses wide loads.
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
    tl.store(out + at[:, None] * OUT + channel[None, :], sum.to(out.dtype.element_ty), there[:, None] & inside[None, :])
    if TAILS > 0:
        # x is loaded again here: storing the tails in the loop above would take registers from the sums.
        kept = place - tl.load(length + owner, real, 0) + 2
        leaves = (real & (kept >= 0))[:, None]
        for start in range(0, size, STEP):
            source = start + part
            value = tl.load(x + at[:, None] * size + source[None, :], leaves, 0.0)
            tl.store(after + (line + kept)[:, None] * TAILS + (first + source)[None, :], value, leaves)


def causal_conv(
    x: Tensor,
    conv: ConvWeights,
    places: RowPlaces,
    tails: ConvTails | None,
    cut: ConvTile,
    *,
    norm: tuple[Tensor, Tensor] | None = None,
    time: tuple[Tensor, Tensor, int] | None = None,
    skip: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:
    """Compute a convolution, LayerNorm with Mish if `norm` (weight and bias) is given, and sums. x: [2 · frames, in],
    contiguous. tails: None if rows have no past and leave no tails; else `tails.after` receives the rows' last inputs.
    time: the additive biases of all steps and levels [steps, levels, out], the step [1] int32, and the level. skip: an
    input [2 · frames, skipped], contiguous, and the weight [out, skipped] and bias [out] of a convolution of width 1
    whose result is added  →  [2 · frames, out]; finite in padding, whatever x holds there.
    """
    count, size, channels = len(places[0]), x.shape[1], len(conv.bias)
    out = torch.empty(2 * count, channels, dtype=x.dtype, device=x.device)
    skipped = skip[0].shape[1] if skip else size
    step, skip_step = tile_of(size, cut.channels), tile_of(skipped, cut.channels)
    _conv[(triton.cdiv(count, cut.frames), 2)](
        x, conv.weight, conv.bias, *(norm or (conv.bias, conv.bias)), *(time[:2] if time else (conv.bias, places[2])),
        *(skip or (x, conv.weight, conv.bias)), *(tails or (x, x)), *places, out,
        time[2] if time else 0, count, len(places[2]), conv.first // 16, skipped // skip_step,
        PARTS=size // step, SKIP=skip is not None, OUT=channels, LEVELS=time[0].shape[1] if time else 0,
        TAILS=tails.before.shape[3] if tails else 0, NORM=norm is not None, BLOCK=triton.next_power_of_2(channels),
        FRAMES=cut.frames, STEP=step, SKIP_STEP=skip_step, num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip
    return out


@dataclass(frozen=True)
class ProductTile:
    """rows, columns: outputs per program; inputs: per step of the loop; warps; stages: pipeline stages of the loop."""

    rows: int
    columns: int
    inputs: int
    warps: int
    stages: int


@triton.jit(do_not_specialize=["num_rows"])
def _product(
    x, weight, bias, out, num_rows,
    IN: tl.constexpr, OUT: tl.constexpr, BIAS: tl.constexpr, GELU: tl.constexpr, ADD: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INPUTS: tl.constexpr,
):  # fmt: skip
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
    if GELU == "none":
        sum = gelu(sum)
    if GELU == "tanh":
        sum = gelu_by_tanh(sum)
    target = out + row[:, None] * OUT + column[None, :]
    if ADD:
        sum += tl.load(target, there, 0.0).to(tl.float32)
    tl.store(target, sum.to(out.dtype.element_ty), there)


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cut: ProductTile | None,
    *,
    gelu: Literal["none", "tanh"] | None = None,
    into: Tensor | None = None,
) -> Tensor:
    """Compute gelu(x · weightᵀ + bias). With `into`, add the result to `into` in place.

    x: [rows, in]; weight: [out, in]; bias: [out]; into: [rows, out]; all contiguous. cut: the tile, or None to use
    torch's library. Its GELU on CUDA always has the tanh form; 16 bits cannot show the difference from the exact form.
    """
    if cut is None:
        if into is not None:
            return into.addmm_(x, weight.t())
        if bias is None:
            return x @ weight.t()
        if gelu is None or (gelu == "tanh" and not x.is_cuda):
            made = torch.addmm(bias, x, weight.t())
            return made if gelu is None else functional.gelu(made, approximate=gelu)
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)
    (rows, size), columns = x.shape, len(weight)
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device) if into is None else into
    wide = tile_of(columns, cut.columns)
    _product[(triton.cdiv(rows, cut.rows), columns // wide)](
        x, weight, weight if bias is None else bias, out, rows,
        IN=size, OUT=columns, BIAS=bias is not None, GELU=gelu, ADD=into is not None, ROWS=cut.rows, COLUMNS=wide,
        INPUTS=tile_of(size, cut.inputs), num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip
    return out
