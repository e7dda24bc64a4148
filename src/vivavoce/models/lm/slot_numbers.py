"""What a slot's state on the device is made of; the engine keeps it, kernels read and advance it."""

from __future__ import annotations

from enum import IntEnum

IDLE = -1
"""Stands in a launch's result where no id was sampled."""


class Field(IntEnum):
    """Columns of a slot's numbers."""

    RUNNING = 0
    """1 from prefill to the run's control id."""
    POSITION = 1
    """Where the row that this launch feeds stands (a prefill's last row)."""
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
    """As the bits of a float64."""
