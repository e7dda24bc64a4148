"""Attention over slots: of a decode step, one new row per slot, and of a prefill, packed rows of several sequences.

Decode: one program does one slot and one key-value head with all the query heads that share it. It rotates query and
key, stores key and value in the slot's memory, and uses them from registers, so that storing and reading do not race.
Each warp keeps a softmax of its own over its share of the keys, so that warps wait for one another at the end only. For
few slots the length is divided among several programs too, whose results a second kernel merges.

Prefill: every sequence begins at a multiple of `ROW_TILE` rows. A program does one tile of rows, which are of one
sequence, and one key-value head; the rows' query heads of that group are the rows of its products. Keys are read in
blocks that begin at absolute positions, so what a row computes does not depend on the other sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

import triton
from vivavoce.models.kernels.common import launched
from vivavoce.models.kernels.lm_rows import launch_options, wait_for_inputs


class Rotations(NamedTuple):
    """cos, sin: [positions, head_dim / 2] float32."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True)
class SplitK:
    """How a slot's length is worked off: keys per round, 16 or more for each warp; programs that take the rounds in
    turn; and the compiler's warps and stages.
    """

    keys: int
    splits: int
    warps: int
    stages: int


class PartialAttention(NamedTuple):
    """Attention of n slots that is not put together yet.

    partial: [n · heads · splits, head_dim] float32; parts: [n · heads · splits, 2] float32, each one's largest score
    and sum of weights. With splits 0, partial is the result itself.
    """

    partial: Tensor
    parts: Tensor
    splits: int


def dealing_for(slots: int) -> SplitK:
    """By the number of slots in the step: few are dealt out, so that all multiprocessors have work."""
    if slots <= 16:
        return SplitK(keys=64, splits=8, warps=2, stages=1)
    if slots <= 32:
        return SplitK(keys=64, splits=4, warps=4, stages=2)
    return SplitK(keys=64, splits=1, warps=2, stages=3)


@triton.jit
def rotated(x, partner, cos, sin, half: tl.constexpr, dtype: tl.constexpr):
    """Halves rotated: x and the row with its halves exchanged, [..., head_dim] each; cos, sin: both halves' tables."""
    first = tl.arange(0, 2 * half) < half
    turned = tl.where(first, -sin, sin)
    return (x.to(tl.float32) * cos + partner.to(tl.float32) * turned).to(dtype)


