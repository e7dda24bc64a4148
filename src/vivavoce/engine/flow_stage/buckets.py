"""Sizes of packed batches, and how their rows are cut: what the tables of the encoder and the estimator share.

A position is what a batch is packed from: a token or a frame.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vivavoce.models.flow.matching import MAX_FRAMES
from vivavoce.models.flow.memory import KEY_TILE

Numbers = NDArray[np.int32]

FRAME_BUCKETS = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 10240, 12288, 16384)
"""Mel frames of the estimator's common batches."""
MAX_PACKED = 1 << 19
"""Packed frames up to which every offset into a batch's tensors fits 32 bits."""
MOST_PAGES = -(-MAX_FRAMES // KEY_TILE)
"""Pages of the longest row."""
MOST_ROWS = 256
"""Rows of a common batch."""
_LEAST_ROWS = 8


def common_rows(size: int, per_row: int) -> int:
    """Rows of a common batch of `size` positions, one for each `per_row` of them, as far as `MOST_ROWS`."""
    return min(max(size // per_row, _LEAST_ROWS), MOST_ROWS)


def with_room(size: int, rows: int, sizes: Sequence[int], per_row: int) -> tuple[int, int]:
    """Positions and rows of the smallest common batch with room for so many; past the largest, of one of its own.

    Args:
        sizes: positions of the common batches, ascending.
        per_row: see `common_rows`.
    """
    for common in sizes:
        if size <= common and rows <= common_rows(common, per_row):
            return common, common_rows(common, per_row)
    return rounded(size, KEY_TILE), rounded(rows, _LEAST_ROWS)


def most_tiles(size: int, rows: int, queries: int) -> int:
    """Tiles that `cut_tiles` needs at most, for `size` positions of so many rows."""
    # Every row, and the padding, may end with a tile that is not full. Each table begins at a multiple of 16 bytes: for
    # one that does not another kernel would be compiled.
    return rounded(-(-size // queries) + rows + 1, 4)


def cut_tiles(tiles: Numbers, new: NDArray[np.int64], size: int, queries: int) -> None:
    """Cut the rows of a batch, and the padding behind them, into pieces for one program of attention each.

    Args:
        tiles: [tiles, 3] of zeros, filled from the start: row, first packed position, positions.
        new: [rows], positions of each row; they lie end to end.
        size: positions of the batch, padding included.
        queries: positions of a whole tile.
    """
    lengths = np.append(new, size - new.sum())
    starts, counts = np.cumsum(lengths) - lengths, -(-lengths // queries)
    total = int(counts.sum())
    owner = np.repeat(np.arange(len(lengths)), counts)
    offset = (np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)) * queries
    # The last owner is the padding, which has no row.
    tiles[:total, 0] = np.where(owner < len(new), owner, 0)
    tiles[:total, 1] = starts[owner] + offset
    tiles[:total, 2] = np.minimum(queries, lengths[owner] - offset)


def rounded(size: int, to: int) -> int:
    """The smallest multiple of `to` that is not below `size`."""
    return -(-size // to) * to
