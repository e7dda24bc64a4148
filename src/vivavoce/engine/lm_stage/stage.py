"""The language-model stage: opens and closes slots, and launches prefills and decode steps.

Sampled ids are copied to the host after the device's work, and collected later. `PlainSteps` runs the plain network, on
any device and with any chooser; `graphed.py` runs our own kernels as CUDA graphs.
"""

from __future__ import annotations

import heapq
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.checkpoint.adapter import AdapterWeights
from vivavoce.checkpoint.config import LMConfig, qwen2_of
from vivavoce.engine.device import fitting, rounded, upload
from vivavoce.engine.lm_stage.slots import (
    LARGEST_WINDOW,
    Chooser,
    DecodeRun,
    Slot,
    SlotRows,
    adapted_rows,
    check_positions,
    repetition_aware,
)
from vivavoce.engine.request import SMALL_VOCABULARY, SamplingParams
from vivavoce.models.build import LanguageModel, Models
from vivavoce.models.lm.adapters import RANK_STEP, Layers, LoadedAdapter, laid_out, pairs_of, products_of
from vivavoce.models.lm.interleave import RowKind
from vivavoce.models.lm.slot_lm import SAFE_ROWS, SPEAKER, TEXT, PackedRows, SlotCache
from vivavoce.models.lm.text_attention import Observed, TextHeads, TextObserver
from vivavoce_kernels.layouts import Field

if TYPE_CHECKING:
    from vivavoce.engine.lm_stage.graphed import GraphedSteps

PLAIN_SLOTS = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Batch sizes of decode steps, in slots. A step with more slots than the last size runs all slots."""
REACH_STEP = 128
"""The number of positions that attention reads is rounded up to a multiple of this."""
WATCHED_TOKENS, WATCHED_TOKENS_SMALL = 256, 512
"""Attention is read to this many text tokens at the end of a slot's text; WATCHED_TOKENS_SMALL is for a vocabulary of
fewer than `SMALL_VOCABULARY` ids, which writes one word in several tokens."""
KINDS = {RowKind.CONTROL: 0, RowKind.TEXT: TEXT, RowKind.SPEECH: 2, RowKind.SPEAKER: SPEAKER}
"""The index of the embedding table for each kind of row; `SPEAKER` rows have no table."""


class SlotSteps:
    """Keys, values and state of a fixed set of slots; the subclasses `PlainSteps` and `GraphedSteps` run the network.

    spare: additional slots; capacity: positions of each slot; window: number of past ids that each slot keeps; fixed:
    every decode step has the same shape, with all slots and positions.
    """

    def __init__(
        self, models: Models | LanguageModel, slots: int, capacity: int, window: int, *, fixed: bool, spare: int = 0
    ) -> None:
        config = models.config.lm
        self._slots, self._capacity, self._fixed = slots, capacity, fixed
        self._device, self._vocabulary = models.device, config.vocabulary
        self._cache = SlotCache.allocate(config, slots + spare, capacity, models.device, models.dtype)
        self._states = SlotRows.allocate(slots + spare, len(config.vocabulary.stop_ids), window, models.device)
        self._config, self._rows = config, slots + spare
        self.observer: TextObserver | None = None
        self.attention: Tensor | None = None
        """Each slot's attention to its text in the last decode step, [≥ n, tokens] float32; None if it was not read."""

    def watch(self, heads: TextHeads) -> None:
        """From now on, watched decode steps read the attention of these heads."""
        assert isinstance(self._config, LMConfig)
        tokens = WATCHED_TOKENS if self._config.text_vocab_size >= SMALL_VOCABULARY else WATCHED_TOKENS_SMALL
        self.observer = TextObserver(self._config, heads, self._rows, tokens, self._device)

    def place_text(self, slots: Sequence[Slot]) -> None:
        """Tell the observer the positions of each slot's text among the slot's keys."""
        if self.observer is None or not slots:
            return
        most = self.observer.tokens
        places = np.zeros((len(slots), most), dtype=np.int64)
        for row, slot in zip(places, slots, strict=True):
            row[: len(slot.text)] = slot.text[-most:]
        numbers = np.array([(slot.place, min(most, len(slot.text))) for slot in slots])
        sent, index, counts = upload((places, *numbers.T), self._device)
        self.observer.places.index_copy_(0, index, sent)
        self.observer.counts.index_copy_(0, index, counts)

    def _observed(self, slots: int) -> Observed:
        assert self.observer is not None
        return Observed(self.observer, torch.empty(slots, self.observer.tokens, device=self._device))

    def move(self, sources: Tensor, targets: Tensor, positions: int) -> None:
        """Copy the first `positions` positions and the state of slots to other slots; sources, targets: [n] int64."""
        self._cache.move(sources, targets, min(self._capacity, rounded(positions, REACH_STEP)))
        self._states.move(sources, targets)
        if self.observer is not None:
            self.observer.move(sources, targets)


