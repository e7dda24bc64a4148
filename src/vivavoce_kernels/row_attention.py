"""Attention over packed rows by the fastest kernel for the sizes and the device.

On Hopper, tiles of keys are fetched in the background, and the tensor cores work during the softmax.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from vivavoce_kernels.cuda_kernel import Matrix, Run, Source, compiled_kernel, takes_kernels
from vivavoce_kernels.flow_attention import AttentionTile, attend
from vivavoce_kernels.layouts import KEY_TILE, PackedTables

HEAD, QUERIES = 64, 64
"""Channels of a head, and largest number of frames of a tile."""
SOURCE = Source("row_attention", 128, 5 * 2 * KEY_TILE * HEAD + 16)


class Attention(Protocol):
    def __call__(
        self, products: Tensor, keys: Tensor | None, tables: PackedTables, step: Tensor, site: int, cut: AttentionTile
    ) -> Tensor:
        """Attend; the parameters and the result are those of `flow_attention.attend`."""


def attention_for(weight: Tensor, num_heads: int, head: int) -> Attention:
    """Choose the kernel for the device and dtype of `weight`, any weight of the network. head: channels of a head."""
    if head == HEAD and takes_kernels(weight):

        def without_tiles(run: Run) -> Tensor:
            none = torch.zeros(1, 3, dtype=torch.int32, device=weight.device)
            tables = PackedTables(*(none[0],) * 6, tiles=none, pages=none[:, :0])
            products = torch.zeros(2 * none.numel(), 3 * num_heads * HEAD, dtype=weight.dtype, device=weight.device)
            return RowAttention(run, num_heads)(products, None, tables, none[0], 0, AttentionTile(QUERIES, 0, 0))

        kernel = compiled_kernel(SOURCE, weight.device, "long rows take longer", without_tiles)
        if kernel is not None:
            return RowAttention(kernel, num_heads)

    def general(
        products: Tensor, keys: Tensor | None, tables: PackedTables, step: Tensor, site: int, cut: AttentionTile
    ) -> Tensor:
        return attend(products, keys, tables, step, site, num_heads, cut)

    return general


class RowAttention:
    """The CUDA kernel, for heads of 64 channels in float16."""

    def __init__(self, run: Run, num_heads: int) -> None:
        self._run, self._num_heads = run, num_heads

    def __call__(
        self, products: Tensor, keys: Tensor | None, tables: PackedTables, step: Tensor, site: int, cut: AttentionTile
    ) -> Tensor:
        assert cut.queries <= QUERIES
        frames, inner, tiles = len(tables.ends), products.shape[1] // 3, tables.tiles
        out = torch.empty(len(products), inner, dtype=products.dtype, device=products.device)
        matrix = products if keys is None else keys.view(-1, 2 * inner)
        sites, page_lines = (1, 0) if keys is None else (keys.shape[2], keys.shape[1:5].numel())
        where = (tiles, tables.ends, tables.first, tables.pages, step)
        sizes = (sites, frames, len(tiles), self._num_heads, tables.pages.shape[1], page_lines)
        scale = math.log2(math.e) / HEAD**0.5
        arguments = (Matrix(products), Matrix(matrix), out, *where, site, *sizes, scale)
        self._run(len(tiles) * self._num_heads * 2, arguments)
        return out
