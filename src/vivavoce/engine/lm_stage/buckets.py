"""The sizes that a device's steps come in, so that few shapes are ever met."""

from __future__ import annotations

from collections.abc import Sequence

PLAIN_SLOTS = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Slots of a decode step of the plain network; after the last one all slots."""
SLOTS = (1, *PLAIN_SLOTS)
"""Slots of a recorded decode step."""
ROWS = (64, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1536, 2048, 3072, 4096)
"""Rows of a recorded prefill."""
SEQUENCES = (1, 8, 32)
"""Sequences of a recorded prefill."""
ROWS_AHEAD = 1024
"""Prefills of so many rows are recorded before any is asked for, larger ones when they first are."""


def fitting(sizes: Sequence[int], count: int) -> int | None:
    """The smallest size that holds so many; None: none does."""
    return next((size for size in sizes if size >= count), None)
