"""The index tables of packed batches: their values, and their layout in one tensor that is copied to the device.

A position is a token in the encoder and a frame in the estimator. Batches are padded to the sizes of a few buckets, so
that one CUDA graph serves many batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.engine.device import Bucket, rounded
from vivavoce.engine.flow_stage.planning import SINK, FlowRow
from vivavoce.models.flow.model import MAX_FRAMES
from vivavoce.models.flow.packed_encoder import EncoderTables
from vivavoce_kernels.layouts import KEY_TILE, PackedTables

Numbers = NDArray[np.int32]

MOST_PAGES = -(-MAX_FRAMES // KEY_TILE)
"""The number of pages of the longest possible row."""


class TableLayout:
    """The layout of int32 tables with the given shapes, one after another in one tensor of `size` numbers.

    queries: query positions that one program of the attention kernel computes.
    """

    def __init__(self, bucket: Bucket, queries: int, shapes: Sequence[tuple[int, ...]]) -> None:
        self.bucket, self._queries = bucket, queries
        self._shapes = (*shapes, (bucket.rows, MOST_PAGES if bucket.paged else 0))
        self._sizes = [prod(shape) for shape in self._shapes]
        self.size = sum(self._sizes)

    def _views(self, flat: Tensor) -> list[Tensor]:
        return [part.view(shape) for part, shape in zip(torch.split(flat, self._sizes), self._shapes, strict=True)]

    def _zeros(self) -> tuple[Numbers, list[Numbers]]:
        flat = torch.zeros(self.size, dtype=torch.int32)
        return flat.numpy(), [one.numpy() for one in self._views(flat)]


class EstimatorLayout(TableLayout):
    def __init__(self, bucket: Bucket, queries: int) -> None:
        frames, rows = (bucket.positions,), (bucket.rows,)
        tiles = _tile_shape(bucket.positions, bucket.rows, queries)
        super().__init__(bucket, queries, (frames, frames, frames, frames, rows, rows, tiles))

    def tables(self, flat: Tensor) -> PackedTables:
        return PackedTables(*self._views(flat))

    def numbers(self, rows: Sequence[FlowRow], upsampling: int) -> Numbers:
        flat, (row, local, position, ends, first, length, tiles, pages) = self._zeros()
        new = np.array([one.new * upsampling for one in rows], dtype=np.int64)
        used = _lay_rows(new, rows, row, local, first, length, pages)
        position[:used] = local[:used] + np.repeat([one.past * upsampling for one in rows], new)
        # `ends` stays 0 for padding: it attends to no keys, and attention gives zeros.
        ends[:used] = np.concatenate([one.span.frames for one in rows]) if rows else 0
        cut_tiles(tiles, new, self.bucket.positions, self._queries)
        return flat


class EncoderLayout(TableLayout):
    """The layout of `EncoderTables`. lookahead: later tokens that a token reads; upsampling: frames for a token."""

    def __init__(self, bucket: Bucket, queries: int, lookahead: int, upsampling: int) -> None:
        self.lookahead, self.upsampling, self.frames = lookahead, upsampling, bucket.positions * upsampling
        tokens, rows = (bucket.positions,), (bucket.rows,)
        tiles = (_tile_shape(size, bucket.rows, queries) for size in (bucket.positions, self.frames))
        ids = (bucket.positions, 1 + lookahead)
        super().__init__(bucket, queries, (ids, tokens, tokens, tokens, (self.frames,), rows, rows, rows, rows, *tiles))

    def tables(self, flat: Tensor) -> EncoderTables:
        return EncoderTables(*self._views(flat))

    def numbers(self, rows: Sequence[FlowRow]) -> Numbers:
        flat, tables = self._zeros()
        ids, row, local, ends, frame_ends, first, length, past, slots, tiles, frame_tiles, pages = tables
        new, count = np.array([one.new for one in rows], dtype=np.int64), len(rows)
        used = _lay_rows(new, rows, row, local, first, length, pages)
        past[:count] = [one.past for one in rows]
        slots[:count] = [one.before.slot if one.before else SINK for one in rows]
        ids[:] = -1
        if rows:
            heard = np.concatenate([one.span.lookahead_ends for one in rows]) - np.repeat(past[:count], new)
            ids[:used] = self._windows(rows, row[:used], local[:used], heard)
            # `ends` stays 0 for padding: it attends to no keys, and attention gives zeros.
            ends[:used] = np.concatenate([one.span.tokens for one in rows])
            frame_ends[: used * self.upsampling] = np.concatenate([one.span.up_frames for one in rows])
        cut_tiles(tiles, new, self.bucket.positions, self._queries)
        cut_tiles(frame_tiles, new * self.upsampling, self.frames, self._queries)
        return flat

    def _windows(
        self, rows: Sequence[FlowRow], row: Numbers, local: Numbers, lookahead_ends: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the ids of each token and of its lookahead: [tokens, 1 + lookahead], −1 after the lookahead's end.
        Rows lie end to end; after each row there is room for its lookahead."""
        nothing = np.full(self.lookahead, -1, dtype=np.int64)
        parts: list[NDArray[np.int64]] = []
        for one in rows:
            parts += (one.tokens, nothing[: one.new + self.lookahead - len(one.tokens)])
        begin, window = (np.arange(len(row)) + row * self.lookahead)[:, None], np.arange(1 + self.lookahead)
        heard: NDArray[np.bool_] = local[:, None] + window < lookahead_ends[:, None]
        return np.where(heard, np.concatenate(parts)[begin + window], -1)


def _tile_shape(size: int, rows: int, queries: int) -> tuple[int, int]:
    """Return the shape of a tile table that has room for any division of `size` positions into `rows` rows."""
    # Each row and the padding may end with a partial tile. A multiple of 4 tiles keeps the next table aligned to 16
    # bytes; Triton would compile another kernel for unaligned pointers.
    return rounded(-(-size // queries) + rows + 1, 4), 3


def cut_tiles(tiles: Numbers, new: NDArray[np.int64], size: int, queries: int) -> None:
    """Cut a batch's rows and the padding after them into tiles; a program of the attention kernel computes one tile.

    tiles: [tiles, 3] of zeros, which is filled from its start: row, first packed position, number of positions; new:
    [rows], positions of each row; size: positions of the batch, padding included; queries: positions of a full tile.
    """
    lengths = np.append(new, size - new.sum())
    starts = np.cumsum(lengths) - lengths
    owner, place = _counted(-(-lengths // queries))
    offset, total = place * queries, len(owner)
    # The last part is the padding, which belongs to no row.
    tiles[:total, 0] = np.where(owner < len(new), owner, 0)
    tiles[:total, 1] = starts[owner] + offset
    tiles[:total, 2] = np.minimum(queries, lengths[owner] - offset)


def _counted(counts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each item, in order, its owner, and its index within the owner; counts: items of each owner."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)


def _lay_rows(new: NDArray[np.int64], rows: Sequence[FlowRow], *tables: Numbers) -> int:
    """Fill the index tables of rows that lie end to end; return the number of positions in use.

    new: [rows], positions of each row; tables: row, local, first, length and pages.
    """
    row, local, first, length, pages = tables
    count, used = len(new), int(new.sum())
    first[:count], length[:count] = np.cumsum(new) - new, new
    row[:used], local[:used] = _counted(new)
    local[used:] = -1
    held = [one.after.pages for one in rows if one.after]
    if pages.shape[1] and held:
        owner, place = _counted(np.array([len(one) for one in held], dtype=np.int64))
        pages[owner, place] = np.fromiter(chain.from_iterable(held), dtype=np.int32, count=len(owner))
    return used
