"""Columns of the table that tells kernels about the rows of a packed batch: [rows, WIDTH] int64, one NamedTuple each.

Frames are counted from a row's first one unless said otherwise. A table's unused rows are zeros: rows of no frames.
"""

from __future__ import annotations

from typing import NamedTuple

import triton.language as tl


class PackedRow(NamedTuple):
    """One row of the table, in the order of the constants below."""

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
    """Of the noise."""
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
ROW_WIDTH = tl.constexpr(WIDTH)
START = tl.constexpr(0)
FRAMES = tl.constexpr(1)
KNOWN = tl.constexpr(2)
ORIGIN = tl.constexpr(3)
CARRIED = tl.constexpr(4)
SEED = tl.constexpr(5)
COUNTER = tl.constexpr(6)
KEPT_PHASE = tl.constexpr(7)
CONTEXT = tl.constexpr(8)
FRESH = tl.constexpr(9)
BEFORE = tl.constexpr(10)
AFTER = tl.constexpr(11)
TAIL = tl.constexpr(12)
TAIL_KNOWN = tl.constexpr(13)
HELD = tl.constexpr(14)
FADE = tl.constexpr(15)
RULE = tl.constexpr(16)
FADED = tl.constexpr(17)
FIRST = tl.constexpr(18)
END = tl.constexpr(19)
OUT = tl.constexpr(20)
