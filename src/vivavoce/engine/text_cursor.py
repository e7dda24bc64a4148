"""Finds where the voice of a sequence is in its text, from the attention of the decode steps.

Dynamic programming finds a path, which has one text token for each speech token. The path mostly stays or moves on by
one text token, may jump forward at a cost, and never goes back.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

STEPS = 4
"""The most text tokens by which the path moves on at a small cost from one speech token to the next."""
_STEP_COST, _JUMP_COST = 0.5, 5.0
_FLOOR = 0.01
"""Smaller values of attention are raised to this."""
_SURE = 0.4
_FAR = -1e9
Floats = NDArray[np.float32]


class TextCursor:
    """Follows one sequence. Text tokens are counted from the start of its text, speech tokens from its first one."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, Floats]] = []
        """For each speech token: a text token, and the attention to it and to later text tokens; empty if unknown."""
        self.astray: list[float] = []
        """For each speech token: the share of its attention that goes to the prompt's text; 0 if it was not read."""
        self.prompt_ids: list[int] = []
        """For each speech token: the prompt's text token with the most attention; −1 if it was not read."""
        self.looked_at: list[int] = []
        """For each speech token: the text token with the most attention; −1 if no text token has `_SURE` of it."""
        self._attended = np.zeros(0, np.float32)
        self._scores = np.zeros(1, np.float64)
        self._came: list[NDArray[np.int32]] = []
        """For each speech and text token: the text token one speech token earlier on the best path to this pair."""

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, count: int, attention: Floats | None = None, first: int = 0) -> None:
        """Add `count` speech tokens; attention: [count, text tokens] from the text token `first` on, None if unknown.

        Text tokens below 0 belong to the prompt.
        """
        nothing = np.zeros(0, np.float32)
        for place in range(count):
            self._take(first, nothing if attention is None else attention[place])

    def _take(self, first: int, row: Floats) -> None:
        self._rows.append((first, row))
        prompt, own, first = row[: max(0, -first)], row[max(0, -first) :], max(0, first)
        self.astray.append(float(prompt.sum()))
        self.prompt_ids.append(int(prompt.argmax()) if len(prompt) else -1)
        row = own / np.float32(max(1e-6, own.sum())) if len(prompt) else own
        most = int(row.argmax()) if len(row) else 0
        self.looked_at.append(first + most if len(row) and row[most] >= _SURE else -1)
        if first + len(row) > len(self._attended):
            self._attended = np.pad(self._attended, (0, first + len(row) - len(self._attended)))
        self._attended[first : first + len(row)] += row
        self._advance(first, row)

    def _advance(self, first: int, row: Floats) -> None:
        size = max(len(self._scores), first + len(row))
        before = np.full(size, _FAR)
        before[: len(self._scores)] = self._scores
        if not self._came:
            before[1:] = before[0] - _STEP_COST * np.minimum(np.arange(1, size), 10)
        index = np.arange(size, dtype=np.int32)
        best, came = before.copy(), index.copy()
        for step in range(1, min(STEPS, size - 1) + 1):
            better = before[:-step] - _STEP_COST * (step - 1) > best[step:]
            best[step:][better] = before[:-step][better] - _STEP_COST * (step - 1)
            came[step:][better] = index[:-step][better]
        if size > STEPS + 1:
            reached = np.maximum.accumulate(before)
            source = np.maximum.accumulate(np.where(before >= reached, index, 0))
            far = reached[: -STEPS - 1] - _JUMP_COST > best[STEPS + 1 :]
            best[STEPS + 1 :][far] = reached[: -STEPS - 1][far] - _JUMP_COST
            came[STEPS + 1 :][far] = source[: -STEPS - 1][far]
        if len(row):
            seen = np.full(size, np.log(_FLOOR))
            seen[first : first + len(row)] = np.log(np.maximum(row, _FLOOR))
            best = best + seen
        self._scores, kept = best - best.max(), came
        self._came.append(kept)

    @property
    def known(self) -> int:
        """Number of text tokens, from the first one on, for which attention was read."""
        return len(self._attended)

    def positions(self) -> NDArray[np.int64]:
        """Return the text token on the best path, for each speech token so far."""
        path = np.zeros(len(self._came), np.int64)
        if not len(path):
            return path
        path[-1] = int(self._scores.argmax())
        for place in range(len(path) - 1, 0, -1):
            path[place - 1] = self._came[place][path[place]]
        return path

    def reached(self) -> list[tuple[int, int]]:
        """Return, in order, each text token on the path, with the first speech token that is at it."""
        path = self.positions()
        starts = np.flatnonzero(np.diff(path, prepend=-1) > 0)
        return [(int(path[place]), int(place)) for place in starts]

    def attended(self, ids: int) -> Floats:
        """Return the summed attention of all speech tokens so far to each of the first `ids` text tokens."""
        total = np.zeros(ids, np.float32)
        known = min(ids, len(self._attended))
        total[:known] = self._attended[:known]
        return total

    def kept(self, count: int) -> TextCursor:
        """Return a new cursor that has followed only the first `count` speech tokens."""
        cursor = TextCursor()
        for first, row in self._rows[:count]:
            cursor._take(first, row)
        return cursor
