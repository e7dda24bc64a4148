"""Layouts of memory and tables that kernels share with their callers; this module does not need `triton`."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from torch import Tensor


class NoiseStream(IntEnum):
    """Independent sequences of random numbers that one seed has."""

    NUCLEUS = 1
    FALLBACK = 2
    SOURCE = 3
    PHASE = 4


KEY_TILE = 64
"""Number of keys in a tile of the flow's attention kernels, counted from the row's start; pages for these kernels hold
as many positions."""

RowPlaces = tuple[Tensor, Tensor, Tensor]
"""Places of packed positions, int32: [positions] the row, [positions] the index among the row's new positions (below
zero: padding), [rows] the number of new positions."""


class PackedTables(NamedTuple):
    """Positions of packed frames; all int32.

    row, local, position, ends: [frames], for each packed frame its row, its index among the row's new frames (−1:
    padding), its position in the whole row, and the end of the keys that it sees.
    first, length: [rows], packed index of each row's first new frame, and the number of its new frames.
    tiles: [tiles, 3], pieces of rows for one program of attention: row, first packed frame, frames (0: idle).
    pages: [rows, width], pages of each row in order; width 0 if rows have no pages.
    """

    row: Tensor
    local: Tensor
    position: Tensor
    ends: Tensor
    first: Tensor
    length: Tensor
    tiles: Tensor
    pages: Tensor


IDLE = -1  # in a launch's result where no id was sampled


class Field(IntEnum):
    RUNNING = 0  # 1 from prefill to the run's control id
    POSITION = 1  # position of the row that this launch feeds (a prefill's last row)
    COUNT = 2  # ids sampled in the slot
    RUN_COUNT = 3  # ids sampled in the run
    LAST = 4  # the id to be fed next
    FORCED_AT = 5
    FORCED = 6
    MIN_TOKENS = 7
    SEED = 8
    TOP_K = 9
    WINDOW = 10
    MAX_REPEATS = 11
    TOP_P = 12  # the bits of a float64
    ADAPTER = 13  # 1 + the place of the run's adapter, 0 without one


class PackedRow(NamedTuple):
    """One row of the table that tells the vocoder's kernels about the rows of a packed batch: [rows, WIDTH] int64.

    Frames are counted from a row's first one unless noted otherwise. Unused rows of the table are zeros: no frames.
    """

    start: int  # index of its first frame among the packed frames
    frames: int
    known: int = 0  # frames whose source exists already
    origin: int = 0  # the frame at which the sum of phases begins
    carried: int = 0  # 1: phases continue the carried phase; 0: they start at zero
    seed: int = 0  # seed of the noise
    counter: int = 0  # position of the first frame in the whole stream, the counter of the noise
    kept_phase: int = 0  # the frame at whose end the phase is kept
    context: int = 0  # frames that are copied from the pool
    fresh: int = 0  # index of its new frames among the batch's new frames
    before: int = 0  # the pool's row that is read
    after: int = -1  # the pool's row that is written, or −1
    tail: int = 0  # the first frame that the next piece computes again
    tail_known: int = 0  # number of frames from `tail` on whose source is kept
    held: int = 0  # the first frame held back for a fade
    fade: int = 0  # frames of the fade
    rule: int = 0  # index of the pair of windows for the fade
    faded: int = 0  # 1: fade in over the held frames of the piece before
    first: int = 0  # the first frame given out
    end: int = 0  # the frame after the last one given out
    out: int = 0  # index of its first frame among all frames given out


WIDTH = len(PackedRow._fields)
