"""The stage: slots are opened, fed and closed; prefills and decode steps are launched; ids are collected late."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from vivavoce.engine.lm_stage.choosing import Chooser, filled, repetition_aware
from vivavoce.engine.lm_stage.packing import pack, to_device
from vivavoce.engine.lm_stage.readback import Arrived, Owner, Readback, Sampled
from vivavoce.engine.lm_stage.run import Run
from vivavoce.engine.lm_stage.slots import Slot, SlotTable
from vivavoce.engine.lm_stage.state import Field, SlotStates
from vivavoce.engine.request import SamplingParams
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import Models
from vivavoce.models.lm.slot_cache import SlotCache
from vivavoce.models.lm.slot_lm import SlotLM

REACH_STEP = 128
"""Attention looks at a multiple of so many positions."""
LARGEST_WINDOW = 200
"""Ids of a slot's past that are kept: no sampling window is wider."""
BUCKETS = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Numbers of slots that a GPU's steps come in, so that few shapes are ever met; after the last one all slots."""


class LMStage:
    """The language model over static slots.

    Launches (`prefill`, `decode`) do not wait for the device; `collect` gives their ids. One thread calls it, under
    `torch.inference_mode()`, and on CUDA always on the same stream.

    Args:
        models: networks on one device.
        slots: sequences that can run at the same time.
        capacity: positions of each slot; its keys and values are reserved at once.
        chooser: stands in for repetition-aware sampling.
    """

    def __init__(self, models: Models, *, slots: int, capacity: int, chooser: Chooser | None = None) -> None:
        self.slots, self.capacity = slots, capacity
        config = models.config.lm
        self._device, self._vocabulary, self._defaults = models.device, config.vocabulary, config.sampling
        self._choose = chooser or repetition_aware
        window = max(LARGEST_WINDOW, config.sampling.win_size)
        with torch.inference_mode():
            self._lm = SlotLM(models.lm, capacity)
            self._cache = SlotCache.allocate(config, slots, capacity, models.device, models.dtype)
            self._states = SlotStates(slots, len(config.vocabulary.stop_ids), window, models.device)
        self._table = SlotTable(slots)
        self._readback = Readback()

    @property
    def free_slots(self) -> int:
        """Slots that can be opened."""
        return self._table.free

    @property
    def decoding(self) -> int:
        """Slots with a run in progress, as far as is known."""
        return sum(slot.decoding for slot in self._table.all)

    @property
    def in_flight(self) -> int:
        """Launches whose ids were not collected."""
        return len(self._readback)

    def check(self, run: Run) -> None:
        """Refuse a run that fits no slot.

        Raises:
            InvalidRequest: it may need more positions than a slot has.
        """
        self._check(run, 0)

    def open(self, params: SamplingParams, seed: int) -> int:
        """Take the lowest free slot; its number."""
        return self._table.open(seed, filled(params, self._defaults)).number

    def feed(self, slot: int, run: Run) -> None:
        """Queue a run; the one before it is over, and its end was collected.

        Raises:
            InvalidRequest: it may need more positions than the slot has left.
        """
        held = self._table[slot]
        if held.run is not None or held.waiting is not None:
            raise RuntimeError(f"slot {slot} has a run already; collect its end before feeding another")
        self._check(run, held.positions)
        held.waiting = run

    def waiting_rows(self, slot: int) -> int:
        """Rows that were fed and not prefilled."""
        waiting = self._table[slot].waiting
        return 0 if waiting is None else len(waiting.rows)

    def prefill(self, slots: Sequence[int]) -> None:
        """Read the queued runs of some slots in one forward, and sample the first id of each."""
        held = [self._table[number] for number in slots]
        if not held:
            return
        beginning = pack(held, self.capacity, self._vocabulary, self._device)
        for slot in held:
            slot.begin()
        packed = beginning.packed
        scores = self._lm.prefill(packed, self._cache, self._reach(held))
        rows = self._states.starting(packed.sequences, beginning.states)
        ids = rows.advance(scores, self._choose, self._most)
        self._states.put(packed.sequences, rows)
        self._readback.send(ids, [Owner(index, slot.number, slot.epoch) for index, slot in enumerate(held)])

    def decode(self) -> None:
        """One more id for every slot whose run is in progress; nothing if there is none."""
        self._compact()
        held = [slot for slot in self._table.all if slot.decoding]
        if not held:
            return
        rows = self._states.first(self._bucket(max(slot.place for slot in held) + 1))
        scores = self._lm.step(rows.column(Field.LAST), rows.column(Field.POSITION), self._cache, self._reach(held))
        ids = rows.advance(scores, self._choose, self._most)
        for slot in held:
            slot.launched += 1
        self._readback.send(ids, [Owner(slot.place, slot.number, slot.epoch) for slot in held])

    def collect(self, wait: bool) -> list[Sampled]:
        """Ids of finished launches, oldest first; wait: block for the oldest one if none is finished."""
        sampled = (self._take(arrived) for arrived in self._readback.receive(wait))
        return [one for one in sampled if one is not None]

    def close(self, slot: int) -> None:
        """Free a slot at once; ids that are still on their way to it are dropped."""
        self._table.close(slot)

    def _take(self, arrived: Arrived) -> Sampled | None:
        slot = self._table.find(arrived.owner.slot, arrived.owner.epoch)
        if slot is None:
            return None
        slot.received += 1
        ended = arrived.id >= self._vocabulary.num_speech_tokens
        if ended:
            slot.end()
        return Sampled(slot.number, (arrived.id,), ended)

    def _check(self, run: Run, positions: int) -> None:
        if positions + run.positions > self.capacity:
            raise InvalidRequest(
                f"text: with its prompt it may need {positions + run.positions} positions, a slot has "
                f"{self.capacity}; use a shorter text or reference"
            )

    @property
    def _most(self) -> int:
        return max(slot.settings.top_k for slot in self._table.all)

    def _reach(self, held: Sequence[Slot]) -> int:
        reach = max(slot.reach for slot in held)
        return min(self.capacity, -(-reach // REACH_STEP) * REACH_STEP)

    def _bucket(self, slots: int) -> int:
        """Slots that a step for the first `slots` covers."""
        if self._device.type == "cpu":
            return slots
        fitting = (size for size in BUCKETS if size >= slots)
        return min(self.slots, next(fitting, self.slots))

    def _compact(self) -> None:
        """Once the open slots would fit half of the step, they move together."""
        if 2 * self._bucket(len(self._table)) > self._bucket(self._table.used):
            return
        moves = self._table.compact()
        if moves:
            sources, targets = to_device([np.array(part) for part in zip(*moves, strict=True)], self._device)
            reach = -(-max(slot.reach + 1 for slot in self._table.all) // REACH_STEP) * REACH_STEP
            self._cache.move(sources, targets, min(self.capacity, reach))
            self._states.move(sources, targets)
