"""Causal grouped convolutions over packed rows, with many taps and few channels per group.

The inputs before a row's first new frame are the tails that the row's last chunk left, or zeros if it has no past.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor, nn

import triton
from vivavoce_kernels.common import mish
from vivavoce_kernels.flow_products import ConvTails, ConvTile, ConvWeights
from vivavoce_kernels.layouts import RowPlaces

_LEAST = 16  # smallest number of channels in a matrix product
_CHANNELS = 128


def grouped_weights(conv: nn.Conv1d, first: int) -> ConvWeights:
    """Join groups that are too narrow for a matrix product, with zeros between them  →  weight: [blocks, taps, in, out]
    contiguous; first: as in `ConvWeights`. ValueError: the size of a group is not a power of two.
    """
    (channels, size, taps), groups = conv.weight.shape, conv.groups
    if size & (size - 1) or channels % _LEAST:
        raise ValueError(
            f"{size} channels in each of {groups} groups; the flow's kernels need a power of two; run without kernels"
        )
    assert conv.bias is not None
    together = max(1, _LEAST // size)
    apart = conv.weight.view(groups // together, together, size, size, taps).permute(0, 4, 1, 3, 2)
    weight = apart.new_zeros(groups // together, taps, together, size, together, size)
    for place in range(together):
        weight[:, :, place, :, place] = apart[:, :, place]
    return ConvWeights(weight.flatten(4).flatten(2, 3), conv.bias, first)


@triton.jit(do_not_specialize=["frames", "rows", "first_16"])
def _convolve(
    x, weight, bias, skipped, before, row, local, out, frames, rows, first_16,
    TAPS: tl.constexpr, TAILS: tl.constexpr, SKIP: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    FRAMES: tl.constexpr,
):  # fmt: skip
    frame, block, copy = tl.program_id(0) * FRAMES + tl.arange(0, FRAMES), tl.program_id(1), tl.program_id(2)
    part, there = tl.arange(0, BLOCK), frame < frames
    channel, at = block * BLOCK + part, copy * frames + frame
    place = tl.load(local + frame, there, -1)
    real = place >= 0
    line = (copy * rows + tl.load(row + frame, real, 0)) * (TAPS - 1) + place
    sum = tl.zeros([FRAMES, BLOCK], tl.float32)
    for tap in range(TAPS):
        fresh = place + tap >= TAPS - 1
        value = tl.load(x + (at + tap - TAPS + 1)[:, None] * SIZE + channel[None, :], (real & fresh)[:, None], 0.0)
        if TAILS > 0:
            old = before + (line + tap)[:, None] * TAILS + (first_16 * 16 + channel)[None, :]
            value += tl.load(old, (real & (place + tap < TAPS - 1))[:, None], 0.0)
        taps = tl.load(weight + ((block * TAPS + tap) * BLOCK + part)[:, None] * BLOCK + part[None, :])
        sum = tl.dot(value, taps, sum, input_precision="ieee")
    sum = mish(sum + tl.load(bias + channel)[None, :].to(tl.float32))
    target = at[:, None] * SIZE + channel[None, :]
    if SKIP:
        sum += tl.load(skipped + target, there[:, None], 0.0).to(tl.float32)
    tl.store(out + target, sum.to(out.dtype.element_ty), there[:, None])


@triton.jit(do_not_specialize=["frames", "first_channel"])
def _keep_tails(
    x, before, after, first, length, frames, first_channel,
    TAIL: tl.constexpr, LINES: tl.constexpr, TAILS: tl.constexpr, SIZE: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    row, copy, channel = tl.program_id(0), tl.program_id(1), tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    new, start, rows = tl.load(length + row), tl.load(first + row), tl.num_programs(0)
    if new == 0:
        return
    line, inside = tl.arange(0, LINES), (channel < SIZE)[None, :]
    place, known = new + line - TAIL, line < TAIL
    value = tl.load(
        x + (copy * frames + start + place)[:, None] * SIZE + channel[None, :],
        (known & (place >= 0))[:, None] & inside, 0.0,
    )  # fmt: skip
    tails = (copy * rows + row) * TAIL
    # If a row has fewer new frames than its tail, a part of the old tail stays in the new one.
    value += tl.load(
        before + (tails + new + line)[:, None] * TAILS + (first_channel + channel)[None, :],
        (known & (place < 0))[:, None] & inside, 0.0,
    )  # fmt: skip
    target = after + (tails + line)[:, None] * TAILS + (first_channel + channel)[None, :]
    tl.store(target, value, known[:, None] & inside)


def position_conv(
    x: Tensor,
    conv: ConvWeights,
    places: RowPlaces,
    first: Tensor,
    tails: ConvTails | None,
    cut: ConvTile,
    skip: Tensor | None = None,
) -> Tensor:
    """Compute Mish of a causal grouped convolution, plus `skip`. x, skip: [2 · frames, channels], contiguous. first:
    [rows] int32, packed index of each row's first new frame. tails: as in `causal_conv`, but of taps − 1 frames. conv:
    from `grouped_weights`. cut: `cut.channels` has no effect  →  like x.
    """
    (blocks, taps, block, _), (row, local, length) = conv.weight.shape, places
    out, frames, size = torch.empty_like(x), len(row), x.shape[1]
    total = tails.before.shape[3] if tails else 0
    _convolve[(triton.cdiv(frames, cut.frames), blocks, 2)](
        x, conv.weight, conv.bias, x if skip is None else skip, tails.before if tails else x, row, local, out,
        frames, len(length), conv.first // 16,
        TAPS=taps, TAILS=total, SKIP=skip is not None, SIZE=size, BLOCK=block, FRAMES=cut.frames,
        num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip
    if tails:
        wide = min(_CHANNELS, triton.next_power_of_2(size))
        _keep_tails[(len(length), 2, triton.cdiv(size, wide))](
            x, *tails, first, length, frames, conv.first,
            TAIL=taps - 1, LINES=triton.next_power_of_2(taps - 1), TAILS=total, SIZE=size, CHANNELS=wide, num_warps=4,
        )  # fmt: skip
    return out
