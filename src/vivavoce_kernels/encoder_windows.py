"""Windows of packed rows: the inputs of a convolution at each position, side by side, for one matrix product.

Inputs before a row's first new token are the tails that the row's last chunk left in the pool. A row without a past
refers to a page whose tails are zeros.
"""

from __future__ import annotations

from typing import NamedTuple

import triton.language as tl
from torch import Tensor

import triton
from vivavoce_kernels.common import launched
from vivavoce_kernels.layouts import RowPlaces

_LEAK = tl.constexpr(0.01)


class EncoderTails(NamedTuple):
    """pool: [pages, …, tail, channels], contiguous. slots: [rows] int32, the page whose tails belong to the row. after:
    [rows, tail, channels], receives the new tails; the stride of its rows may be larger.
    """

    pool: Tensor
    slots: Tensor
    after: Tensor


@triton.jit(do_not_specialize=["tokens"])
def _look_ahead(
    ids, table, shift, windows, x, tokens,
    TAPS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    token, channel = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS), tl.arange(0, BLOCK)
    inside, there = channel < SIZE, token < tokens
    missing = tl.load(shift + channel, inside, 0.0).to(tl.float32)
    for tap in tl.static_range(TAPS):
        number = tl.load(ids + token * TAPS + tap, there, -1)
        known = (number >= 0)[:, None] & inside[None, :]
        value = tl.load(table + number[:, None] * SIZE + channel[None, :], known, 0.0)
        stored = there[:, None] & inside[None, :]
        tl.store(windows + (token[:, None] * TAPS + tap) * SIZE + channel[None, :], value, stored)
        if tap == 0:
            value = value.to(tl.float32) + missing[None, :]
            tl.store(x + token[:, None] * SIZE + channel[None, :], value.to(x.dtype.element_ty), stored)


@triton.jit(do_not_specialize=["tokens"])
def _look_back(
    x, pool, slots, row, local, length, windows, after, tokens,
    TAPS: tl.constexpr, RATE: tl.constexpr, TAIL: tl.constexpr, AFTER: tl.constexpr, LEAKY: tl.constexpr,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    token, channel = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS), tl.arange(0, BLOCK)
    inside, there = (channel < SIZE)[None, :], token < tokens
    place = tl.load(local + token, there, -1)
    real = place >= 0
    owner = tl.load(row + token, real, 0)
    if TAIL > 0:
        slot = tl.load(slots + owner, real, 0).to(tl.int64)
        leaves = (real & (place == tl.load(length + owner, real, 0) - 1))[:, None] & inside
    for tap in tl.static_range(TAPS):
        fresh = real & (place + tap >= TAPS - 1)
        value = tl.load(x + (token + tap - TAPS + 1)[:, None] * SIZE + channel[None, :], fresh[:, None] & inside, 0.0)
        if LEAKY:
            value = value.to(tl.float32)
            value = tl.where(value >= 0, value, value * _LEAK).to(windows.dtype.element_ty)
        if TAIL > 0:
            # The `RATE` frames that the pool keeps for an earlier token are all equal, so only the last one is read.
            before = TAPS - 1 - tap - place
            line = slot * TAIL + TAIL - 1 - (before - 1) * RATE
            known = (real & (before > 0))[:, None] & inside
            value += tl.load(pool + line[:, None] * SIZE + channel[None, :], known, 0.0)
            for kept in tl.static_range(TAIL):
                if TAPS - (TAIL - kept + RATE - 1) // RATE == tap:
                    tl.store(after + owner[:, None] * AFTER + (kept * SIZE + channel)[None, :], value, leaves)
        target = windows + (token[:, None] * TAPS + tap) * SIZE + channel[None, :]
        tl.store(target, value, there[:, None] & inside)


def windows_ahead(ids: Tensor, table: Tensor, shift: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
    """Look up each token's embedding and those of the tokens after it. ids: [tokens, taps] int32, each token's own id,
    then the ids after it; a negative id gives zeros. table: [ids, channels]. shift: [channels] float32, added to each
    token's own embedding. tokens: per program  →  windows [tokens, taps · channels], and the sums [tokens, channels].
    """
    (count, taps), size = ids.shape, table.shape[1]
    windows, x = table.new_empty(count, taps * size), table.new_empty(count, size)
    launched(_look_ahead, (triton.cdiv(count, tokens),))(
        ids, table, shift, windows, x, count,
        TAPS=taps, SIZE=size, BLOCK=triton.next_power_of_2(size), TOKENS=tokens, num_warps=4,
    )  # fmt: skip
    return windows, x


def windows_behind(
    x: Tensor,
    places: RowPlaces,
    tails: EncoderTails | None,
    taps: int,
    tokens: int,
    *,
    rate: int = 1,
    leaky: bool = False,
) -> Tensor:
    """Join each token's input with those of the `taps` − 1 tokens before it. x: [tokens, channels], contiguous. tails:
    None if rows have no past and leave no tails. tokens: tokens per program. rate: number of equal frames per token in
    the tails, which reach as far back as the windows. leaky: apply the leaky ReLU to x, and not to the tails, which
    have it already  →  [tokens, taps · channels], zeros in padding.
    """
    count, size = x.shape
    windows = x.new_empty(count, taps * size)
    pool, slots, after = tails or (x, places[0], x)
    launched(_look_back, (triton.cdiv(count, tokens),))(
        x, pool, slots, *places, windows, after, count,
        TAPS=taps, RATE=rate, TAIL=after.shape[1] if tails else 0, AFTER=after.stride(0) if tails else 0, LEAKY=leaky,
        SIZE=size, BLOCK=triton.next_power_of_2(size), TOKENS=tokens, num_warps=4,
    )  # fmt: skip
    return windows
