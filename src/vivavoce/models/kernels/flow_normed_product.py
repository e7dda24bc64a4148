"""LayerNorm and the product that reads it, in one launch; see `flow_product` for why."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from vivavoce.models.flow.memory import KEY_TILE
from vivavoce.models.kernels.dependent_launch import join, launch_options
from vivavoce.models.kernels.flow_math import gelu, layer_norm_rows, tile_of
from vivavoce.models.kernels.flow_pages import PagePlaces
from vivavoce.models.kernels.flow_product import ProductTile


@dataclass(frozen=True, eq=False)
class Norm:
    """A LayerNorm of x + shift; all [channels]."""

    shift: Tensor
    weight: Tensor
    bias: Tensor


@triton.jit(do_not_specialize=["frames", "site", "pages_width"])
def _normed_product(
    x,
    shift,
    norm_weight,
    norm_bias,
    weight,
    bias,
    out,
    keys,
    row,
    local,
    position,
    pages,
    step,
    frames,
    site,
    pages_width,
    IN: tl.constexpr,
    OUT: tl.constexpr,
    GELU: tl.constexpr,
    PAGE_SLABS: tl.constexpr,
    SITES: tl.constexpr,
    KEYS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPENDENT: tl.constexpr,
):
    frame, copy = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(2)
    channel, column = tl.arange(0, BLOCK), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside, there = channel < IN, frame < frames
    at = copy * frames + frame
    factor = tl.load(weight + column[None, :] * IN + channel[:, None], inside[:, None], 0.0)
    if DEPENDENT:
        join()
    value = tl.load(x + at[:, None] * IN + channel[None, :], there[:, None] & inside[None, :], 0.0).to(tl.float32)
    value += tl.load(shift + channel, inside, 0.0)[None, :].to(tl.float32)
    value = layer_norm_rows(
        value, tl.load(norm_weight + channel, inside, 0.0), tl.load(norm_bias + channel, inside, 0.0), inside, IN
    )
    sum = tl.dot(value.to(factor.dtype), factor, input_precision="ieee")
    if GELU:
        sum = gelu(sum + tl.load(bias + column)[None, :].to(tl.float32))
    sum = sum.to(out.dtype.element_ty)
    if PAGE_SLABS > 0:
        if tl.program_id(1) * COLUMNS >= OUT // 3:
            kept = there & (tl.load(local + frame, there, -1) >= 0)
            spot = tl.load(position + frame, kept, 0)
            page = tl.load(pages + tl.load(row + frame, kept, 0) * pages_width + spot // KEYS, kept, 0).to(tl.int64)
            slab = page * PAGE_SLABS + (tl.load(step) * SITES + site) * 2 + copy
            target = (slab * KEYS + spot % KEYS) * (2 * OUT // 3)
            tl.store(keys + target[:, None] + (column - OUT // 3)[None, :], sum, kept[:, None])
        else:
            tl.store(out + at[:, None] * OUT + column[None, :], sum, there[:, None])
    else:
        tl.store(out + at[:, None] * OUT + column[None, :], sum, there[:, None])


def _launch(
    x: Tensor,
    norm: Norm,
    weight: Tensor,
    bias: Tensor | None,
    places: PagePlaces | None,
    site: int,
    cut: ProductTile,
    dependent: bool,
) -> Tensor:
    (rows, size), columns = x.shape, len(weight)
    out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    keyed = None if places is None else (places.keys, places.row, places.local, places.position, places.pages)
    # Queries and keys never share a tile.
    wide = tile_of(columns // 3 if places else columns, cut.columns)
    _normed_product[(triton.cdiv(rows // 2, cut.rows), columns // wide, 2)](
        x,
        norm.shift,
        norm.weight,
        norm.bias,
        weight,
        weight if bias is None else bias,
        out,
        *(keyed or (x, x, x, x, x)),
        places.step if places else x,
        rows // 2,
        site,
        places.pages.shape[1] if places else 0,
        size,
        columns,
        bias is not None,
        places.keys[0].numel() // (KEY_TILE * 2 * columns // 3) if places else 0,
        places.keys.shape[2] if places else 0,
        KEY_TILE,
        triton.next_power_of_2(size),
        cut.rows,
        wide,
        **launch_options(dependent),
        num_warps=cut.warps,
        num_stages=cut.stages,
    )
    return out


def expand(x: Tensor, norm: Norm, weight: Tensor, bias: Tensor, cut: ProductTile, *, dependent: bool = False) -> Tensor:
    """GELU(LayerNorm(x + shift) · weightᵀ + bias).

    x: [2 · frames, channels] contiguous; weight: [out, channels] contiguous; bias: [out]  →  [2 · frames, out]
    """
    return _launch(x, norm, weight, bias, None, 0, cut, dependent)


def queries_and_keys(
    x: Tensor,
    norm: Norm,
    weight: Tensor,
    places: PagePlaces | None,
    site: int,
    cut: ProductTile,
    *,
    dependent: bool = False,
) -> Tensor:
    """LayerNorm(x + shift) · weightᵀ: queries, keys and values.

    x: [2 · frames, channels] contiguous; weight: [3 · inner, channels] contiguous; places: where keys and values are
    kept; None: nowhere  →  [2 · frames, 3 · inner], of which only the queries are written if the rest is kept
    """
    return _launch(x, norm, weight, None, places, site, cut, dependent)
