"""New keys and values of packed rows → the pages of their rows."""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from vivavoce.models.flow.memory import KEY_TILE

_FRAMES = 4


@dataclass(frozen=True, eq=False)
class PagePlaces:
    """Where packed frames keep their keys and values.

    keys, pages, step: as in `flow_attention.attend`; row, local, position: [frames] int32, each packed frame's row,
    its place among the row's new frames (below zero: padding, which is kept nowhere) and in the whole row.
    """

    keys: Tensor
    row: Tensor
    local: Tensor
    position: Tensor
    pages: Tensor
    step: Tensor


@triton.jit(do_not_specialize=["site", "frames", "pages_width"])
def _keep(
    products,
    keys,
    row,
    local,
    position,
    pages,
    step,
    site,
    frames,
    pages_width,
    SITES: tl.constexpr,
    PAGE_SLABS: tl.constexpr,
    INNER: tl.constexpr,
    BLOCK: tl.constexpr,
    FRAMES: tl.constexpr,
    KEYS: tl.constexpr,
):
    frame, copy, channel = tl.program_id(0) * FRAMES + tl.arange(0, FRAMES), tl.program_id(1), tl.arange(0, BLOCK)
    there = frame < frames
    there = there & (tl.load(local + frame, there, -1) >= 0)
    at = tl.load(position + frame, there, 0)
    page = tl.load(pages + tl.load(row + frame, there, 0) * pages_width + at // KEYS, there, 0).to(tl.int64)
    slab = page * PAGE_SLABS + (tl.load(step) * SITES + site) * 2 + copy
    target = (slab * KEYS + at % KEYS) * (2 * INNER)
    inside = there[:, None] & (channel < 2 * INNER)[None, :]
    kept = tl.load(products + (copy * frames + frame)[:, None] * (3 * INNER) + INNER + channel[None, :], inside, 0.0)
    tl.store(keys + target[:, None] + channel[None, :], kept, inside)


def keep_in_pages(products: Tensor, places: PagePlaces, site: int) -> None:
    """Copy new keys and values to their places; products, site: as in `flow_attention.attend`."""
    inner, frames = products.shape[1] // 3, len(places.row)
    _keep[(triton.cdiv(frames, _FRAMES), 2)](
        products,
        places.keys,
        places.row,
        places.local,
        places.position,
        places.pages,
        places.step,
        site,
        frames,
        places.pages.shape[1],
        places.keys.shape[2],
        places.keys[0].numel() // (KEY_TILE * 2 * inner),
        inner,
        triton.next_power_of_2(2 * inner),
        _FRAMES,
        KEY_TILE,
        num_warps=4,
    )