@triton.jit(do_not_specialize=["stride", "capacity"])
def _decode_attention_kernel(
    qkv, keys, values, positions, running, cos, sin, out, parts, stride, capacity, scale,
    heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr, group_rows: tl.constexpr,
    block: tl.constexpr, sides: tl.constexpr, splits: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    slot, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    half: tl.constexpr = head_dim // 2
    group: tl.constexpr = heads // kv_heads
    dtype: tl.constexpr = keys.dtype.element_ty
    d, g, within = tl.arange(0, head_dim), tl.arange(0, group_rows), tl.arange(0, block)
    side = tl.arange(0, sides)
    partner = (d + half) % head_dim
    in_group = (g < group)[:, None]
    row = qkv + slot * (heads + 2 * kv_heads) * head_dim
    result = (slot * heads + head * group + g) * splits + split
    position = tl.load(positions + slot * stride).to(tl.int32)
    is_running = tl.load(running + slot * stride)
    c, s = tl.load(cos + position * half + d % half), tl.load(sin + position * half + d % half)
    base = (slot * kv_heads + head) * capacity * head_dim
    place = side[:, None] * block + within[None, :]
    if dependent:
        wait_for_inputs()
    peak = tl.full([sides, group_rows], -1e30, tl.float32)
    weight = tl.zeros([sides, group_rows], tl.float32)
    total = tl.zeros([sides, group_rows, head_dim], tl.float32)
    if is_running != 0:
        q_row = row + (head * group + g)[:, None] * head_dim
        query = rotated(
            tl.load(q_row + d[None, :], in_group, 0.0), tl.load(q_row + partner[None, :], in_group, 0.0),
            c[None, :], s[None, :], half, dtype,
        )  # fmt: skip
        k_row = row + (heads + head) * head_dim
        key = rotated(tl.load(k_row + d), tl.load(k_row + partner), c, s, half, dtype)
        value = tl.load(row + (heads + kv_heads + head) * head_dim + d).to(dtype)
        if split == 0:
            tl.store(keys + base + position * head_dim + d, key)
            tl.store(values + base + position * head_dim + d, value)
            # The new key is the first side's.
            own = (side == 0)[:, None]
            newest = tl.sum(query.to(tl.float32) * key.to(tl.float32)[None, :], 1) * scale
            peak = tl.where(own, newest[None, :], peak)
            weight = tl.where(own, 1.0, weight)
            total = tl.where(own[:, :, None], value.to(tl.float32)[None, None, :], total)
        queries = tl.broadcast_to(query[None, :, :], sides, group_rows, head_dim)
        at = base + place[:, :, None] * head_dim + d[None, None, :]
        for start in range(split * block * sides, position, splits * block * sides):
            known = start + place < position
            tile = at + start * head_dim
            k = tl.load(keys + tile, known[:, :, None], 0.0)
            v = tl.load(values + tile, known[:, :, None], 0.0)
            scores = tl.dot(queries, tl.permute(k, (0, 2, 1)), input_precision="ieee") * scale
            scores = tl.where(known[:, None, :], scores, float("-inf"))
            higher = tl.maximum(peak, tl.max(scores, 2))
            p = tl.exp(scores - higher[:, :, None])
            fading = tl.exp(peak - higher)
            total = total * fading[:, :, None] + tl.dot(p.to(dtype), v, input_precision="ieee")
            weight = weight * fading + tl.sum(p, 2)
            peak = higher
    highest = tl.max(peak, 0)
    share = tl.exp(peak - highest[None, :])
    weights = tl.sum(weight * share, 0)
    result_rows = tl.sum(total * share[:, :, None], 0)
    where = out + result[:, None] * head_dim + d[None, :]
    if splits == 1:
        # A slot that does not run has no weight: its row is 0.
        tl.store(where, (result_rows / tl.maximum(weights, 1e-30)[:, None]).to(out.dtype.element_ty), in_group)
    else:
        tl.store(parts + result * 2, highest, g < group)
        tl.store(parts + result * 2 + 1, weights, g < group)
        tl.store(where, result_rows, in_group)


@triton.jit
def _combine_kernel(
    partial, parts, out, head_dim: tl.constexpr, splits: tl.constexpr, heads: tl.constexpr, head_rows: tl.constexpr,
    dependent: tl.constexpr,
):  # fmt: skip
    head, d = tl.arange(0, head_rows), tl.arange(0, head_dim)
    inside = head < heads
    row = tl.program_id(0).to(tl.int64) * heads + head
    if dependent:
        wait_for_inputs()
    highest = tl.full([head_rows], -1e30, tl.float32)
    for split in tl.static_range(splits):
        highest = tl.maximum(highest, tl.load(parts + (row * splits + split) * 2, inside, -1e30))
    weight = tl.zeros([head_rows], tl.float32)
    total = tl.zeros([head_rows, head_dim], tl.float32)
    for split in tl.static_range(splits):
        at = row * splits + split
        share = tl.exp(tl.load(parts + at * 2, inside, -1e30) - highest)
        weight += share * tl.load(parts + at * 2 + 1, inside, 0.0)
        total += share[:, None] * tl.load(partial + at[:, None] * head_dim + d[None, :], inside[:, None], 0.0)
    result = (total / tl.maximum(weight, 1e-30)[:, None]).to(out.dtype.element_ty)
    tl.store(out + row[:, None] * head_dim + d[None, :], result, inside[:, None])


def decode_attention(
    qkv: Tensor, memory: Tensor, positions: Tensor, running: Tensor, rotations: Rotations, heads: int,
    dealing: SplitK, *, dependent: bool,
) -> Tensor:  # fmt: skip
    """Rotate, store and attend for the first n slots of one layer  →  [n, heads · head_dim], qkv's dtype.

    qkv: [n, (heads + 2 · kv_heads) · head_dim], not yet rotated, heads being query heads; memory: the layer's keys and
    values, [2, slots, kv_heads, capacity, head_dim]; head_dim is a power of 2; positions: [n] int64, where the new key
    goes; running: [n] int64 of the same stride; of a slot at 0 nothing is read or stored, and its row is 0; rotations:
    by position; dealing: any; results differ in rounding; dependent: see `lm_rows.dependent_launches`.
    """
    divided = divided_attention(qkv, memory, positions, running, rotations, heads, dealing, dependent=dependent)
    if divided.splits == 0:
        return divided.partial
    head_dim = divided.partial.shape[1]
    out = torch.empty(len(qkv), heads * head_dim, dtype=qkv.dtype, device=qkv.device)
    launched(_combine_kernel, (len(qkv),))(
        divided.partial, divided.parts, out, head_dim=head_dim, splits=divided.splits, heads=heads,
        head_rows=triton.next_power_of_2(heads), dependent=dependent, num_warps=4, **launch_options(dependent),
    )  # fmt: skip
    return out


def divided_attention(
    qkv: Tensor, memory: Tensor, positions: Tensor, running: Tensor, rotations: Rotations, heads: int,
    dealing: SplitK, *, dependent: bool,
) -> PartialAttention:  # fmt: skip
    """The same, not put together where the dealing has several programs."""
    slots, splits = len(qkv), dealing.splits
    _, _, kv_heads, capacity, head_dim = memory.shape
    if splits > 1:
        partial = torch.empty(slots * heads * splits, head_dim, dtype=torch.float32, device=qkv.device)
        parts = torch.empty(slots * heads * splits, 2, dtype=torch.float32, device=qkv.device)
    else:
        partial, parts = torch.empty(slots, heads * head_dim, dtype=qkv.dtype, device=qkv.device), rotations.cos
    launched(_decode_attention_kernel, (slots, kv_heads, splits))(
        qkv, *memory, positions, running, *rotations, partial, parts,
        positions.stride(0), capacity, head_dim**-0.5, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        group_rows=max(16, triton.next_power_of_2(heads // kv_heads)), block=dealing.keys // dealing.warps,
        sides=dealing.warps, splits=splits, dependent=dependent,
        num_warps=dealing.warps, num_stages=dealing.stages, **launch_options(dependent),
    )  # fmt: skip
    return PartialAttention(partial, parts, splits if splits > 1 else 0)


ROW_TILE = 16
"""Rows of one program."""
_KEYS, _WARPS, _STAGES = 64, 4, 3


@triton.jit(do_not_specialize=["capacity"])
def _append_kernel(
    qkv, keys, values, slots, positions, cos, sin, capacity,
    heads: tl.constexpr, kv_heads: tl.constexpr, head_rows: tl.constexpr, head_dim: tl.constexpr,
    dependent: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    half: tl.constexpr = head_dim // 2
    head, d = tl.arange(0, head_rows), tl.arange(0, head_dim)
    partner = (d + half) % head_dim
    inside = (head < kv_heads)[:, None]
    slot, position = tl.load(slots + row), tl.load(positions + row)
    c, s = tl.load(cos + position * half + d % half), tl.load(sin + position * half + d % half)
    target = ((slot * kv_heads + head)[:, None] * capacity + position) * head_dim + d[None, :]
    source = qkv + (row * (heads + 2 * kv_heads) + heads + head)[:, None] * head_dim
    if dependent:
        wait_for_inputs()
    key, turned = tl.load(source + d[None, :], inside, 0.0), tl.load(source + partner[None, :], inside, 0.0)
    tl.store(keys + target, rotated(key, turned, c[None, :], s[None, :], half, keys.dtype.element_ty), inside)
    value = tl.load(source + kv_heads * head_dim + d[None, :], inside, 0.0)
    tl.store(values + target, value.to(values.dtype.element_ty), inside)


@triton.jit(do_not_specialize=["capacity"])
def _prefill_attention_kernel(
    qkv, keys, values, slots, positions, cos, sin, out, capacity, scale,
    heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr, group_rows: tl.constexpr,
    row_tile: tl.constexpr, block: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    first, head = tl.program_id(0).to(tl.int64) * row_tile, tl.program_id(1)
    half: tl.constexpr = head_dim // 2
    group: tl.constexpr = heads // kv_heads
    dtype: tl.constexpr = keys.dtype.element_ty
    d, within = tl.arange(0, head_dim), tl.arange(0, block)
    partner = (d + half) % head_dim
    # Row after row, and within a row one query head after another.
    m = tl.arange(0, row_tile * group_rows)
    row, g = first + m // group_rows, m % group_rows
    in_group = (g < group)[:, None]
    slot = tl.load(slots + first)
    position = tl.load(positions + row).to(tl.int32)
    last = tl.max(position, 0)
    angle = position[:, None] * half + (d % half)[None, :]
    c, s = tl.load(cos + angle), tl.load(sin + angle)
    if dependent:
        wait_for_inputs()
    q_row = qkv + (row * (heads + 2 * kv_heads) + head * group + g)[:, None] * head_dim
    query = rotated(
        tl.load(q_row + d[None, :], in_group, 0.0), tl.load(q_row + partner[None, :], in_group, 0.0), c, s, half, dtype
    )
    at = (slot * kv_heads + head) * capacity * head_dim + within[:, None] * head_dim + d[None, :]
    peak = tl.full([row_tile * group_rows], -1e30, tl.float32)
    weight = tl.zeros([row_tile * group_rows], tl.float32)
    total = tl.zeros([row_tile * group_rows, head_dim], tl.float32)
    for start in range(0, last + 1, block):
        # What stands past the tile's last row is another's rest: it may be anything, and 0 times it not 0.
        known = start + within <= last
        tile = at + start * head_dim
        k = tl.load(keys + tile, known[:, None], 0.0)
        v = tl.load(values + tile, known[:, None], 0.0)
        scores = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where((start + within)[None, :] <= position[:, None], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        p = tl.exp(scores - higher[:, None])
        fading = tl.exp(peak - higher)
        total = total * fading[:, None] + tl.dot(p.to(dtype), v, input_precision="ieee")
        weight = weight * fading + tl.sum(p, 1)
        peak = higher
    place = out + (row * heads + head * group + g)[:, None] * head_dim + d[None, :]
    tl.store(place, (total / weight[:, None]).to(out.dtype.element_ty), in_group)


def prefill_attention(
    qkv: Tensor, memory: Tensor, slots: Tensor, positions: Tensor, rotations: Rotations, heads: int, *, dependent: bool
) -> Tensor:
    """Rotate, store and attend for packed rows of one layer; the rest as in `decode_attention`.

    qkv: its rows are a multiple of `ROW_TILE`; slots: [rows] int64, where each row is stored; a tile attends to its
    first row's slot; positions: [rows] int64; of rows that only pad a tile 0, which every slot has
    →  [rows, heads · head_dim], qkv's dtype
    """
    rows = len(qkv)
    _, _, kv_heads, capacity, head_dim = memory.shape
    out = torch.empty(rows, heads * head_dim, dtype=qkv.dtype, device=qkv.device)
    launched(_append_kernel, (rows,))(
        qkv, *memory, slots, positions, *rotations, capacity, heads=heads, kv_heads=kv_heads,
        head_rows=triton.next_power_of_2(kv_heads), head_dim=head_dim, dependent=dependent, num_warps=1,
        **launch_options(dependent),
    )  # fmt: skip
    group_rows = triton.next_power_of_2(heads // kv_heads)
    launched(_prefill_attention_kernel, (rows // ROW_TILE, kv_heads))(
        qkv, *memory, slots, positions, *rotations, out, capacity, head_dim**-0.5, heads=heads,
        kv_heads=kv_heads, head_dim=head_dim, group_rows=group_rows, row_tile=ROW_TILE, block=_KEYS,
        dependent=dependent, num_warps=_WARPS, num_stages=_STAGES, **launch_options(dependent),
    )  # fmt: skip
    return out