class PlainSteps(SlotSteps):
    """Runs the plain network over the slots, without CUDA graphs; a chooser samples the ids."""

    def __init__(
        self, models: Models | LanguageModel, slots: int, capacity: int, window: int, choose: Chooser, *, fixed: bool
    ) -> None:
        super().__init__(models, slots, capacity, window, fixed=fixed)
        self._lm = models.lm.over_slots(capacity)
        self._choose = choose

    def prepare(self, slots: int | None) -> None:
        """Do nothing: plain steps have no CUDA graphs."""

    def place_adapter(self, place: int, laid: Tensor, weights: AdapterWeights) -> Layers:
        changed, layers = products_of(weights), pairs_of(laid.to(self._device), qwen2_of(self._config), weights.rank)
        return [{product: layer[product] for product in changed} for layer in layers]

    def bucket(self, slots: int) -> int:
        if self._fixed:
            return self._slots
        if self._device.type == "cpu":
            return slots
        return min(self._slots, fitting(PLAIN_SLOTS, slots) or self._slots)

    def prefill(self, begun: Sequence[tuple[Slot, DecodeRun]], most: int) -> Tensor:
        """Prefill one or more runs; return their first ids, in order, at the front of an [≥ n] int64 tensor.

        most: the largest top_k of the open slots.
        """
        lengths = np.array([len(run.rows) for _, run in begun])
        starts, places = np.array([(slot.positions, slot.place) for slot, _ in begun]).T
        firsts = np.cumsum(lengths) - lengths
        # Kernels round results by blocks of rows; if blocks are full, a row's bits do not depend on other rows.
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
        speakers = None
        if any(run.speaker is not None for _, run in begun):
            given = [run.speaker for _, run in begun]
            none = torch.zeros_like(next(one for one in given if one is not None))
            speakers = torch.stack([none if one is None else one for one in given]).to(self._device, non_blocking=True)
        packed = replace(PackedRows(*sent, *parts), text_end=text_end, speakers=speakers)
        reach = min(self._capacity, rounded(int((starts + lengths).max()) + 1, REACH_STEP))
        ranges = (range(first, first + length) for first, length in zip(firsts, lengths, strict=True))
        adapted = adapted_rows(zip((run for _, run in begun), ranges, strict=True), self._device)
        scores = self._lm.prefill(packed, self._cache, reach, **adapted)
        state = self._states.starting(packed.sequences, states_sent)
        ids = state.advance(scores, self._choose, most)
        self._states.put(packed.sequences, state)
        return ids

    def decode(self, held: Sequence[Slot], most: int, steps: int, watched: bool = False) -> Iterator[Tensor]:
        """Yield for each step the next ids of all slots, by place: [bucket] int64, `IDLE` where no sequence runs.

        A step is launched when the iterator is asked for it. It may overwrite the previous step's ids and, if
        `watched`, its `attention`.
        """
        bucket = self.bucket(max(slot.place for slot in held) + 1)
        rows = SlotRows(*(part[:bucket] for part in self._states))
        last, position = rows.numbers[:, Field.LAST], rows.numbers[:, Field.POSITION]
        reach = max(slot.positions + slot.launched for slot in held)
        observed = self._observed(bucket) if watched else None
        self.attention, given = (observed.out, (observed,)) if observed else (None, ())
        adapted = adapted_rows(((slot.run, range(slot.place, slot.place + 1)) for slot in held), self._device)
        for step in range(steps):
            width = self._capacity if self._fixed else min(self._capacity, rounded(reach + step, REACH_STEP))
            scores = self._lm.step(last, position, self._cache, width, *given, **adapted)
            yield rows.advance(scores, self._choose, most)


