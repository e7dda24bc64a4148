"""Attention of the language model, for decode steps (one new row per slot) and prefills (packed rows of sequences).

Decode: one program computes one slot and one key-value head, with all query heads that share this head. It rotates the
query and the key, and stores the key and value in the slot's memory. It takes the new key and value from registers, so
it never reads memory that it has just written. Each warp has its own online softmax (arXiv:1805.02867: running maximum
m_i, sum l_i and output acc, which alpha rescales) over its share of the keys, so warps synchronise only at the end. For
few slots, several programs divide the keys, and a second kernel merges the results: split-K (arXiv:2311.01282).

Prefill: every sequence begins at a multiple of `ROW_TILE` rows. A program computes one tile of rows of one sequence,
and one key-value head. Its matrix products have one row for each pair of a packed row and a query head. Keys are read
in blocks at fixed positions, so a row's result does not depend on the other sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

import triton
from vivavoce_kernels.common import launched
from vivavoce_kernels.lm_rows import launch_options, wait_for_inputs


class Rotations(NamedTuple):
    """Rotary embedding tables. cos, sin: [positions, head_dim / 2] float32."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True)
class SplitK:
    """Sizes of FlashDecoding's split-K (arXiv:2311.01282).

    keys: keys that a program reads per round, at least 16 for each warp; splits: programs that divide the rounds.
    """

    keys: int
    splits: int
    warps: int
    stages: int


class PartialAttention(NamedTuple):
    """acc: [n · heads · splits, head_dim] float32, not yet divided by l. stats: [n · heads · splits, 2] float32, each
    split's m (largest score) and l (sum of weights). If `splits` is 0, acc is the final result.
    """

    acc: Tensor
    stats: Tensor
    splits: int


def split_k_for(slots: int) -> SplitK:
    if slots <= 16:
        return SplitK(keys=64, splits=8, warps=2, stages=1)
    if slots <= 32:
        return SplitK(keys=64, splits=4, warps=4, stages=2)
    return SplitK(keys=64, splits=1, warps=2, stages=3)


@triton.jit
def rotated(x, partner, cos, sin, half: tl.constexpr, dtype: tl.constexpr):
    first = tl.arange(0, 2 * half) < half
    turned = tl.where(first, -sin, sin)
    return (x.to(tl.float32) * cos + partner.to(tl.float32) * turned).to(dtype)


