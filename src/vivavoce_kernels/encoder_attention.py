"""Relative attention over packed rows. The keys of earlier chunks are in pages; the new keys are in `products`.

A score is (q + u)·k + (q + v)·p(i − j): a content term plus a distance term. A tile has few different distances, so one
extra matrix product gives all distance terms of the tile, and each pair of query and key picks the one it needs.

A query attends to the keys before its own end. Key tiles start at multiples of `KEY_TILE` positions from the row's
start, and every tile is added by the same formula, masked or not. So a query's result depends only on its own keys: it
does not depend on the rest of the batch, or on which keys were computed earlier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton.language as tl
from torch import Tensor

import triton
from vivavoce_kernels.common import HIDDEN, channels, launched, online_softmax
from vivavoce_kernels.layouts import KEY_TILE

SPARE = 128  # zero rows before and after a table of distances, so that no tile reads outside the table
_LOG2_E = 1.4426950408889634


@dataclass(frozen=True)
class RelativeTile:
    queries: int
    warps: int
    stages: int

    def __post_init__(self) -> None:
        # A tile with more queries would read past the `SPARE` zero rows at the end of the table of distances.
        if not 16 <= self.queries <= SPARE - KEY_TILE:
            raise ValueError(f"a tile has {self.queries} queries; it must have 16 to {SPARE - KEY_TILE}")


class RelativeWeights(NamedTuple):
    """Weights of relative attention (Transformer-XL).

    distances: [heads, 2 · (reach + `SPARE`), head], contiguous; in each head, row reach + `SPARE` − 1 − d is the key
    for the distance d = query − key, −reach ≤ d ≤ reach. content_bias, position_bias: [heads · head], the paper's u and
    v.
    """

    distances: Tensor
    content_bias: Tensor
    position_bias: Tensor


class RelativePlaces(NamedTuple):
    """Places of the packed positions; all int32. tiles: [tiles, 3], each tile's row, first packed position and number
    of positions (0: an unused tile). ends: [positions], the end of the keys that the position attends to (0: padding).
    first, past: [rows], in tokens: packed index of the row's first new token, and number of earlier tokens. pages:
    [rows, width], each row's pages in order (width 0: no pages).
    """

    tiles: Tensor
    ends: Tensor
    first: Tensor
    past: Tensor
    pages: Tensor


@triton.jit
def _absorb(query, asker, key, value, distant, pick, scale, end, position, m_i, l_i, acc, MASKED: tl.constexpr):
    score = tl.gather(tl.dot(asker, distant, input_precision="ieee"), pick, 1)
    score = tl.dot(query, key, input_precision="ieee") + score
    return online_softmax(score, value, scale, end, position, m_i, l_i, acc, MASKED)


@triton.jit
def _sources(
    products, keys, fresh, table, site, place, past,
    PAGED: tl.constexpr, PAGE: tl.constexpr, SITES: tl.constexpr, INNER: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return pointers to the keys of a tile, [BLOCK_N]. A key's value lies `INNER` elements after the key."""
    line = tl.arange(0, BLOCK_N)
    source = products + ((fresh + place + line) * (3 * INNER) + INNER)
    if PAGED:
        # Load one page number per page, not one per key, so that threads need not exchange data for their pointers.
        base = tl.zeros([BLOCK_N], tl.int64)
        for part in tl.static_range(BLOCK_N // PAGE):
            begin = place + part * PAGE
            page = tl.load(table + begin // PAGE, begin < past, 0).to(tl.int64)
            base = tl.where(line // PAGE == part, (page * SITES + site) * (PAGE * 2 * INNER), base)
        source = tl.where(place + line < past, keys + (base + line % PAGE * (2 * INNER)), source)
    return source


@triton.jit(do_not_specialize=["site", "pages_width", "middle", "reach"])
def _attend(
    products, keys, distances, content_bias, position_bias, out, tiles, ends, first, past, pages, site, pages_width,
    middle, reach, scale,
    RATE: tl.constexpr, PAGED: tl.constexpr, PAGE: tl.constexpr, SITES: tl.constexpr, HEADS: tl.constexpr,
    HEAD: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(0), tl.program_id(1)
    row, start, count = tl.load(tiles + 3 * tile), tl.load(tiles + 3 * tile + 1), tl.load(tiles + 3 * tile + 2)
    if count == 0:
        return
    inner: tl.constexpr = HEADS * HEAD
    whole: tl.constexpr = HEAD == BLOCK_D
    line, channel, key_line = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_N)
    inside = channel < HEAD
    content = tl.load(content_bias + head * HEAD + channel, inside, 0.0).to(tl.float32)
    distance = tl.load(position_bias + head * HEAD + channel, inside, 0.0).to(tl.float32)
    real = line < count
    end = tl.load(ends + start + line, real, 0)
    kept = end > 0
    last = tl.max(end, 0)
    end = tl.where(real, end, last)
    seen_by_all = tl.min(end, 0) // BLOCK_N * BLOCK_N
    row_past = tl.load(past + row) * RATE
    # Packed index of a new key = its position in the row + `fresh`.
    fresh = tl.load(first + row) * RATE - row_past
    at, there = start + line, real[:, None] & inside[None, :]
    mine = products + at[:, None] * (3 * inner) + head * HEAD + channel[None, :]
    given = tl.load(mine, there, 0.0)
    query = (given.to(tl.float32) + content[None, :]).to(given.dtype)
    asker = (given.to(tl.float32) + distance[None, :]).to(given.dtype)
    # The table's part for this tile starts at the distances of the last query. An earlier query starts one row later.
    furthest = distances + (head * reach + middle - BLOCK_M - (start - fresh)) * HEAD
    wide = tl.arange(0, WIDTH)[None, :] * HEAD + channel[:, None]
    pick = (BLOCK_M - 1 - line)[:, None] + key_line[None, :]
    table, products_here, keys_here = pages + row * pages_width, products + head * HEAD, keys + head * HEAD
    m_i, l_i = tl.full([BLOCK_M], HIDDEN, tl.float32), tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for place in range(0, seen_by_all, BLOCK_N):
        source = _sources(
            products_here, keys_here, fresh, table, site, place, row_past, PAGED, PAGE, SITES, inner, BLOCK_N
        )
        key = channels(source[None, :] + channel[:, None], inside[:, None], whole)
        value = channels(source[:, None] + inner + channel[None, :], inside[None, :], whole)
        distant = channels(furthest + place * HEAD + wide, inside[:, None], whole)
        m_i, l_i, acc = _absorb(
            query, asker, key, value, distant, pick, scale, end, place + key_line, m_i, l_i, acc, False
        )
    for place in range(seen_by_all, last, BLOCK_N):
        source = _sources(
            products_here, keys_here, fresh, table, site, place, row_past, PAGED, PAGE, SITES, inner, BLOCK_N
        )
        # Do not load memory past the row's end: it may hold NaN, and a weight of 0 times NaN is NaN.
        seen = place + key_line < last
        key = tl.load(source[None, :] + channel[:, None], inside[:, None] & seen[None, :], 0.0)
        value = tl.load(source[:, None] + inner + channel[None, :], seen[:, None] & inside[None, :], 0.0)
        distant = channels(furthest + place * HEAD + wide, inside[:, None], whole)
        m_i, l_i, acc = _absorb(
            query, asker, key, value, distant, pick, scale, end, place + key_line, m_i, l_i, acc, True
        )
    tl.store(
        out + at[:, None] * inner + head * HEAD + channel[None, :],
        # A padding position attends to no key: its l_i is 0, and its output is 0.
        (acc / tl.maximum(l_i, 1e-30)[:, None]).to(out.dtype.element_ty),
        there,
    )
    if PAGED:
        # All programs read the new keys from `products`, never from the pages, so this store needs no synchronisation.
        spot = at - fresh
        page = tl.load(table + spot // PAGE, kept, 0).to(tl.int64)
        target = keys_here + ((page * SITES + site) * PAGE + spot % PAGE)[:, None] * (2 * inner) + channel[None, :]
        written = kept[:, None] & inside[None, :]
        tl.store(target, tl.load(mine + inner, written, 0.0), written)
        tl.store(target + inner, tl.load(mine + 2 * inner, written, 0.0), written)


def attend_relatively(
    products: Tensor,
    keys: Tensor | None,
    places: RelativePlaces,
    weights: RelativeWeights,
    site: int,
    cut: RelativeTile,
    *,
    rate: int = 1,
) -> Tensor:
    """Compute attention, and store new keys and values in the rows' pages. products: [positions, 3 · inner],
    contiguous: queries, keys and values. keys: the encoder's pages at this rate, [pages, 1, sites, 1, page, 2 · inner],
    where `page` is a power of two ≤ `KEY_TILE`; None if rows have no past; then nothing is stored. site: index of this
    attention layer. rate: positions per token  →  [positions, inner], 0 in padding, not written outside tiles.
    """
    count, inner = len(products), products.shape[1] // 3
    heads, rows, head = weights.distances.shape
    out = torch.empty(count, inner, dtype=products.dtype, device=products.device)
    page, sites = (KEY_TILE, 1) if keys is None else (keys.shape[4], keys.shape[2])
    # The page number is loaded two pipeline stages before the key, so two more stages keep as many tiles in flight.
    stages = cut.stages + (0 if keys is None else 2)
    launched(_attend, (len(places.tiles), heads))(
        products, products if keys is None else keys, *weights, out, *places,
        site, places.pages.shape[1], rows // 2, rows, _LOG2_E / head**0.5,
        RATE=rate, PAGED=keys is not None, PAGE=page, SITES=sites, HEADS=heads, HEAD=head,
        BLOCK_D=max(16, triton.next_power_of_2(head)), BLOCK_M=cut.queries, BLOCK_N=KEY_TILE,
        WIDTH=triton.next_power_of_2(cut.queries + KEY_TILE), num_warps=cut.warps, num_stages=stages,
    )  # fmt: skip
    return out
