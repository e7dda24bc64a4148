"""Cutting work into batches whose padded size is bounded."""

from __future__ import annotations

from collections.abc import Sequence


def bounded_groups(sizes: Sequence[int], budget: int) -> list[list[int]]:
    """Group items so that padding a group to its longest makes at most `budget`; a larger item stands alone.

    Items of like size come together, which wastes the least. Returns the items' places, each once.
    """
    groups: list[list[int]] = []
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        longest = sizes[groups[-1][0]] if groups else 0
        if groups and longest * (len(groups[-1]) + 1) <= budget:
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups
