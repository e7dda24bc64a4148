"""The encoder's memory of one row, in tensors of its own: what it returns lies the same way wherever it came from."""

from __future__ import annotations

import torch
from torch import Tensor

from vivavoce.engine.flow_stage.pool import Shelf
from vivavoce.models.flow.memory import MemoryShape


class RowMemory:
    """A memory as in `vivavoce.models.flow.memory`, of one row and any number of passes, one after the other.

    Args:
        keys: [sites, past, key channels]; tails: [tail, tail channels], zeros without a past.
    """

    def __init__(self, keys: Tensor, tails: Tensor) -> None:
        self._keys = [site[None] for site in keys.unbind()]
        self._tails, self._past = tails[None], keys.shape[1]

    @classmethod
    def empty(cls, shape: MemoryShape, like: Tensor) -> RowMemory:
        """A row without a past; like: gives dtype and device."""
        return cls(like.new_zeros(shape.sites, 0, shape.key_channels), like.new_zeros(shape.tail, shape.tail_channels))

    @classmethod
    def of_pages(cls, shelf: Shelf, pages: Tensor, past: int, slot: Tensor) -> RowMemory:
        """A row whose first `past` positions lie in pages, [pages] int64, and its tails beside the page `slot`, [1]."""
        kept = shelf.keys.index_select(0, pages)[:, 0, :, 0]
        return cls(kept.transpose(0, 1).flatten(1, 2)[:, :past], shelf.tails.index_select(0, slot)[0, 0, 0])

    @property
    def tails(self) -> Tensor:
        """[1, tail, tail channels]"""
        return self._tails

    def new_keys(self, site: int) -> Tensor:
        """What came after the past, [1, time, key channels]."""
        return self._keys[site][:, self._past :]

    def extend(self, first: int, x: Tensor) -> Tensor:
        """See `vivavoce.models.flow.memory.Memory`; the network has one convolution, which begins at 0."""
        extended = torch.cat((self._tails, x), dim=1)
        self._tails = extended[:, x.shape[1] :]
        return extended

    def recall(self, site: int, keys: Tensor) -> Tensor:
        """See `vivavoce.models.flow.memory.Memory`."""
        self._keys[site] = torch.cat((self._keys[site], keys), dim=1)
        return self._keys[site]
