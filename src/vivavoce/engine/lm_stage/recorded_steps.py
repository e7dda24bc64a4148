"""Forwards by kernels of our own, recorded once for each size: one launch per step, nothing done by the host.

Keys, values and state have one slot more than there are, which takes what only pads. Needs the package `triton`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vivavoce.engine.graphs import Graphs, Work, sizes_for
from vivavoce.engine.lm_stage.buckets import ROWS, ROWS_AHEAD, SEQUENCES, SLOTS, fitting
from vivavoce.engine.lm_stage.choosing import repetition_aware
from vivavoce.engine.lm_stage.slots import Slot
from vivavoce.engine.lm_stage.state import SlotRows, SlotStates
from vivavoce.engine.lm_stage.tiling import Layout, layout_for, tile, tiled_rows
from vivavoce.engine.transfer import copy_into
from vivavoce.models.build import LanguageModel, Models
from vivavoce.models.kernels import lm_launch
from vivavoce.models.kernels.compile_ahead import compiled_ahead
from vivavoce.models.kernels.lm_products import TILES, Tiles
from vivavoce.models.kernels.lm_sampler import MOST_CANDIDATES, advance_slots
from vivavoce.models.lm.fused import FusedLM
from vivavoce.models.lm.slot_cache import SlotCache
from vivavoce.models.lm.slot_numbers import Field


@dataclass(frozen=True)
class Recording:
    """A forward of one size. inputs: what a prefill reads, [size] int64; out: ids, [n] int64, or scores, [n, ids]
    float32, where the ids are chosen outside.
    """

    launch: Work
    inputs: Tensor | None
    out: Tensor


class RecordedSteps:
    """`FusedLM` and the sampling kernel over static slots.

    A slot whose top_k is above `MOST_CANDIDATES` has the ids of the whole step chosen by torch's operations.

    Args:
        models: networks on one device.
        slots, capacity: sequences, and positions of each.
        window: ids of a slot's past that are kept.
        fixed: decode steps are of one shape, that of all slots.
        tiles: of the network's products.
        int8: see `FusedLM`.
    """

    def __init__(
        self,
        models: Models | LanguageModel,
        slots: int,
        capacity: int,
        window: int,
        *,
        fixed: bool,
        tiles: Tiles = TILES,
        int8: bool = False,
    ) -> None:
        config = models.config.lm
        self._slots, self._capacity, self._fixed = slots, capacity, fixed
        self._device, self._vocabulary = models.device, config.vocabulary
        self._lm = FusedLM(models.lm, capacity, tiles, int8=int8)
        self._cache = SlotCache.allocate(config, slots + 1, capacity, models.device, models.dtype)
        self._states = SlotStates(slots + 1, len(config.vocabulary.stop_ids), window, models.device)
        self._places = torch.arange(slots, device=models.device)
        self._dependent = lm_launch.supported(models.device)
        self._graphs = Graphs(models.device)
        self._decodes: dict[tuple[int, bool], Recording] = {}
        self._prefills: dict[tuple[Layout, bool], Recording] = {}

    def bucket(self, slots: int) -> int:
        """Slots that a step for the first `slots` covers."""
        return self._slots if self._fixed else min(self._slots, fitting(SLOTS, slots) or self._slots)

    def prefill(self, held: Sequence[Slot], most: int) -> Tensor:
        """Read the slots' waiting runs; their first ids come first, [≥ n] int64. most: no top_k is larger."""
        layout, sampled = self._layout(held), most <= MOST_CANDIDATES
        recording = self._prefills.get((layout, sampled)) or self._record_prefill(layout, sampled)
        assert recording.inputs is not None
        copy_into(recording.inputs, torch.from_numpy(tile(held, layout, self._slots, self._vocabulary)))
        recording.launch()
        if sampled:
            return recording.out
        places = layout.places(recording.inputs)[: len(held)]
        rows = self._states.starting(places, layout.states(recording.inputs)[: len(held)])
        ids = rows.advance(recording.out[: len(held)].log_softmax(dim=-1), repetition_aware, most)
        self._states.put(places, rows)
        return ids

    def decode(self, held: Sequence[Slot], most: int, steps: int) -> Iterator[Tensor]:
        """More ids for the slots, by place: [bucket] int64 for each step, `IDLE` where none runs."""
        bucket, sampled = self.bucket(max(slot.place for slot in held) + 1), most <= MOST_CANDIDATES
        recording = self._decodes.get((bucket, sampled)) or self._record_decode(bucket, sampled)
        rows = self._states.first(bucket)
        for _ in range(steps):
            recording.launch()
            if sampled:
                yield recording.out
            else:
                yield rows.advance(recording.out.log_softmax(dim=-1), repetition_aware, most)

    def move(self, sources: Tensor, targets: Tensor, positions: int) -> None:
        """Copy slots onto others, the first `positions` positions of each; sources, targets: [n] int64."""
        self._cache.move(sources, targets, min(self._capacity, positions))
        self._states.move(sources, targets)

    def prepare(self, slots: int | None) -> None:
        """Record the decode steps of up to so many slots, and the prefills that are usual."""
        most = min(slots or self._slots, self._slots)
        counts = {self.bucket(size) for size in (*sizes_for(SLOTS, most), most)}
        counts = {count for count in counts if (count, True) not in self._decodes}
        layouts = [
            layout_for(rows, sequences, self._vocabulary)
            for sequences in (SEQUENCES[:1] if self._fixed else SEQUENCES)
            for rows in ROWS
            if rows <= ROWS_AHEAD
        ]
        layouts = [layout for layout in layouts if (layout, True) not in self._prefills]
        with compiled_ahead() as apart:
            if apart:
                works = [self._decode(count, sampled=True) for count in counts]
                works += [self._prefill(layout, sampled=True) for layout in layouts]
                for recording in works:
                    recording.launch()
        for count in counts:
            self._record_decode(count, sampled=True)
        for layout in layouts:
            self._record_prefill(layout, sampled=True)

    def _layout(self, held: Sequence[Slot]) -> Layout:
        rows, sequences = tiled_rows(held), len(held)
        # Past the largest sizes few shapes are met all the same: few prefills are so large.
        rows = fitting(ROWS, rows) or -(-rows // ROWS_AHEAD) * ROWS_AHEAD
        sequences = fitting(SEQUENCES, sequences) or -(-sequences // SEQUENCES[-1]) * SEQUENCES[-1]
        return layout_for(rows, sequences, self._vocabulary)

    def _record_decode(self, bucket: int, sampled: bool) -> Recording:
        # Recording runs the work: keys and values are stored as they will be again, but slots must not advance.
        with self._states.unchanged():
            recording = self._recorded(self._decode(bucket, sampled))
        self._decodes[bucket, sampled] = recording
        return recording

    def _record_prefill(self, layout: Layout, sampled: bool) -> Recording:
        recording = self._prefills[layout, sampled] = self._recorded(self._prefill(layout, sampled))
        return recording

    def _recorded(self, recording: Recording) -> Recording:
        return replace(recording, launch=self._graphs.capture(recording.launch))

    def _decode(self, bucket: int, sampled: bool) -> Recording:
        """Not recorded yet."""
        rows, places, out = self._states.first(bucket), self._places[:bucket], self._out(bucket, sampled)

        def work() -> None:
            self._give(self._lm.step(*_fed(rows), self._cache), places, out, sampled)

        return Recording(work, None, out)

    def _prefill(self, layout: Layout, sampled: bool) -> Recording:
        """Not recorded yet; its rows are nobody's."""
        inputs = torch.from_numpy(tile((), layout, self._slots, self._vocabulary)).to(self._device)
        rows, places, states = layout.rows_of(inputs), layout.places(inputs), layout.states(inputs)
        out = self._out(layout.sequences, sampled)

        def work() -> None:
            if sampled:
                self._states.put(places, self._states.starting(places, states))
            self._give(self._lm.prefill(rows, self._cache), places, out, sampled)

        return Recording(work, inputs, out)

    def _out(self, count: int, sampled: bool) -> Tensor:
        if sampled:
            return torch.empty(count, dtype=torch.int64, device=self._device)
        return torch.empty(count, self._vocabulary.num_logits, device=self._device)

    def _give(self, scores: Tensor, places: Tensor, out: Tensor, sampled: bool) -> None:
        if sampled:
            advance_slots(scores, places, *self._states.parts, out, dependent=self._dependent)
        else:
            out.copy_(scores)


def _fed(rows: SlotRows) -> tuple[Tensor, Tensor, Tensor]:
    return rows.column(Field.LAST), rows.column(Field.POSITION), rows.column(Field.RUNNING)
