"""Two texts of which one was made of the other: which of their tokens are the same, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_RUN = 4
"""So many equal tokens in a row show that two texts, which went apart, are together again."""
_FIRST_REACH = 32


def matches(one: Sequence[str], other: Sequence[str]) -> list[tuple[int, int]]:
    """Places of equal tokens in both, each in ascending order.

    The texts are walked side by side. Where they differ, they go on where the nearest run of equal tokens begins: a
    run further away cannot be meant, as long as a rewriting keeps the order and brings no such run of its own. What
    lies between is matched by its longest common subsequence. Work and memory grow with the length of the texts, and
    with the square of what was rewritten between two runs.
    """
    found: list[tuple[int, int]] = []
    at, beside = 0, 0
    while at < len(one) and beside < len(other):
        if one[at] == other[beside]:
            found.append((at, beside))
            at, beside = at + 1, beside + 1
            continue
        skip, skip_beside = _to_next_run(one, other, at, beside)
        between = _longest_common(one[at : at + skip], other[beside : beside + skip_beside])
        found += [(at + place, beside + place_beside) for place, place_beside in between]
        at, beside = at + skip, beside + skip_beside
    return found


def _to_next_run(one: Sequence[str], other: Sequence[str], at: int, beside: int) -> tuple[int, int]:
    """Tokens of each before the nearest run of equal ones, nearest by their sum; all, where there is none."""
    left, left_beside = len(one) - at, len(other) - beside
    reach = _FIRST_REACH
    while True:
        run = _nearest_run(one[at : at + reach + _RUN], other[beside : beside + reach + _RUN])
        # Tokens out of reach may begin a run only if they are further away than it.
        if run is not None and sum(run) <= reach:
            return run
        if reach >= max(left, left_beside):
            return run or (left, left_beside)
        reach *= 2


def _nearest_run(one: Sequence[str], other: Sequence[str]) -> tuple[int, int] | None:
    places: dict[tuple[str, ...], int] = {}
    for place, run in _runs(one):
        places.setdefault(run, place)
    nearest: tuple[int, int] | None = None
    for beside, run in _runs(other):
        if nearest is not None and beside > sum(nearest):
            break
        found = places.get(run)
        if found is not None and (nearest is None or found + beside < sum(nearest)):
            nearest = found, beside
    return nearest


def _runs(tokens: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    return enumerate(zip(*(tokens[start:] for start in range(_RUN)), strict=False))


def _longest_common(one: Sequence[str], other: Sequence[str]) -> list[tuple[int, int]]:
    """Places of a longest common subsequence, by Hyyrö's bit-parallel rows ("Bit-parallel LCS-length computation
    revisited", 2004): bit i of row j is 0 where the first i + 1 tokens share one more with the first j + 1 than the
    first i do.
    """
    places: dict[str, int] = {}
    for place, token in enumerate(one):
        places[token] = places.get(token, 0) | 1 << place
    every = row = (1 << len(one)) - 1
    rows = []
    for token in other:
        hits = row & places.get(token, 0)
        row = ((row + hits) | (row - hits)) & every
        rows.append(row)
    return _traced(rows, len(one))


def _traced(rows: Sequence[int], columns: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    place, beside = columns - 1, len(rows) - 1
    while place >= 0 and beside >= 0:
        if rows[beside] >> place & 1:
            place -= 1
        elif beside and not rows[beside - 1] >> place & 1:
            beside -= 1
        else:
            found.append((place, beside))
            place, beside = place - 1, beside - 1
    return found[::-1]
