"""Forwards of the plain network: any device, any chooser; the reference for the recorded ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from vivavoce.engine.device import upload
from vivavoce.engine.graphs import fitting, rounded
from vivavoce.engine.lm_stage.run import DecodeRun
from vivavoce.engine.lm_stage.slots import Chooser, Slot, SlotRows
from vivavoce.models.build import LanguageModel, Models
from vivavoce.models.kernels.layouts import Field
from vivavoce.models.lm.conformer import SPEAKER, TEXT, ConformerLM, ConformerSlotLM
from vivavoce.models.lm.interleave import RowKind
from vivavoce.models.lm.slot_lm import SAFE_ROWS, PackedRows, SlotCache, SlotLM

PLAIN_SLOTS = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Slots of a decode step; after the last one all slots."""
REACH_STEP = 128
"""Attention looks at a multiple of this many positions."""
KINDS = {RowKind.CONTROL: 0, RowKind.TEXT: TEXT, RowKind.SPEECH: 2, RowKind.SPEAKER: SPEAKER}
"""The numbers of the tables that rows are taken from; the last one is of no table."""


class SlotSteps:
    """Static slots: their keys, values and state, which `PlainSteps` and `GraphedSteps` advance.

    spare: slots besides; capacity: positions of each; window: ids of a slot's past that are kept; fixed: decode steps
    are of one shape, that of all slots (and positions).
    """

    def __init__(
        self, models: Models | LanguageModel, slots: int, capacity: int, window: int, *, fixed: bool, spare: int = 0
    ) -> None:
        config = models.config.lm
        self._slots, self._capacity, self._fixed = slots, capacity, fixed
        self._device, self._vocabulary = models.device, config.vocabulary
        self._cache = SlotCache.allocate(config, slots + spare, capacity, models.device, models.dtype)
        self._states = SlotRows.allocate(slots + spare, len(config.vocabulary.stop_ids), window, models.device)

    def move(self, sources: Tensor, targets: Tensor, positions: int) -> None:
        """Copy slots onto others, the first `positions` positions of each; sources, targets: [n] int64."""
        self._cache.move(sources, targets, self._reach(positions))
        self._states.move(sources, targets)

    def _reach(self, positions: int) -> int:
        return min(self._capacity, rounded(positions, REACH_STEP))


class PlainSteps(SlotSteps):
    """`SlotLM` and a chooser, which decides the ids, over static slots."""

    def __init__(
        self, models: Models | LanguageModel, slots: int, capacity: int, window: int, choose: Chooser, *, fixed: bool
    ) -> None:
        super().__init__(models, slots, capacity, window, fixed=fixed)
        lm = models.lm
        self._lm = ConformerSlotLM(lm, capacity) if isinstance(lm, ConformerLM) else SlotLM(lm, capacity)
        self._choose = choose

    def prepare(self, slots: int | None) -> None:
        """Make ahead what this many slots would wait for when it is first needed, None: all; here nothing is."""

    def bucket(self, slots: int) -> int:
        """Slots that a step for the first `slots` covers."""
        if self._fixed:
            return self._slots
        if self._device.type == "cpu":
            return slots
        return min(self._slots, fitting(PLAIN_SLOTS, slots) or self._slots)

    def prefill(self, begun: Sequence[tuple[Slot, DecodeRun]], most: int) -> Tensor:
        """Read the runs of one slot or more; their first ids come first, [≥ n] int64.

        most: no open slot's top_k is larger
        """
        lengths = np.array([len(run.rows) for _, run in begun])
        starts, places = np.array([(slot.positions, slot.place) for slot, _ in begun]).T
        firsts = np.cumsum(lengths) - lengths
        # Attention and products round in blocks of rows: with whole blocks neighbours change no bit of a row.
        longest, used = rounded(int(lengths.max()), SAFE_ROWS), int(lengths.sum())
        within = np.arange(used) - np.repeat(firsts, lengths)
        sequence = np.repeat(np.arange(len(begun)), lengths)
        flat = [row for _, run in begun for row in run.rows]
        of_rows = np.zeros((5, rounded(used, SAFE_ROWS)), dtype=np.int64)
        of_rows[3, used:] = self._capacity - 1
        of_rows[:, :used] = (
            [KINDS[row.kind] for row in flat],
            [row.id for row in flat],
            places[sequence],
            starts[sequence] + within,
            sequence * longest + within,
        )
        padded = firsts[:, None] + np.minimum(np.arange(longest), lengths[:, None] - 1)
        states = np.array([slot.start_row(run, self._vocabulary) for slot, run in begun])
        sent, *parts, states_sent = upload(
            (of_rows, places, starts, padded, firsts + lengths - 1, states), self._device
        )
        text_end = int(within[of_rows[0, :used] == TEXT].max(initial=-1)) + 1
        speakers = self._speakers([run for _, run in begun])
        packed = replace(PackedRows(*sent, *parts), text_end=text_end, speakers=speakers)
        scores = self._lm.prefill(packed, self._cache, self._reach(int((starts + lengths).max()) + 1))
        state = self._states.starting(packed.sequences, states_sent)
        ids = state.advance(scores, self._choose, most)
        self._states.put(packed.sequences, state)
        return ids

    def _speakers(self, runs: Sequence[DecodeRun]) -> Tensor | None:
        """[runs, speaker size] float32, zeros where a run has no speaker; None: none has one."""
        given = [run.speaker for run in runs if run.speaker is not None]
        if not given:
            return None
        none = torch.zeros_like(given[0])
        speakers = torch.stack([none if run.speaker is None else run.speaker for run in runs])
        return speakers.to(self._device, non_blocking=True)

    def decode(self, held: Sequence[Slot], most: int, steps: int) -> Iterator[Tensor]:
        """More ids for one slot or more, all that run: by place, [bucket] int64 for each step, `IDLE` where none runs.

        A step is launched when it is asked for, and may overwrite the ids of the one before.
        """
        rows = self._states.first(self.bucket(max(slot.place for slot in held) + 1))
        last, position = rows.numbers[:, Field.LAST], rows.numbers[:, Field.POSITION]
        reach = max(slot.positions + slot.launched for slot in held)
        for step in range(steps):
            width = self._capacity if self._fixed else self._reach(reach + step)
            scores = self._lm.step(last, position, self._cache, width)
            yield rows.advance(scores, self._choose, most)
