"""Limits that all doors share, beside those of text (`text/checks.py`) and audio (`audio/checks.py`)."""

from __future__ import annotations

from vivavoce.errors import InvalidRequest

MAX_SEED = 2**53
"""Seeds survive a passage through JSON numbers, which are doubles in many clients."""


def check_seed(seed: int) -> None:
    """Refuse a seed outside of 0 … 2⁵³."""
    if not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        raise InvalidRequest(f"seed: {seed!r} is no whole number in 0 … {MAX_SEED}; choose one")
