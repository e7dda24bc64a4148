"""Forwards of the plain network: any device, any chooser; the reference for the recorded ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from vivavoce.engine.lm_stage.buckets import PLAIN_SLOTS, fitting
from vivavoce.engine.lm_stage.choosing import Chooser
from vivavoce.engine.lm_stage.packing import pack
from vivavoce.engine.lm_stage.slots import Slot
from vivavoce.engine.lm_stage.state import SlotStates
from vivavoce.models.build import LanguageModel, Models
from vivavoce.models.lm.slot_cache import SlotCache
from vivavoce.models.lm.slot_lm import SlotLM
from vivavoce.models.lm.slot_numbers import Field

REACH_STEP = 128
"""Attention looks at a multiple of so many positions."""


class PlainSteps:
    """`SlotLM` and its chooser over static slots.

    Args:
        models: networks on one device.
        slots, capacity: sequences, and positions of each.
        window: ids of a slot's past that are kept.
        choose: decides the ids.
        fixed: steps are of one shape, that of all slots and positions.
    """

    def __init__(
        self, models: Models | LanguageModel, slots: int, capacity: int, window: int, choose: Chooser, *, fixed: bool
    ) -> None:
        config = models.config.lm
        self._slots, self._capacity, self._choose, self._fixed = slots, capacity, choose, fixed
        self._device, self._vocabulary = models.device, config.vocabulary
        self._lm = SlotLM(models.lm, capacity)
        self._cache = SlotCache.allocate(config, slots, capacity, models.device, models.dtype)
        self._states = SlotStates(slots, len(config.vocabulary.stop_ids), window, models.device)

    def bucket(self, slots: int) -> int:
        """Slots that a step for the first `slots` covers."""
        if self._fixed:
            return self._slots
        if self._device.type == "cpu":
            return slots
        return min(self._slots, fitting(PLAIN_SLOTS, slots) or self._slots)

    def prefill(self, held: Sequence[Slot], most: int) -> Tensor:
        """Read the slots' waiting runs; their first ids, [n] int64. most: no top_k is larger."""
        beginning = pack(held, self._capacity, self._vocabulary, self._device)
        packed = beginning.packed
        reach = max(slot.positions + len(slot.waiting.rows) + 1 for slot in held if slot.waiting)
        scores = self._lm.prefill(packed, self._cache, self._reach(reach))
        rows = self._states.starting(packed.sequences, beginning.states)
        ids = rows.advance(scores, self._choose, most)
        self._states.put(packed.sequences, rows)
        return ids

    def decode(self, held: Sequence[Slot], most: int, steps: int) -> Iterator[Tensor]:
        """More ids for the slots, by place: [bucket] int64 for each step, `IDLE` where none runs."""
        rows = self._states.first(self.bucket(max(slot.place for slot in held) + 1))
        reach = max(slot.reach for slot in held)
        for step in range(steps):
            width = self._capacity if self._fixed else self._reach(reach + step)
            scores = self._lm.step(rows.column(Field.LAST), rows.column(Field.POSITION), self._cache, width)
            yield rows.advance(scores, self._choose, most)

    def move(self, sources: Tensor, targets: Tensor, positions: int) -> None:
        """Copy slots onto others, the first `positions` positions of each; sources, targets: [n] int64."""
        self._cache.move(sources, targets, self._reach(positions))
        self._states.move(sources, targets)

    def prepare(self, slots: int | None) -> None:
        """There is nothing to be made ahead."""

    def _reach(self, positions: int) -> int:
        return min(self._capacity, -(-positions // REACH_STEP) * REACH_STEP)
