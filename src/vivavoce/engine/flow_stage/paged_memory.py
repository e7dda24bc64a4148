"""The networks' memory of a batch of rows, in pages of the pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.engine.flow_stage.pool import SINK, Shelf

Indices = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Geometry:
    """Where the rows of a batch read and write on one shelf, as indices; each row comes once for every copy.

    write: [copies · rows, time] positions; read: [copies · rows, pages] slabs of one page each, empty if no row has a
    past; tails: [copies · rows, tail] places in [tail + time] whose inputs the next chunk needs, empty if these are the
    last ones in every row; keys: positions of the longest row.
    """

    write: Indices
    read: Indices
    tails: Indices
    keys: int

    @classmethod
    def of(cls, shelf: Shelf, tables: Sequence[Sequence[int]], tokens: Sequence[tuple[int, int]]) -> Geometry:
        """tables: pages of each row; tokens: (past, end) of each, the positions from `past` on being computed."""
        spans = [(past * shelf.per_token, end * shelf.per_token) for past, end in tokens]
        time, keys = max(end - past for past, end in spans), max(end for _, end in spans)
        pages = np.empty((len(spans), -(-keys // shelf.positions)), dtype=np.int64)
        write = np.full((len(spans), time), SINK, dtype=np.int64)
        for row, ((past, end), table) in enumerate(zip(spans, map(np.asarray, tables), strict=True)):
            # What lies past a row's pages is masked; it reads its own, which no other row can have spoilt.
            pages[row] = table[np.minimum(np.arange(pages.shape[1]), len(table) - 1)]
            position = np.arange(past, end)
            slabs = table[position // shelf.positions] * shelf.slabs
            write[row, : len(position)] = slabs * shelf.positions + position % shelf.positions
        copy = np.arange(shelf.copies)[:, None, None]
        lengths = np.array([end - past for past, end in spans])
        rows = np.arange(shelf.copies * len(spans)).reshape(shelf.copies, -1)
        read = (pages * shelf.slabs + copy).reshape(-1, pages.shape[1])
        tails = (rows * (time + shelf.tail) + lengths).reshape(-1, 1) + np.arange(shelf.tail)
        return cls(
            write=(write + copy * shelf.positions).reshape(-1, time),
            read=read if any(past for past, _ in spans) else read[:0],
            tails=tails if (lengths < time).any() else tails[:0],
            keys=keys,
        )


class ShelfMemory:
    """A batch's memory on one shelf, for all passes.

    Keys and values are written to their pages as they are computed: no row reads past the tokens that its state
    stands for. Tails are kept aside until `commit`, so that a batch that is given up leaves no trace.

    Args:
        write, read, tails: of `Geometry`, on the device; keys: of `Geometry`.
        slots: [rows] pages beside which the rows' tails lie now, the sink for rows without a past.
    """

    def __init__(self, shelf: Shelf, write: Tensor, read: Tensor, tails: Tensor, keys: int, slots: Tensor) -> None:
        self.shelf, self.keys = shelf, keys
        self.write, self.read, self.tails = write.flatten(), read.flatten(), tails.flatten()
        self.positions = shelf.keys.view(-1, shelf.keys.shape[-1])
        self.slabs = shelf.keys.view(-1, shelf.positions * shelf.keys.shape[-1])
        before = shelf.tails.index_select(0, slots)
        self.before = before.permute(1, 2, 0, 3, 4).flatten(1, 2).contiguous()
        self.after = torch.empty_like(self.before)

    def commit(self, slots: Tensor) -> None:
        """Keep the tails; slots: [rows] pages beside which they shall lie."""
        passes, rows = len(self.after), len(slots)
        after = self.after.view(passes, -1, rows, *self.after.shape[2:])
        self.shelf.tails.index_copy_(0, slots, after.permute(2, 0, 1, 3, 4))


class PassMemory:
    """One pass's part of a `ShelfMemory`: what a network sees of it."""

    def __init__(self, memory: ShelfMemory, number: int = 0) -> None:
        self._memory = memory
        self._before, self._after = memory.before[number], memory.after[number]
        self._first_site = number * memory.shelf.sites

    def extend(self, first: int, x: Tensor) -> Tensor:
        """See `vivavoce.models.flow.memory.Memory`."""
        channels = slice(first, first + x.shape[2])
        extended = torch.cat((self._before[..., channels], x), dim=1)
        if len(self._memory.tails):
            tails = extended.flatten(0, 1).index_select(0, self._memory.tails).view(len(x), -1, x.shape[2])
        else:
            tails = extended[:, x.shape[1] :]
        self._after[..., channels] = tails
        return extended

    def recall(self, site: int, keys: Tensor) -> Tensor:
        """See `vivavoce.models.flow.memory.Memory`."""
        memory, shelf = self._memory, self._memory.shelf
        slab = (self._first_site + site) * shelf.copies
        memory.positions[slab * shelf.positions :].index_copy_(0, memory.write, keys.flatten(0, 1))
        if not len(memory.read):
            return keys
        recalled = memory.slabs[slab:].index_select(0, memory.read)
        return recalled.view(len(keys), -1, keys.shape[2])[:, : memory.keys]
