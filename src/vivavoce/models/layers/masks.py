"""Which positions of a padded batch exist, and which of them an attention query sees."""

from __future__ import annotations

import torch
from torch import Tensor


def valid_positions(lengths: Tensor, size: int) -> Tensor:
    """True where a row's position lies inside its length.

    lengths: [batch] int  →  [batch, size] bool
    """
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def visible_keys(lengths: Tensor, size: int, chunk: int | None) -> Tensor:
    """Attention mask of a padded batch, True where the query may look.

    Without `chunk` each query sees its row's whole length. With it, key j is visible to query i if
    j < (i // chunk + 1) · chunk: all of the query's own chunk and of the past.

    lengths: [batch] int  →  [batch, 1, size or 1 queries, size keys] bool
    """
    keys = valid_positions(lengths, size)[:, None, None, :]
    if chunk is None:
        return keys
    position = torch.arange(size, device=lengths.device)
    chunk_end = (position // chunk + 1) * chunk
    # A padded query keeps the keys of its row: a query that sees nothing would answer NaN.
    return keys & (position[None, :] < chunk_end[:, None])


def keys_before(ends: Tensor, size: int) -> Tensor:
    """Attention mask of queries that see all keys before an end of their own, True where the query may look.

    ends: [batch, queries] int  →  [batch, 1, queries, size keys] bool
    """
    return (torch.arange(size, device=ends.device) < ends[..., None])[:, None]


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a query may look, −inf elsewhere: a mask that many attentions can use without preparing it anew.

    mask: [batch, 1, queries, keys] bool  →  the same shape. Rows lie a multiple of 16 values apart, as fused kernels
    want them.
    """
    *shape, keys = mask.shape
    bias = torch.zeros(*shape, keys + -keys % 16, dtype=dtype, device=mask.device)[..., :keys]
    return bias.masked_fill_(~mask, float("-inf"))


def zero_padding(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Set what lies beyond each row's length to zero; `None` means that nothing does.

    x: [batch, channels, time]; lengths: [batch] int
    """
    if lengths is None:
        return x
    return x.masked_fill(~valid_positions(lengths, x.shape[-1])[:, None, :], 0)
