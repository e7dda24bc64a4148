"""Attention of a prefill: packed rows of several sequences, whose keys and values stand in their slots' memory.

Every sequence begins at a multiple of `ROW_TILE` rows. A program does one tile of rows, which are of one sequence, and
one key-value head; the rows' query heads of that group are the rows of its products. Keys are read in blocks that
begin at absolute positions, so what a row computes does not depend on the other sequences.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from vivavoce.models.kernels.compile_ahead import launched
from vivavoce.models.kernels.lm_decode_attention import Rotations, rotated
from vivavoce.models.kernels.lm_launch import options, wait_for_inputs

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
    """Rotate, store and attend for packed rows of one layer.

    Args:
        qkv: [rows, (heads + 2 · kv_heads) · head_dim], not yet rotated; rows is a multiple of `ROW_TILE`.
        memory: the layer's keys and values, [2, slots, kv_heads, capacity, head_dim]; head_dim is a power of 2.
        slots: [rows] int64, where each row is stored; a tile attends to its first row's slot.
        positions: [rows] int64; of rows that only pad a tile 0, which every slot has.
        rotations: by position.
        heads: query heads.
        dependent: see `lm_launch`.

    Returns:
        [rows, heads · head_dim], qkv's dtype.
    """
    rows = len(qkv)
    _, _, kv_heads, capacity, head_dim = memory.shape
    out = torch.empty(rows, heads * head_dim, dtype=qkv.dtype, device=qkv.device)
    tables = (rotations.cos, rotations.sin)
    launched(_append_kernel, (rows,))(
        qkv, memory[0], memory[1], slots, positions, *tables, capacity, heads=heads, kv_heads=kv_heads,
        head_rows=triton.next_power_of_2(kv_heads), head_dim=head_dim, dependent=dependent, num_warps=1,
        **options(dependent),
    )  # fmt: skip
    group_rows = triton.next_power_of_2(heads // kv_heads)
    launched(_prefill_attention_kernel, (rows // ROW_TILE, kv_heads))(
        qkv, memory[0], memory[1], slots, positions, *tables, out, capacity, head_dim**-0.5, heads=heads,
        kv_heads=kv_heads, head_dim=head_dim, group_rows=group_rows, row_tile=ROW_TILE, block=_KEYS,
        dependent=dependent, num_warps=_WARPS, num_stages=_STAGES, **options(dependent),
    )  # fmt: skip
    return out
