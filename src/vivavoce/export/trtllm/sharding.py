"""Cutting tensors for the GPUs that share a layer, and putting them together again.

A matrix is stored [outputs, inputs]. `ROWS` cuts along the outputs, `COLUMNS` along the inputs, `QKV` each of the
query, key and value parts along its own heads; a bias or a list of scales is cut as its matrix's rows are.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import torch
from torch import Tensor

from vivavoce.export.trtllm.sizes import QwenSizes


class Cut(Enum):
    """Along which of a matrix's sides it is divided."""

    ROWS = "rows"
    COLUMNS = "columns"
    QKV = "qkv"


def shards(tensor: Tensor, cut: Cut, tp: int, sizes: QwenSizes) -> list[Tensor]:
    """One piece for each of `tp` GPUs.

    tensor: [outputs, inputs] or [outputs]; for `QKV` the three parts one after another. With more GPUs than
    key-value heads each head goes to several.
    """
    if cut is Cut.ROWS:
        return list(tensor.chunk(tp, dim=0))
    if cut is Cut.COLUMNS:
        return list(tensor.chunk(tp, dim=1))
    query, key, value = tensor.split(sizes.qkv_rows)
    copies = max(tp // sizes.num_kv_heads, 1)
    parts = (query, _repeat_heads(key, sizes, copies), _repeat_heads(value, sizes, copies))
    return [torch.cat(pieces) for pieces in zip(*(part.chunk(tp) for part in parts), strict=True)]


def joined(pieces: Sequence[Tensor], cut: Cut, sizes: QwenSizes) -> Tensor:
    """The reverse of `shards`."""
    if cut is Cut.ROWS:
        return torch.cat(list(pieces))
    if cut is Cut.COLUMNS:
        return torch.cat(list(pieces), dim=1)
    tp = len(pieces)
    copies = max(tp // sizes.num_kv_heads, 1)
    query_rows, kv_rows, _ = (rows // tp for rows in sizes.qkv_rows)
    kv_rows = kv_rows * copies
    columns = zip(*(piece.split((query_rows, kv_rows, kv_rows)) for piece in pieces), strict=True)
    query, key, value = (torch.cat(list(column)) for column in columns)
    return torch.cat((query, _first_of_heads(key, sizes, copies), _first_of_heads(value, sizes, copies)))


def rows_per_gpu(num_rows: int, tp: int) -> int:
    """Rows of a vocabulary's table on each GPU; the last one's are filled up with zeros."""
    return -(-num_rows // tp)


def _repeat_heads(part: Tensor, sizes: QwenSizes, copies: int) -> Tensor:
    heads = part.unflatten(0, (sizes.num_kv_heads, sizes.head_size))
    return heads.repeat_interleave(copies, dim=0).flatten(0, 1) if copies > 1 else part


def _first_of_heads(part: Tensor, sizes: QwenSizes, copies: int) -> Tensor:
    heads = part.unflatten(0, (sizes.num_kv_heads, copies, sizes.head_size))
    return heads[:, 0].flatten(0, 1)
