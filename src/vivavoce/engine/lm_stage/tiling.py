"""Runs that begin → the integers of a recorded prefill, whose sequences begin at multiples of a tile's rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from vivavoce.checkpoint.config import Vocabulary
from vivavoce.engine.lm_stage.packing import KINDS
from vivavoce.engine.lm_stage.slots import Slot
from vivavoce.engine.lm_stage.state import state_row, state_width
from vivavoce.models.lm.fused import ROW_TILE, TiledRows

_ROW_ARRAYS = 4


@dataclass(frozen=True)
class Layout:
    """Sizes of a recorded prefill: rows, sequences, and integers of a slot's state at the start of a run."""

    rows: int
    sequences: int
    state: int

    @property
    def size(self) -> int:
        """Integers in all."""
        return _ROW_ARRAYS * self.rows + (2 + self.state) * self.sequences

    def rows_of(self, inputs: Tensor) -> TiledRows:
        """What the network reads; views of the integers, [size] int64."""
        kinds, ids, slots, positions = inputs[: _ROW_ARRAYS * self.rows].view(_ROW_ARRAYS, self.rows).unbind(0)
        return TiledRows(kinds, ids, slots, positions, self._after(inputs)[self.sequences : 2 * self.sequences])

    def places(self, inputs: Tensor) -> Tensor:
        """[sequences] the slot of each; a view."""
        return self._after(inputs)[: self.sequences]

    def states(self, inputs: Tensor) -> Tensor:
        """[sequences, state], see `state_row`; a view."""
        return self._after(inputs)[2 * self.sequences :].view(self.sequences, self.state)

    def _after(self, inputs: Tensor) -> Tensor:
        return inputs[_ROW_ARRAYS * self.rows :]


def tiled_rows(slots: Sequence[Slot]) -> int:
    """Rows that the waiting runs of some slots take."""
    return sum(-(-len(slot.waiting.rows) // ROW_TILE) * ROW_TILE for slot in slots if slot.waiting)


def tile(slots: Sequence[Slot], layout: Layout, sink: int, vocabulary: Vocabulary) -> np.ndarray:
    """The waiting runs of some slots, [size] int64. What only pads belongs to the slot `sink`, which never runs."""
    rows = np.zeros((_ROW_ARRAYS, layout.rows), dtype=np.int64)
    rows[2] = sink
    places, last = np.full(layout.sequences, sink), np.zeros(layout.sequences, dtype=np.int64)
    states = np.zeros((layout.sequences, layout.state), dtype=np.int64)
    first = 0
    for number, slot in enumerate(slots):
        run = slot.waiting
        assert run is not None, "every slot of a prefill has a run that waits"
        count = len(run.rows)
        own = rows[:, first : first + count]
        own[0], own[1] = [KINDS[row.kind] for row in run.rows], [row.id for row in run.rows]
        own[2], own[3] = slot.place, np.arange(slot.positions, slot.positions + count)
        places[number], last[number] = slot.place, first + count - 1
        position = slot.positions + count - 1
        states[number] = state_row(run, slot.settings, slot.seed, position, slot.count, vocabulary)
        first += -(-count // ROW_TILE) * ROW_TILE
    return np.concatenate([rows.ravel(), places, last, states.ravel()])


def layout_for(rows: int, sequences: int, vocabulary: Vocabulary) -> Layout:
    """A prefill of so many rows and sequences."""
    return Layout(rows, sequences, state_width(len(vocabulary.stop_ids)))