class Sampled(NamedTuple):
    """The ids of one launch for one slot, in order: one id for each step until the run's end.

    ended: the last id is a control id; the run is over, and the slot pauses until the next `prefill` or `close`; error:
    the run failed, so its request fails, too; seconds: the time of each id, from a `self_paced` stage; attention: [ids,
    text tokens] float32, for each id the attention of its step to the text of a watched run, None if it was not read;
    text_start: the index in the sequence's text of the first of these text tokens, negative in the prompt's text.
    """

    slot: int
    ids: tuple[int, ...]
    ended: bool
    error: Exception | None = None
    seconds: float | None = None
    attention: NDArray[np.float32] | None = None
    text_start: int = 0


class _Launch:
    """Ids that are being copied to the host, [steps, slots] int64; its host memory is used again for later launches."""

    def __init__(self, steps: int, slots: int, device: torch.device) -> None:
        on_cuda = device.type == "cuda"
        self.rows = torch.empty(steps, slots, dtype=torch.int64, pin_memory=on_cuda)
        self.ids: NDArray[np.int64] = self.rows.numpy()
        self.written = torch.cuda.Event() if on_cuda else None
        self.steps, self.decode = 0, False
        self.owners: Sequence[Slot] = ()
        self.places: Sequence[int] = ()
        self.watched = False
        self.texts: Tensor | None = None
        """Attention to the text, [steps, slots, tokens] float32, in host memory."""

    def text_rows(self, tokens: int) -> Tensor:
        if self.texts is None:
            steps, slots = self.rows.shape
            self.texts = torch.empty(steps, slots, tokens, pin_memory=self.rows.is_pinned())
        return self.texts


