"""Attention over packed rows. Keys come from pages, or from the batch itself. New keys are stored in pages.

A query attends to the keys before its own end. Key tiles start at multiples of the page size from the row's start, and
every tile is added by the same formula, masked or not. So a query's result depends only on its own keys: it does not
depend on the rest of the batch, or on which keys were computed earlier.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl
from torch import Tensor

import triton
from vivavoce_kernels.common import HIDDEN, channels, online_softmax
from vivavoce_kernels.layouts import KEY_TILE, PackedTables

_FRAMES = 4


@triton.jit
def _turn(source, target, rotation, at, there, HEAD: tl.constexpr):
    """Rotate a head's pairs (2i, 2i + 1) by the angles of their positions. source, target: pointers, one per row."""
    pair = tl.arange(0, HEAD // 2)[None, :]
    even = tl.load(source[:, None] + 2 * pair, there[:, None], 0.0).to(tl.float32)
    odd = tl.load(source[:, None] + 2 * pair + 1, there[:, None], 0.0).to(tl.float32)
    angle = rotation + at[:, None] * HEAD + pair
    cos, sin = tl.load(angle, there[:, None], 0.0), tl.load(angle + HEAD // 2, there[:, None], 0.0)
    kind = source.dtype.element_ty
    tl.store(target[:, None] + 2 * pair, (even * cos - odd * sin).to(kind), there[:, None])
    tl.store(target[:, None] + 2 * pair + 1, (odd * cos + even * sin).to(kind), there[:, None])


@triton.jit(do_not_specialize=["site", "frames", "pages_width"])
def _keep(
    products, keys, row, local, position, pages, step, rotation, site, frames, pages_width,
    PAGED: tl.constexpr, HEAD: tl.constexpr, SITES: tl.constexpr, PAGE_SLABS: tl.constexpr, INNER: tl.constexpr,
    BLOCK_D: tl.constexpr, FRAMES: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    frame, copy, channel = tl.program_id(0) * FRAMES + tl.arange(0, FRAMES), tl.program_id(1), tl.arange(0, BLOCK_D)
    there = frame < frames
    there = there & (tl.load(local + frame, there, -1) >= 0)
    at = tl.load(position + frame, there, 0)
    source = products + (copy * frames + frame) * (3 * INNER)
    if PAGED:
        page = tl.load(pages + tl.load(row + frame, there, 0) * pages_width + at // BLOCK_N, there, 0).to(tl.int64)
        slab = page * PAGE_SLABS + (tl.load(step) * SITES + site) * 2 + copy
        target = keys + (slab * BLOCK_N + at % BLOCK_N) * (2 * INNER)
        inside = there[:, None] & ((channel < 2 * INNER) & (channel >= HEAD))[None, :]
        kept = tl.load(source[:, None] + INNER + channel[None, :], inside, 0.0)
        tl.store(target[:, None] + channel[None, :], kept, inside)
    else:
        target = source + INNER
    if HEAD > 0:
        _turn(source, source, rotation, at, there, HEAD)
        _turn(source + INNER, target, rotation, at, there, HEAD)


def keep_in_pages(
    products: Tensor, keys: Tensor | None, tables: PackedTables, step: Tensor, site: int, rotation: Tensor | None = None
) -> None:
    """Rotate queries and keys, and store the new keys and values in pages. products, keys, step, site: as in `attend`.
    rotation: [positions, head], cosines, then sines of each position's angles; None: rotate nothing. Only the first
    head is rotated: its queries in place; its keys while they are copied to the pages, or in place if `keys` is None.
    """
    inner, frames = products.shape[1] // 3, len(tables.row)
    sites, slabs = (1, 1) if keys is None else (keys.shape[2], keys[0].numel() // (KEY_TILE * 2 * inner))
    of_keys, angles = products if keys is None else keys, products if rotation is None else rotation
    _keep[(triton.cdiv(frames, _FRAMES), 2)](
        products, of_keys, tables.row, tables.local, tables.position, tables.pages, step, angles, site, frames,
        tables.pages.shape[1],
        PAGED=keys is not None, HEAD=0 if rotation is None else rotation.shape[1], SITES=sites, PAGE_SLABS=slabs,
        INNER=inner, BLOCK_D=triton.next_power_of_2(2 * inner), FRAMES=_FRAMES, BLOCK_N=KEY_TILE, num_warps=4,
    )  # fmt: skip


_LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class AttentionTile:
    queries: int
    warps: int
    stages: int


@triton.jit
def _absorb(query, key, value, scale, end, position, m_i, l_i, acc, MASKED: tl.constexpr):
    score = tl.dot(query, key, input_precision="ieee")
    return online_softmax(score, value, scale, end, position, m_i, l_i, acc, MASKED)


@triton.jit(do_not_specialize=["site", "frames", "pages_width"])
def _attend(
    products, keys, out, tiles, ends, first, pages, step, site, frames, pages_width, scale,
    PAGED: tl.constexpr, SITES: tl.constexpr, PAGE_SLABS: tl.constexpr, HEADS: tl.constexpr, HEAD: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    tile, head, copy = tl.program_id(0), tl.program_id(1) % HEADS, tl.program_id(1) // HEADS
    row, start, count = tl.load(tiles + 3 * tile), tl.load(tiles + 3 * tile + 1), tl.load(tiles + 3 * tile + 2)
    if count == 0:
        return
    inner: tl.constexpr = HEADS * HEAD
    stride: tl.constexpr = 2 * inner if PAGED else 3 * inner
    whole: tl.constexpr = HEAD == BLOCK_D
    line, channel, key_line = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_N)
    inside, real = channel < HEAD, line < count
    end = tl.load(ends + start + line, real, 0)
    last = tl.max(end, 0)
    end = tl.where(real, end, last)
    seen_by_all = tl.min(end, 0) // BLOCK_N * BLOCK_N
    at = copy * frames + start + line
    query = tl.load(
        products + at[:, None] * (3 * inner) + head * HEAD + channel[None, :], real[:, None] & inside[None, :], 0.0
    )
    if PAGED:
        slab = (tl.load(step).to(tl.int64) * SITES + site) * 2 + copy
        base = keys + slab * (BLOCK_N * stride) + head * HEAD
        table = pages + row * pages_width
    else:
        base = products + (copy * frames + tl.load(first + row)).to(tl.int64) * stride + inner + head * HEAD
        table = pages
    m_i, l_i = tl.full([BLOCK_M], HIDDEN, tl.float32), tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for place in range(0, seen_by_all, BLOCK_N):
        if PAGED:
            source = base + tl.load(table + place // BLOCK_N).to(tl.int64) * (PAGE_SLABS * BLOCK_N * stride)
        else:
            source = base + place * stride
        key = channels(source + channel[:, None] + (key_line * stride)[None, :], inside[:, None], whole)
        value = channels(source + inner + (key_line * stride)[:, None] + channel[None, :], inside[None, :], whole)
        m_i, l_i, acc = _absorb(query, key, value, scale, end, place + key_line, m_i, l_i, acc, False)
    for place in range(seen_by_all, last, BLOCK_N):
        if PAGED:
            source = base + tl.load(table + place // BLOCK_N).to(tl.int64) * (PAGE_SLABS * BLOCK_N * stride)
        else:
            source = base + place * stride
        # Do not load memory past the row's end: it may hold NaN, and a weight of 0 times NaN is NaN.
        seen = place + key_line < last
        key = tl.load(source + channel[:, None] + (key_line * stride)[None, :], inside[:, None] & seen[None, :], 0.0)
        value = tl.load(
            source + inner + (key_line * stride)[:, None] + channel[None, :], seen[:, None] & inside[None, :], 0.0
        )
        m_i, l_i, acc = _absorb(query, key, value, scale, end, place + key_line, m_i, l_i, acc, True)
    tl.store(
        out + at[:, None] * inner + head * HEAD + channel[None, :],
        # A padding position attends to no key: its l_i is 0, and its output is 0.
        (acc / tl.maximum(l_i, 1e-30)[:, None]).to(out.dtype.element_ty),
        real[:, None] & inside[None, :],
    )


def attend(
    products: Tensor,
    keys: Tensor | None,
    tables: PackedTables,
    step: Tensor,
    site: int,
    num_heads: int,
    cut: AttentionTile,
) -> Tensor:
    """Attend, for both copies of classifier-free guidance. products: [2 · frames, 3 · inner], contiguous: queries, keys
    and values of the packed frames. keys: the estimator's pages, [pages, steps, sites, 2, KEY_TILE, 2 · inner], with
    the new keys already stored, or None to read the keys from `products`. step: [1] int32, the solver step; its part of
    the pages is read. site: index of this attention layer. A tile of `tables` has at most `cut.queries` frames  →
    [2 · frames, inner], not written outside tiles.
    """
    frames, inner = len(tables.ends), products.shape[1] // 3
    head = inner // num_heads
    out = torch.empty(len(products), inner, dtype=products.dtype, device=products.device)
    sites, slabs = (keys.shape[2], keys[0].numel() // (KEY_TILE * 2 * inner)) if keys is not None else (1, 1)
    # The page number is loaded two pipeline stages before the key, so two more stages keep as many tiles in flight.
    stages = cut.stages + (0 if keys is None else 2)
    _attend[(len(tables.tiles), num_heads * 2)](
        products, products if keys is None else keys, out, tables.tiles, tables.ends, tables.first, tables.pages, step,
        site, frames, tables.pages.shape[1], _LOG2_E / head**0.5,
        PAGED=keys is not None, SITES=sites, PAGE_SLABS=slabs, HEADS=num_heads, HEAD=head,
        BLOCK_D=max(16, triton.next_power_of_2(head)), BLOCK_M=cut.queries, BLOCK_N=KEY_TILE,
        num_warps=cut.warps, num_stages=stages,
    )  # fmt: skip
    return out
