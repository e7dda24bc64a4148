"""How far each position of a row sees: whole rows, the official grid of chunks, or blocks that are computed once.

Ends are positions from the row's start, the prompt's first token or frame; a query sees the keys before its end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Block(NamedTuple):
    """Positions that are computed once, together.

    end: of the block; lookahead_end: of the tokens that there were then: past it the lookahead of its last tokens heard
    nothing. Both are positions in the row.
    """

    end: int
    lookahead_end: int


def near_equal(start: int, end: int, most: int) -> tuple[int, ...]:
    """Ends of the fewest blocks of at most `most` positions that make up [start, end); their sizes differ by one.

    A short last block would cost as many steps as a long one, and hear less of what is around it.
    """
    count = -(-(end - start) // most)
    return tuple(start + (end - start) * (place + 1) // count for place in range(count))


def of_blocks(blocks: Sequence[Block], start: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ends of its block and of its lookahead, for each position in [start, end) of a row that is cut into `blocks`."""
    # Of a long row only the last blocks are asked for, at every chunk.
    reached = blocks[bisect_right(blocks, start, key=itemgetter(0)) : bisect_left(blocks, end, key=itemgetter(0)) + 1]
    starts = [start, *(block.end for block in reached[:-1]), end]
    ends, lookahead_ends = np.array(reached, dtype=np.int64).T.repeat(np.diff(starts), axis=1)
    return ends, lookahead_ends


def grid_ends(start: int, end: int, chunk: int) -> NDArray[np.int64]:
    """The end of each position's chunk in [start, end), chunks being counted from the row's start."""
    return np.minimum((np.arange(start, end) // chunk + 1) * chunk, end)


def whole_ends(start: int, end: int) -> NDArray[np.int64]:
    """Every position of [start, end) sees all."""
    return np.full(end - start, end, dtype=np.int64)


def at_rate(ends: NDArray[np.int64], upsampling: int) -> NDArray[np.int64]:
    """Ends of tokens → ends of their frames."""
    return np.repeat(ends * upsampling, upsampling)