class LMStage:
    """The language model over static slots; see `LMInterface` for its methods.

    Launches (`prefill`, `decode`) do not wait for the device; `collect` returns their ids. One thread calls it, under
    `torch.inference_mode()`, and on CUDA always on the same stream.

    Args:
        models: networks on one device.
        slots: sequences that can run at the same time.
        capacity: positions of each slot; memory for its keys and values is reserved at once.
        chooser: replaces repetition-aware sampling.
        kernels: use our own kernels if no chooser is given; needs the package `triton`, and CUDA or triton's
            interpreter. Each launch overwrites the ids of the launch before it.
        deterministic: a request's ids are the same, bit for bit, whatever other requests run, in 16 bit too: every
            decode step has all slots, and runs are prefilled one by one. (If another slot's top_k is beyond the
            sampling kernel's limit, torch chooses the ids of the step, and its softmax may round differently.)
        adapters, adapter_rank: most LoRA adapters at once, and their largest rank; kernels reserve memory for this.
    """

    self_paced = False
    healthy = True

    def __init__(
        self,
        models: Models | LanguageModel,
        *,
        slots: int,
        capacity: int,
        chooser: Chooser | None = None,
        kernels: bool = False,
        deterministic: bool = False,
        adapters: int = 0,
        adapter_rank: int = 0,
    ) -> None:
        self.slots, self.capacity = slots, capacity
        self._adapter_places, self._adapter_rank = list(range(adapters, 0, -1)), 0
        config = self._config = models.config.lm
        self._device, self._dtype = models.device, models.dtype
        self._vocabulary, self._defaults = config.vocabulary, asdict(config.sampling)
        self._deterministic = deterministic
        window = max(LARGEST_WINDOW, config.sampling.win_size)
        self._steps: PlainSteps | GraphedSteps
        with torch.inference_mode():
            if kernels and chooser is None:
                # Triton may not be installed.
                from vivavoce.engine.lm_stage.graphed import GraphedSteps

                self._adapter_rank = rounded(adapter_rank, RANK_STEP)  # every place has room for this rank
                room = (adapters, self._adapter_rank) if adapters else None
                self._steps = GraphedSteps(models, slots, capacity, window, fixed=deterministic, adapters=room)
            else:
                choose = chooser or repetition_aware
                self._steps = PlainSteps(models, slots, capacity, window, choose, fixed=deterministic)
        self._open: dict[int, Slot] = {}
        # Free numbers and free places are heaps, so the lowest of each is taken first.
        self._numbers, self._places = list(range(slots)), list(range(slots))
        self.free_slots, self.steps_in_flight = slots, 0
        self._launches: deque[_Launch] = deque()
        self._spare: list[_Launch] = []

    def watch(self, heads: TextHeads | None) -> None:
        """Use these attention heads to follow watched runs; if None, follow no run."""
        if heads is None:
            self._steps.observer = None
        else:
            self._steps.watch(heads)
            self._steps.place_text([slot for slot in self._open.values() if slot.text])
        for launch in self._spare:
            launch.texts = None

    @property
    def adapter_places(self) -> int:
        """The number of free places for adapters. A removed adapter keeps its place until its last run has ended."""
        return len(self._adapter_places)

    def lay_adapter(self, weights: AdapterWeights) -> Tensor:
        """Return the adapter's weights in one row of host memory (`laid_out`); any thread may call this."""
        laid = laid_out(weights, qwen2_of(self._config), self._adapter_rank or weights.rank, self._dtype)
        return laid.pin_memory() if self._device.type == "cuda" else laid

    def add_adapter(self, weights: AdapterWeights, laid: Tensor) -> LoadedAdapter:
        """Load an adapter from `lay_adapter`; a place must be free. On CUDA call this on the stage's stream."""
        place = self._adapter_places.pop()
        try:
            loaded = LoadedAdapter(place, self._steps.place_adapter(place, laid, weights))
        except Exception:  # such as too little memory
            self._adapter_places.append(place)
            raise
        weakref.finalize(loaded, self._adapter_places.append, place).atexit = False
        return loaded

    def shutdown(self) -> None:
        """Do nothing: this stage holds only memory."""

    def prepare(self, slots: int | None = None) -> None:
        self._steps.prepare(slots)

    @property
    def decoding(self) -> int:
        return sum(slot.run is not None and slot.launched <= slot.run.forced_at for slot in self._open.values())

    @property
    def in_flight(self) -> int:
        return len(self._launches)

    def wait(self) -> None:
        if self._launches and (written := self._launches[0].written) is not None:
            written.synchronize()

    def check(self, run: DecodeRun, slot: int | None = None) -> None:
        check_positions(run, 0 if slot is None else self._open[slot].positions, self.capacity)

    def open(self, params: SamplingParams, seed: int) -> int:
        """Take the lowest free slot, and return its number. The checkpoint's defaults fill in missing parameters."""
        if not self._numbers:
            raise RuntimeError("no slot is free; ask free_slots before opening one")
        number, place = heapq.heappop(self._numbers), heapq.heappop(self._places)
        self.free_slots -= 1
        self._open[number] = Slot.of(number, place, seed, params, self._defaults)
        return number

    def close(self, slot: int) -> None:
        held = self._open.pop(slot)
        held.closed, held.run = True, None  # a stored `_Launch` refers to the slot, and would keep the run's adapter
        self.free_slots += 1
        heapq.heappush(self._numbers, slot)
        heapq.heappush(self._places, held.place)

    def prefill(self, runs: Mapping[int, DecodeRun]) -> None:
        """Begin runs; a slot's earlier run must be over, and its end collected. InvalidRequest: as for `check`."""
        for number, run in runs.items():
            if self._open[number].run is not None:
                raise RuntimeError(f"slot {number} has a run already; collect its end before another one begins")
            self.check(run, number)
        begun = [(self._open[number], run) for number, run in runs.items()]
        for slot, run in begun:
            slot.text += [slot.positions + row for row in run.watched]
            slot.unspoken += run.unspoken
        if any(run.watched for _, run in begun):
            self._steps.place_text([slot for slot, run in begun if run.watched])
        most = max((slot.top_k for slot in self._open.values()), default=0)
        for batch in [[one] for one in begun] if self._deterministic else [begun] if begun else []:
            ids = self._steps.prefill(batch, most)
            for slot, run in batch:
                slot.run, slot.launched, slot.received = run, 1, 0
                slot.positions += len(run.rows)
            self._send([ids[: len(batch)]], 1, [slot for slot, _ in batch], range(len(batch)), decode=False)

    def decode(self, steps: int = 1) -> None:
        held = [one for one in self._open.values() if one.run is not None and one.launched <= one.run.forced_at]
        if not held:
            return
        # If the open slots would fit into a step of half the size, they are moved to the lowest places.
        used = max(slot.place for slot in self._open.values()) + 1
        if used > len(self._open) and 2 * self._steps.bucket(len(self._open)) <= self._steps.bucket(used):
            self._compact()
        watched = self._steps.observer is not None and any(slot.text for slot in held)
        results = self._steps.decode(held, max(slot.top_k for slot in self._open.values()), steps, watched)
        self._send(results, steps, held, [slot.place for slot in held], decode=True, watched=watched)
        for slot in held:
            slot.launched += steps

    def collect(self, wait: bool) -> list[Sampled]:
        collected = []
        while self._launches:
            launch = self._launches[0]
            if launch.written is not None and not launch.written.query():
                if not wait:
                    break
                launch.written.synchronize()
            wait = False
            self._launches.popleft()
            self._spare.append(launch)
            self.steps_in_flight -= launch.steps if launch.decode else 0
            ids = launch.ids[: launch.steps, launch.places]
            # There are many slots and launches, so counts and ends are computed for all slots at once.
            counts: list[int] = np.count_nonzero(ids >= 0, axis=0).tolist()
            ends: list[bool] = np.any(ids >= self._vocabulary.num_speech_tokens, axis=0).tolist()
            texts = launch.texts.numpy() if launch.watched and launch.texts is not None else None
            rows = zip(launch.owners, launch.places, ids.T.tolist(), counts, ends, strict=True)
            for slot, place, own, count, ended in rows:
                if slot.closed or not count:
                    continue
                seen, first = None, 0
                if texts is not None and slot.text:
                    first = max(0, len(slot.text) - texts.shape[2])
                    seen = texts[:count, place, : len(slot.text) - first].copy()
                slot.received += count
                if ended:  # every id except the control id has taken a position
                    slot.positions += slot.received - 1
                    slot.count += slot.received
                    slot.run, slot.launched, slot.received = None, 0, 0
                # After the run's end the slot is idle for the rest of the launch.
                found = Sampled(
                    slot.number, tuple(own[:count]), ended, attention=seen, text_start=first - slot.unspoken
                )
                collected.append(found)
        return collected

    def _compact(self) -> None:
        """Move the slots on the highest places to the lowest free places."""
        moves, reach = [], max(slot.positions + slot.launched for slot in self._open.values()) + 1
        for slot in sorted(self._open.values(), key=lambda one: -one.place):
            if not self._places or self._places[0] > slot.place:
                break
            target = heapq.heappushpop(self._places, slot.place)
            moves.append((slot.place, target))
            slot.place = target
        if moves:
            sources, targets = upload([np.array(part) for part in zip(*moves, strict=True)], self._device)
            self._steps.move(sources, targets, reach)

    def _send(
        self,
        results: Iterable[Tensor],
        steps: int,
        owners: Sequence[Slot],
        places: Sequence[int],
        *,
        decode: bool,
        watched: bool = False,
    ) -> None:
        """Start to copy the ids of `steps` steps to the host; a step's ids are [≤ slots] int64, `IDLE` for idle slots.

        A step's ids are copied before the next step is launched. owners: the slots of this launch; places: the index of
        each owner's ids; decode: the launch is a decode step of all running slots, not a prefill; watched: its
        attention to the text is copied, too.
        """
        launch = self._spare.pop() if self._spare else None
        if launch is None or len(launch.rows) < steps:
            launch = _Launch(steps, self.slots, self._device)
        for step, ids in enumerate(results):
            launch.rows[step, : len(ids)].copy_(ids, non_blocking=True)
            if watched and (attention := self._steps.attention) is not None:
                texts = launch.text_rows(attention.shape[1])
                texts[step, : len(attention)].copy_(attention, non_blocking=True)
        if launch.written is not None:
            launch.written.record()
        launch.steps, launch.decode, launch.owners, launch.places = steps, decode, owners, list(places)
        launch.watched = watched
        self.steps_in_flight += steps if decode else 0
        self._launches.append(launch)
