"""The numbers of a packed batch: worked out on the host, copied to the device as one.

Batches are padded to the sizes of a few buckets, so that one recording of an Euler step serves many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from vivavoce.engine.flow_stage.buckets import (
    FRAME_BUCKETS,
    MAX_PACKED,
    MOST_PAGES,
    Numbers,
    common_rows,
    cut_tiles,
    most_tiles,
    with_room,
)
from vivavoce.engine.flow_stage.planning import Row
from vivavoce.models.flow.packed_batch import PackedTables

_FRAMES_PER_ROW = 16


@dataclass(frozen=True)
class Bucket:
    """A size of batch: packed frames, rows, and whether rows have pages."""

    frames: int
    rows: int
    paged: bool

    @classmethod
    def common(cls, frames: int, paged: bool) -> Bucket:
        """The one of `FRAME_BUCKETS` with room for so many frames."""
        return cls(frames, common_rows(frames, _FRAMES_PER_ROW), paged)

    @classmethod
    def of(cls, frames: int, rows: int, paged: bool) -> Bucket:
        """The smallest common one with room for so many frames and rows; past the largest, one of its own.

        Raises:
            ValueError: more than `MAX_PACKED` frames.
        """
        if frames > MAX_PACKED:
            raise ValueError(f"a batch of {frames} frames, at most {MAX_PACKED} go together; split it")
        return cls(*with_room(frames, rows, FRAME_BUCKETS, _FRAMES_PER_ROW), paged)

    @property
    def is_common(self) -> bool:
        """Whether others will need it, too."""
        return self.frames in FRAME_BUCKETS and self == Bucket.common(self.frames, self.paged)


@dataclass(frozen=True)
class TableShape:
    """How the tables of a bucket lie in one tensor; queries: frames of an attention program."""

    bucket: Bucket
    queries: int

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the tables, in `PackedTables`' order."""
        frames, rows = self.bucket.frames, self.bucket.rows
        tiles = most_tiles(frames, rows, self.queries)
        pages = MOST_PAGES if self.bucket.paged else 0
        return ((frames,), (frames,), (frames,), (frames,), (rows,), (rows,), (tiles, 3), (rows, pages))

    @property
    def sizes(self) -> list[int]:
        """Numbers of each table."""
        return [int(np.prod(shape)) for shape in self.shapes]

    def views(self, flat: Tensor) -> PackedTables:
        """flat: [numbers] int32 on the device."""
        parts = torch.split(flat, self.sizes)
        return PackedTables(*(part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)))

    def numbers(self, rows: Sequence[Row], upsampling: int) -> Numbers:
        """What the tables hold for `rows`, which fit; none: a batch of padding."""
        flat = np.zeros(sum(self.sizes), dtype=np.int32)
        starts = [0, *accumulate(self.sizes)]
        tables = [
            flat[start : start + size].reshape(shape)
            for start, size, shape in zip(starts, self.sizes, self.shapes, strict=False)
        ]
        row, local, position, ends, first, length, tiles, pages = tables
        new = np.array([one.new * upsampling for one in rows], dtype=np.int64)
        used, count = int(new.sum()), len(rows)
        first[:count], length[:count] = np.cumsum(new) - new, new
        row[:used] = np.repeat(np.arange(count), new)
        local[:used] = np.arange(used) - np.repeat(first[:count], new)
        local[used:] = -1
        position[:used] = local[:used] + np.repeat([one.past * upsampling for one in rows], new)
        # Frames of padding end nowhere: attention makes zeros of them.
        ends[:used] = np.concatenate([one.sight.frames for one in rows]) if rows else 0
        cut_tiles(tiles, new, self.bucket.frames, self.queries)
        for place, one in enumerate(rows if self.bucket.paged else ()):
            assert one.after is not None
            pages[place, : len(one.after.pages)] = one.after.pages
        return flat
