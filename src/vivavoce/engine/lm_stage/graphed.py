"""Prefills and decode steps on our own kernels, recorded as one CUDA graph for each size. Needs the package `triton`.

The key-value cache and the state of slots have one additional slot, to which padding is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import torch
from torch import Tensor

from vivavoce.checkpoint.adapter import AdapterWeights
from vivavoce.checkpoint.config import Vocabulary
from vivavoce.engine.device import Graphs, Launch, copy_into, fitting, rounded, sizes_for
from vivavoce.engine.lm_stage.slots import DecodeRun, Slot, SlotRows, repetition_aware
from vivavoce.engine.lm_stage.stage import KINDS, PLAIN_SLOTS, SlotSteps
from vivavoce.models.build import LanguageModel, Models
from vivavoce.models.lm.adapters import AdapterStack, Layers
from vivavoce.models.lm.fused import ROW_TILE, FusedLM, TiledRows
from vivavoce.models.lm.qwen2 import SpeechLM
from vivavoce.models.lm.text_attention import TextHeads
from vivavoce_kernels.common import compiled_ahead
from vivavoce_kernels.layouts import Field
from vivavoce_kernels.lm_products import TILES, Tiles
from vivavoce_kernels.lm_rows import dependent_launches
from vivavoce_kernels.lm_sampler import MOST_CANDIDATES, advance_slots

SLOTS = (1, *PLAIN_SLOTS)
"""Sizes of decode steps, in slots, for which graphs are recorded."""
ROWS = (64, 128, 192, 256, 320, 384, 512, 640, 768, 1024, 1536, 2048, 3072, 4096)
"""Sizes of prefills, in rows, for which graphs are recorded; each sequence begins at a multiple of a tile's rows."""
SEQUENCES = (1, 8, 32)
"""Sizes of prefills, in sequences, for which graphs are recorded."""
ROWS_AHEAD = 1024
"""Prefill graphs up to this many rows are recorded at the start, larger graphs at their first use."""
_ROW_ARRAYS = 4


@dataclass(frozen=True)
class PrefillLayout:
    """The layout of a prefill's integers; state: number of integers in one slot's state at the start of a run."""

    rows: int
    sequences: int
    state: int

    def views(self, inputs: Tensor) -> tuple[TiledRows, Tensor, Tensor]:
        """Split `inputs` into the network's rows, each sequence's slot, and each `Slot.start_row`, [sequences, state].

        inputs: integers in the order of `numbers`.
        """
        rows, places, last, states = inputs.split(
            [_ROW_ARRAYS * self.rows, self.sequences, self.sequences, self.state * self.sequences]
        )
        kinds, ids, slots, positions = rows.view(_ROW_ARRAYS, self.rows)
        return TiledRows(kinds, ids, slots, positions, last), places, states.view(self.sequences, self.state)

    def numbers(self, begun: Sequence[tuple[Slot, DecodeRun]], sink: int, vocabulary: Vocabulary) -> np.ndarray:
        """Return the integers that begin runs, int64. Padding belongs to the slot `sink`, which never has a run."""
        rows = np.zeros((_ROW_ARRAYS, self.rows), dtype=np.int64)
        rows[2] = sink
        places, last = np.full(self.sequences, sink), np.zeros(self.sequences, dtype=np.int64)
        states = np.zeros((self.sequences, self.state), dtype=np.int64)
        first = 0
        for number, (slot, run) in enumerate(begun):
            states[number], size = slot.start_row(run, vocabulary), len(run.rows)
            own = rows[:, first : first + size]
            own[0], own[1] = [KINDS[row.kind] for row in run.rows], [row.id for row in run.rows]
            own[2], own[3] = slot.place, np.arange(slot.positions, slot.positions + size)
            places[number], last[number] = slot.place, first + size - 1
            first += rounded(size, ROW_TILE)
        return np.concatenate([rows.ravel(), places, last, states.ravel()])


@dataclass(frozen=True)
class CapturedGraph:
    """A forward pass of one size. inputs: the integers that a prefill reads, [size] int64; out: the sampled ids, [n]
    int64, or, if ids are chosen outside of the graph, the scores, [n, ids] float32; attention: each slot's
    attention to its text, [n, tokens] float32, if the graph reads it."""

    launch: Launch
    inputs: Tensor
    out: Tensor
    attention: Tensor | None = None


