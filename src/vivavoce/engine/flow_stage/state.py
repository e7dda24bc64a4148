"""What the pool holds of one row."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class RowState:
    """Pages of a row, and where its convolutions' tails lie.

    tokens: whose state it is, from the row's start; pages: in the row's order; slot: the page beside which the tails
    lie. It is one of the row's own pages, so that no other row writes there.
    """

    tokens: int
    pages: tuple[int, ...]
    slot: int
