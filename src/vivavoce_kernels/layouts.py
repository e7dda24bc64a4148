"""Memory layouts and tables that kernels share with their callers. This module does not need the package `triton`."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from torch import Tensor


class NoiseStream(IntEnum):
    """Numbers of the independent random sequences that one seed gives."""

    NUCLEUS = 1
    FALLBACK = 2
    SOURCE = 3
    PHASE = 4


KEY_TILE = 64
"""Keys per tile of the flow's attention kernels, whose tiles are counted from the row's start; positions per page."""
SHORT_FRAMES, SHORT_ROWS = 32, 7
"""The kernel of `short_rows` takes at most this many new frames per row, and this many rows per batch: a row needs two
clusters, and an H200 can run fourteen clusters at once, not sixteen."""

RowPlaces = tuple[Tensor, Tensor, Tensor]
"""Places of packed positions, int32: each position's row [positions], its index among the row's new positions (negative
for padding) [positions], and each row's number of new positions [rows].
"""


class PackedTables(NamedTuple):
    """Positions of packed frames; all int32.

    row, local, position, ends: [frames], each frame's row, index among the row's new frames (−1 for padding), position
    in the whole row, and end of the keys that it attends to. Within a row, `ends` never decreases.
    first, length: [rows], packed index of each row's first new frame, and number of the row's new frames.
    tiles: [tiles, 3], the part of a row that one program of attention computes: its row, first packed frame and number
    of frames (0 if unused).
    pages: [rows, width], the pages of each row in order; width 0 if rows have no pages.
    """

    row: Tensor
    local: Tensor
    position: Tensor
    ends: Tensor
    first: Tensor
    length: Tensor
    tiles: Tensor
    pages: Tensor


IDLE = -1  # the sampler's result for a slot that is not running


class Field(IntEnum):
    RUNNING = 0  # 1 from prefill until the run ends with a control id, else 0
    POSITION = 1  # sequence position of the row that this launch computes (in a prefill: of its last row)
    COUNT = 2  # number of ids sampled in the slot so far
    RUN_COUNT = 3  # number of ids sampled in the current run
    LAST = 4  # the id that the next decode step reads
    FORCED_AT = 5  # when the run has this number of ids, its next id is `FORCED`, whatever the scores are
    FORCED = 6
    MIN_TOKENS = 7  # number of ids that the run must have before the slot's `early` ids may be sampled
    SEED = 8
    TOP_K = 9
    WINDOW = 10  # number of latest ids in which repetitions are counted
    MAX_REPEATS = 11  # an id with this many repetitions is replaced by one that is sampled from all other ids
    TOP_P = 12  # the bits of a float64, stored as int64
    ADAPTER = 13  # 1 + the index of the run's adapter, or 0 without an adapter


class PackedRow(NamedTuple):
    """One row of the table [rows, WIDTH] int64 that describes a packed batch to the vocoder's kernels.

    Frames are counted from the row's first frame unless noted otherwise. Unused table rows are zeros, without frames.
    """

    start: int  # index of the row's first frame among the packed frames
    frames: int
    known: int = 0  # number of first frames whose source signal was computed before
    origin: int = 0  # the frame at which the cumulative sum of phases starts
    carried: int = 0  # 1: phases continue from the end of the previous piece; 0: they start at zero
    seed: int = 0  # seed of the source's noise
    counter: int = 0  # position of the first frame in the whole stream; the noise generator counts from it
    kept_phase: int = 0  # the frame at whose end the phase is saved for the next piece
    context: int = 0  # number of first frames that are copied from the pool
    fresh: int = 0  # index of the row's first new frame among the new frames of the batch
    before: int = 0  # the pool's row that is read
    after: int = -1  # the pool's row that is written, or −1 to write none
    tail: int = 0  # the first frame that the next piece computes again
    tail_known: int = 0  # number of frames from `tail` on whose source signal is saved
    held: int = 0  # the first frame that is held back for the next piece's crossfade
    fade: int = 0  # length of the crossfade in frames
    rule: int = 0  # index of the crossfade's pair of windows
    faded: int = 0  # 1: crossfade from the frames that the previous piece held back
    first: int = 0  # the first frame that is output
    end: int = 0  # the frame after the last one that is output
    out: int = 0  # index of the row's first output frame among all output frames


WIDTH = len(PackedRow._fields)
