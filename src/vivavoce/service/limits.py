"""Limits that all doors share, beside those of text (`text/checks.py`) and audio (`audio/checks.py`)."""

from __future__ import annotations

from vivavoce.errors import InvalidRequest

MAX_BATCH_SEGMENTS = 16
"""Segments of one text that are spoken side by side; the memory of a request is bounded by it."""

MAX_SEED = 2**53
"""Seeds survive a passage through JSON numbers, which are doubles in many clients."""


def check_seed(seed: int) -> None:
    """Refuse a seed outside of 0 … 2⁵³."""
    if not 0 <= seed <= MAX_SEED:
        raise InvalidRequest(f"seed: {seed} is outside of 0 … {MAX_SEED}; choose a number inside")
