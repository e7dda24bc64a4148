"""How many edits turn what was to be said into what was heard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Edits:
    """The edits of one utterance against `total` units that were to be said."""

    substitutions: int
    deletions: int
    insertions: int
    total: int

    @property
    def errors(self) -> int:
        """All edits; more than `total` if much was heard that nobody was to say."""
        return self.substitutions + self.deletions + self.insertions


def align(said: Sequence[str], heard: Sequence[str]) -> Edits:
    """The fewest edits (Levenshtein, 1966); of several ways with as few, the one with most substitutions."""
    # Each cell holds (errors, substitutions, deletions, insertions) of the best way there.
    above = [(count, 0, 0, count) for count in range(len(heard) + 1)]
    for row, unit in enumerate(said, start=1):
        cells = [(row, 0, row, 0)]
        for column, other in enumerate(heard, start=1):
            errors, swapped, lost, added = above[column - 1]
            if unit == other:
                ways = [(errors, swapped, lost, added)]
            else:
                ways = [(errors + 1, swapped + 1, lost, added)]
            errors, swapped, lost, added = above[column]
            ways.append((errors + 1, swapped, lost + 1, added))
            errors, swapped, lost, added = cells[column - 1]
            ways.append((errors + 1, swapped, lost, added + 1))
            cells.append(min(ways, key=lambda way: (way[0], -way[1])))
        above = cells
    _, substitutions, deletions, insertions = above[-1]
    return Edits(substitutions, deletions, insertions, len(said))


def phone_errors(pronunciations: Sequence[Sequence[Sequence[str]]], heard: Sequence[str]) -> tuple[int, int]:
    """(errors, phones to be said): the fewest edits from any way to pronounce the words to the phones heard.

    Args:
        pronunciations: for each word in order, the ways to pronounce it; a word has at least one.
        heard: phones.

    The phones to be said are counted by each word's shortest pronunciation.
    """
    row = np.arange(len(heard) + 1)
    for ways in pronunciations:
        row = np.min([_after(way, heard, row) for way in ways], axis=0)
    return int(row[-1]), sum(min(map(len, ways)) for ways in pronunciations)


def _after(phones: Sequence[str], heard: Sequence[str], row: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row of the edit table after some more phones.

    A step right costs 1, so with columns' numbers taken off the best way from the left is a running minimum.
    """
    steps = np.arange(len(row))
    for phone in phones:
        swapped = row[:-1] + np.array([phone != other for other in heard], dtype=np.int64)
        below = row + 1
        below[1:] = np.minimum(below[1:], swapped)
        row = np.minimum.accumulate(below - steps) + steps
    return row