@triton.jit(do_not_specialize=["stride", "capacity"])
def _decode_attention_kernel(
    qkv, keys, values, positions, running, cos, sin, out, stats, stride, capacity, scale,
    heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr, block_m: tl.constexpr,
    block_n: tl.constexpr, warps: tl.constexpr, split_k: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    slot, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    half: tl.constexpr = head_dim // 2
    group: tl.constexpr = heads // kv_heads
    dtype: tl.constexpr = keys.dtype.element_ty
    d, g, within = tl.arange(0, head_dim), tl.arange(0, block_m), tl.arange(0, block_n)
    warp = tl.arange(0, warps)
    partner = (d + half) % head_dim
    in_group = (g < group)[:, None]
    row = qkv + slot * (heads + 2 * kv_heads) * head_dim
    result = (slot * heads + head * group + g) * split_k + split
    position = tl.load(positions + slot * stride).to(tl.int32)
    is_running = tl.load(running + slot * stride)
    c, s = tl.load(cos + position * half + d % half), tl.load(sin + position * half + d % half)
    base = (slot * kv_heads + head) * capacity * head_dim
    place = warp[:, None] * block_n + within[None, :]
    if dependent:
        wait_for_inputs()
    m_i = tl.full([warps, block_m], -1e30, tl.float32)
    l_i = tl.zeros([warps, block_m], tl.float32)
    acc = tl.zeros([warps, block_m, head_dim], tl.float32)
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
            # The first warp adds the new key to its softmax.
            own = (warp == 0)[:, None]
            newest = tl.sum(query.to(tl.float32) * key.to(tl.float32)[None, :], 1) * scale
            m_i = tl.where(own, newest[None, :], m_i)
            l_i = tl.where(own, 1.0, l_i)
            acc = tl.where(own[:, :, None], value.to(tl.float32)[None, None, :], acc)
        queries = tl.broadcast_to(query[None, :, :], warps, block_m, head_dim)
        at = base + place[:, :, None] * head_dim + d[None, None, :]
        for start in range(split * block_n * warps, position, split_k * block_n * warps):
            known = start + place < position
            tile = at + start * head_dim
            k = tl.load(keys + tile, known[:, :, None], 0.0)
            v = tl.load(values + tile, known[:, :, None], 0.0)
            scores = tl.dot(queries, tl.permute(k, (0, 2, 1)), input_precision="ieee") * scale
            scores = tl.where(known[:, None, :], scores, float("-inf"))
            m_new = tl.maximum(m_i, tl.max(scores, 2))
            p = tl.exp(scores - m_new[:, :, None])
            alpha = tl.exp(m_i - m_new)
            acc = acc * alpha[:, :, None] + tl.dot(p.to(dtype), v, input_precision="ieee")
            l_i = l_i * alpha + tl.sum(p, 2)
            m_i = m_new
    m_all = tl.max(m_i, 0)
    alpha_all = tl.exp(m_i - m_all[None, :])
    l_all = tl.sum(l_i * alpha_all, 0)
    acc_all = tl.sum(acc * alpha_all[:, :, None], 0)
    where = out + result[:, None] * head_dim + d[None, :]
    if split_k == 1:
        # A slot that is not running has l = 0, and gets a row of zeros.
        tl.store(where, (acc_all / tl.maximum(l_all, 1e-30)[:, None]).to(out.dtype.element_ty), in_group)
    else:
        tl.store(stats + result * 2, m_all, g < group)
        tl.store(stats + result * 2 + 1, l_all, g < group)
        tl.store(where, acc_all, in_group)


@triton.jit
def _combine_kernel(
    acc, stats, out, head_dim: tl.constexpr, split_k: tl.constexpr, heads: tl.constexpr, head_rows: tl.constexpr,
    dependent: tl.constexpr,
):  # fmt: skip
    head, d = tl.arange(0, head_rows), tl.arange(0, head_dim)
    inside = head < heads
    row = tl.program_id(0).to(tl.int64) * heads + head
    if dependent:
        wait_for_inputs()
    m_all = tl.full([head_rows], -1e30, tl.float32)
    for split in tl.static_range(split_k):
        m_all = tl.maximum(m_all, tl.load(stats + (row * split_k + split) * 2, inside, -1e30))
    l_all = tl.zeros([head_rows], tl.float32)
    acc_all = tl.zeros([head_rows, head_dim], tl.float32)
    for split in tl.static_range(split_k):
        at = row * split_k + split
        alpha = tl.exp(tl.load(stats + at * 2, inside, -1e30) - m_all)
        l_all += alpha * tl.load(stats + at * 2 + 1, inside, 0.0)
        acc_all += alpha[:, None] * tl.load(acc + at[:, None] * head_dim + d[None, :], inside[:, None], 0.0)
    result = (acc_all / tl.maximum(l_all, 1e-30)[:, None]).to(out.dtype.element_ty)
    tl.store(out + row[:, None] * head_dim + d[None, :], result, inside[:, None])


def decode_attention(
    qkv: Tensor, memory: Tensor, positions: Tensor, running: Tensor, rotations: Rotations, heads: int,
    split_k: SplitK, *, dependent: bool,
) -> Tensor:  # fmt: skip
    """Rotate and store the new keys, and compute the attention of the first n slots in one layer  →  [n, heads ·
    head_dim] in qkv's dtype. qkv: [n, (heads + 2 · kv_heads) · head_dim], not yet rotated. memory: the layer's keys and
    values, [2, slots, kv_heads, capacity, head_dim], where head_dim is a power of 2. positions: [n] int64, the new
    key's position. running: [n] int64 with this stride; if a slot's value is 0, only zeros are output for the slot.
    rotations: indexed by position. split_k: changes only rounding. dependent: see `lm_rows.dependent_launches`.
    """
    partial = partial_attention(qkv, memory, positions, running, rotations, heads, split_k, dependent=dependent)
    if partial.splits == 0:
        return partial.acc
    head_dim = partial.acc.shape[1]
    out = torch.empty(len(qkv), heads * head_dim, dtype=qkv.dtype, device=qkv.device)
    launched(_combine_kernel, (len(qkv),))(
        partial.acc, partial.stats, out, head_dim=head_dim, split_k=partial.splits, heads=heads,
        head_rows=triton.next_power_of_2(heads), dependent=dependent, num_warps=4, **launch_options(dependent),
    )  # fmt: skip
    return out


def partial_attention(
    qkv: Tensor, memory: Tensor, positions: Tensor, running: Tensor, rotations: Rotations, heads: int,
    split_k: SplitK, *, dependent: bool,
) -> PartialAttention:  # fmt: skip
    slots, splits = len(qkv), split_k.splits
    _, _, kv_heads, capacity, head_dim = memory.shape
    if splits > 1:
        acc = torch.empty(slots * heads * splits, head_dim, dtype=torch.float32, device=qkv.device)
        stats = torch.empty(slots * heads * splits, 2, dtype=torch.float32, device=qkv.device)
    else:
        # The kernel needs a pointer for `stats` but does not read it, so any float32 tensor on the device will do.
        acc, stats = torch.empty(slots, heads * head_dim, dtype=qkv.dtype, device=qkv.device), rotations.cos
    launched(_decode_attention_kernel, (slots, kv_heads, splits))(
        qkv, *memory, positions, running, *rotations, acc, stats,
        positions.stride(0), capacity, head_dim**-0.5, heads=heads, kv_heads=kv_heads, head_dim=head_dim,
        block_m=max(16, triton.next_power_of_2(heads // kv_heads)), block_n=split_k.keys // split_k.warps,
        warps=split_k.warps, split_k=splits, dependent=dependent,
        num_warps=split_k.warps, num_stages=split_k.stages, **launch_options(dependent),
    )  # fmt: skip
    return PartialAttention(acc, stats, splits if splits > 1 else 0)


ROW_TILE = 16  # rows of one program in a prefill
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
    heads: tl.constexpr, kv_heads: tl.constexpr, head_dim: tl.constexpr, block_m: tl.constexpr,
    row_tile: tl.constexpr, block_n: tl.constexpr, dependent: tl.constexpr,
):  # fmt: skip
    first, head = tl.program_id(0).to(tl.int64) * row_tile, tl.program_id(1)
    half: tl.constexpr = head_dim // 2
    group: tl.constexpr = heads // kv_heads
    dtype: tl.constexpr = keys.dtype.element_ty
    d, within = tl.arange(0, head_dim), tl.arange(0, block_n)
    partner = (d + half) % head_dim
    # Index of the products' rows: packed row by packed row, and within each packed row one query head after another.
    m = tl.arange(0, row_tile * block_m)
    row, g = first + m // block_m, m % block_m
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
    m_i = tl.full([row_tile * block_m], -1e30, tl.float32)
    l_i = tl.zeros([row_tile * block_m], tl.float32)
    acc = tl.zeros([row_tile * block_m, head_dim], tl.float32)
    for start in range(0, last + 1, block_n):
        # Do not load keys after the tile's last row: another sequence may have left NaN there, and 0 · NaN is NaN.
        known = start + within <= last
        tile = at + start * head_dim
        k = tl.load(keys + tile, known[:, None], 0.0)
        v = tl.load(values + tile, known[:, None], 0.0)
        scores = tl.dot(query, tl.trans(k), input_precision="ieee") * scale
        scores = tl.where((start + within)[None, :] <= position[:, None], scores, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(scores, 1))
        p = tl.exp(scores - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        acc = acc * alpha[:, None] + tl.dot(p.to(dtype), v, input_precision="ieee")
        l_i = l_i * alpha + tl.sum(p, 1)
        m_i = m_new
    place = out + (row * heads + head * group + g)[:, None] * head_dim + d[None, :]
    tl.store(place, (acc / l_i[:, None]).to(out.dtype.element_ty), in_group)


def prefill_attention(
    qkv: Tensor, memory: Tensor, slots: Tensor, positions: Tensor, rotations: Rotations, heads: int, *, dependent: bool
) -> Tensor:
    """`decode_attention` for the packed rows of a prefill. qkv: a multiple of `ROW_TILE` rows. slots: [rows] int64,
    where each row is stored; all rows of a tile attend to the slot of the tile's first row. positions: [rows] int64; 0
    for padding, because every slot has this position  →  [rows, heads · head_dim] in qkv's dtype.
    """
    rows = len(qkv)
    _, _, kv_heads, capacity, head_dim = memory.shape
    out = torch.empty(rows, heads * head_dim, dtype=qkv.dtype, device=qkv.device)
    launched(_append_kernel, (rows,))(
        qkv, *memory, slots, positions, *rotations, capacity, heads=heads, kv_heads=kv_heads,
        head_rows=triton.next_power_of_2(kv_heads), head_dim=head_dim, dependent=dependent, num_warps=1,
        **launch_options(dependent),
    )  # fmt: skip
    block_m = triton.next_power_of_2(heads // kv_heads)
    launched(_prefill_attention_kernel, (rows // ROW_TILE, kv_heads))(
        qkv, *memory, slots, positions, *rotations, out, capacity, head_dim**-0.5, heads=heads,
        kv_heads=kv_heads, head_dim=head_dim, block_m=block_m, row_tile=ROW_TILE, block_n=_KEYS,
        dependent=dependent, num_warps=_WARPS, num_stages=_STAGES, **launch_options(dependent),
    )  # fmt: skip
    return out
