"""Layouts of memory and tables that kernels share with their callers; unlike the kernels it does not need `triton`."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from torch import Tensor

KEY_TILE = 64
"""Keys that the flow's attention kernels take at a time, counted from the row's start; where memory lies in pages that
such kernels read, a page holds this many positions."""

RowPlaces = tuple[Tensor, Tensor, Tensor]
"""Where packed positions stand, int32: [positions] the row of each, and its place among the row's new ones (below zero:
padding); [rows] new positions of each row."""

IDLE = -1
"""Stands in a launch's result where no id was sampled."""


class Field(IntEnum):
    """Columns of a slot's numbers."""

    RUNNING = 0
    """1 from prefill to the run's control id."""
    POSITION = 1
    """Position of the row that this launch feeds (a prefill's last row)."""
    COUNT = 2
    """Ids sampled in the slot."""
    RUN_COUNT = 3
    """Ids sampled in the run."""
    LAST = 4
    """The id to be fed next."""
    FORCED_AT = 5
    FORCED = 6
    MIN_TOKENS = 7
    SEED = 8
    TOP_K = 9
    WINDOW = 10
    MAX_REPEATS = 11
    TOP_P = 12
    """The bits of a float64."""


class PackedRow(NamedTuple):
    """One row of the table that tells the vocoder's kernels about the rows of a packed batch: [rows, WIDTH] int64.

    Frames are counted from a row's first one unless said otherwise. A table's unused rows are zeros: rows of no frames.
    """

    start: int
    """Its first frame's place among the packed frames."""
    frames: int
    known: int = 0
    """Frames whose source is there already."""
    origin: int = 0
    """The frame at which phases begin to be summed up."""
    carried: int = 0
    """1: they run on from the carried phase; 0: from nought."""
    seed: int = 0
    """Seed of the noise."""
    counter: int = 0
    """The first frame's place in its whole stream, by which noise is drawn."""
    kept_phase: int = 0
    """The frame at whose end the phase is kept."""
    context: int = 0
    """Frames that come from the pool."""
    fresh: int = 0
    """The place of what follows them among the fresh frames of the batch."""
    before: int = 0
    """The pool's row that is read."""
    after: int = -1
    """The pool's row that is written, or −1."""
    tail: int = 0
    """The first frame that the next piece sees again."""
    tail_known: int = 0
    """Frames from there on whose source is kept."""
    held: int = 0
    """The first frame held back for a fade."""
    fade: int = 0
    """Frames that a fade takes."""
    rule: int = 0
    """Which pair of windows fades."""
    faded: int = 0
    """1: the piece is faded into what was held before it."""
    first: int = 0
    """The first frame given out."""
    end: int = 0
    """The frame after the last one given out."""
    out: int = 0
    """Its first frame's place among all frames given out."""


WIDTH = len(PackedRow._fields)