class GraphedSteps(SlotSteps):
    """Runs `FusedLM` and the sampling kernel over static slots.

    tiles: tile sizes of the network's products; adapters: the most adapters at once, and their largest rank. If a
    slot's top_k is above `MOST_CANDIDATES`, torch's operations choose the ids of the whole step. Launches in which a
    run has an adapter have CUDA graphs of their own. With `fixed` all launches use these graphs, because graphs with
    and without adapters round differently.
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
        adapters: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(models, slots, capacity, window, fixed=fixed, spare=1)
        if not isinstance(models.lm, SpeechLM):
            raise ValueError("our kernels for the language model support only Qwen2; run without kernels")
        self._stack: AdapterStack | None = None
        if adapters is not None:
            self._stack = AdapterStack(models.lm.config, *adapters, models.device, models.dtype)
        self._lm = FusedLM(models.lm, capacity, tiles, stack=self._stack)
        self._places = torch.arange(slots, device=models.device)
        self._dependent = dependent_launches(models.device)
        self._graphs = Graphs(models.device)
        self.captured: dict[tuple[int | PrefillLayout, bool, bool, bool], CapturedGraph] = {}
        """Graphs by four keys: the slots of a decode step or the layout of a prefill, and whether the graph chooses the
        ids, reads the attention to the text, and adds adapters."""

    def place_adapter(self, place: int, laid: Tensor, weights: AdapterWeights) -> Layers:
        """Copy an adapter to its place in the kernels' memory; arguments are as for `LMStage.add_adapter`."""
        assert self._stack is not None
        self._stack.put(place - 1, laid)
        return ()

    def _adapted(self, runs: Iterable[DecodeRun | None]) -> bool:
        if self._stack is None:
            return False
        return self._fixed or any(run is not None and run.adapter is not None for run in runs)

    def bucket(self, slots: int) -> int:
        return self._slots if self._fixed else min(self._slots, fitting(SLOTS, slots) or self._slots)

    def prefill(self, begun: Sequence[tuple[Slot, DecodeRun]], most: int) -> Tensor:
        rows, count = sum(rounded(len(run.rows), ROW_TILE) for _, run in begun), len(begun)
        # Prefills above the largest size are rare, so their sizes are rounded up to a few.
        layout = self._layout(
            fitting(ROWS, rows) or rounded(rows, ROWS_AHEAD),
            fitting(SEQUENCES, count) or rounded(count, SEQUENCES[-1]),
        )
        graph = self._graph(layout, most <= MOST_CANDIDATES, adapted=self._adapted(run for _, run in begun))
        copy_into(graph.inputs, torch.from_numpy(layout.numbers(begun, self._slots, self._vocabulary)))
        graph.launch()
        if most <= MOST_CANDIDATES:
            return graph.out
        _, places, states = layout.views(graph.inputs)
        places = places[:count]
        state = self._states.starting(places, states[:count])
        ids = state.advance(graph.out[:count].log_softmax(dim=-1), repetition_aware, most)
        self._states.put(places, state)
        return ids

    def decode(self, held: Sequence[Slot], most: int, steps: int, watched: bool = False) -> Iterator[Tensor]:
        bucket = self.bucket(max(slot.place for slot in held) + 1)
        graph = self._graph(bucket, most <= MOST_CANDIDATES, watched, self._adapted(slot.run for slot in held))
        self.attention = graph.attention
        state = SlotRows(*(part[:bucket] for part in self._states))
        for _ in range(steps):
            graph.launch()
            if most <= MOST_CANDIDATES:
                yield graph.out
            else:
                yield state.advance(graph.out.log_softmax(dim=-1), repetition_aware, most)

    def prepare(self, slots: int | None) -> None:
        """Record the decode steps of up to this many slots, and the usual prefills."""
        most = min(slots or self._slots, self._slots)
        sizes: list[int | PrefillLayout] = [*{self.bucket(size) for size in (*sizes_for(SLOTS, most), most)}]
        for sequences in SEQUENCES[:1] if self._fixed else SEQUENCES:
            sizes += [self._layout(rows, sequences) for rows in ROWS if rows <= ROWS_AHEAD]
        ways = (False,) if self._stack is None else (True,) if self._fixed else (False, True)
        missing = [one for one in product(sizes, ways) if (one[0], True, False, one[1]) not in self.captured]
        with compiled_ahead() as apart:
            for size, adapted in missing if apart else ():
                self._work(size, sampled=True, adapted=adapted).launch()
        for size, adapted in missing:
            self._graph(size, sampled=True, adapted=adapted)

    def watch(self, heads: TextHeads) -> None:
        super().watch(heads)
        self.captured = {key: graph for key, graph in self.captured.items() if not key[2]}

    def _layout(self, rows: int, sequences: int) -> PrefillLayout:
        return PrefillLayout(rows, sequences, len(Field) + 2 * len(self._vocabulary.stop_ids))

    def _graph(
        self, size: int | PrefillLayout, sampled: bool, watched: bool = False, adapted: bool = False
    ) -> CapturedGraph:
        graph = self.captured.get((size, sampled, watched, adapted))
        if graph is None:
            graph = self._work(size, sampled, watched, adapted)
            # Recording runs the work. Keys and values that it writes are overwritten later, but slots must not advance.
            with self._states.unchanged():
                graph = replace(graph, launch=self._graphs.capture(graph.launch))
            self.captured[size, sampled, watched, adapted] = graph
        return graph

    def _work(
        self, size: int | PrefillLayout, sampled: bool, watched: bool = False, adapted: bool = False
    ) -> CapturedGraph:
        """Return the unrecorded work of this size; the rows of a prefill belong to the padding slot at first."""
        count = size if isinstance(size, int) else size.sequences
        if sampled:
            out = torch.empty(count, dtype=torch.int64, device=self._device)
        else:
            out = torch.empty(count, self._vocabulary.num_logits, device=self._device)

        def give(scores: Tensor, places: Tensor) -> None:
            if sampled:
                advance_slots(scores, places, *self._states, out, dependent=self._dependent)
            else:
                out.copy_(scores)

        if isinstance(size, int):
            numbers = self._states.numbers[:size]
            last, position, running = (numbers[:, field] for field in (Field.LAST, Field.POSITION, Field.RUNNING))
            observed = self._observed(size) if watched else None
            adapters = numbers[:, Field.ADAPTER] if adapted else None

            def step() -> None:
                scores = self._lm.step(last, position, running, self._cache, observed, adapters)
                give(scores, self._places[:size])

            return CapturedGraph(step, numbers, out, observed.out if observed else None)
        inputs = torch.from_numpy(size.numbers((), self._slots, self._vocabulary)).to(self._device)
        rows, places, states = size.views(inputs)

        def prefill() -> None:
            if sampled or adapted:
                self._states.put(places, self._states.starting(places, states))
            given = rows
            if adapted:
                tiles = self._states.numbers[:, Field.ADAPTER][rows.slots[::ROW_TILE]]
                given = replace(rows, adapters=tiles)
            give(self._lm.prefill(given, self._cache), places)

        return CapturedGraph(prefill, inputs, out)
