"""Slots, and the runs that are decoded in them.

A slot holds one sequence of the language model. `Slot` is its state on the host, `SlotRows` the state of all slots on
the device. A run (`DecodeRun`) is one stretch of decoding in a slot: its rows are prefilled, then ids are sampled up to
a control id. A complete text is one run; a text that arrives is a series of runs (`StreamingPrompt`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vivavoce.checkpoint.config import ConformerLMConfig, LMConfig, Vocabulary
from vivavoce.engine.device import upload
from vivavoce.engine.request import SamplingParams, SegmentRequest, speech_prompt
from vivavoce.errors import InvalidRequest
from vivavoce.models.lm.adapters import AdaptedRows, LoadedAdapter
from vivavoce.models.lm.interleave import Row, RowKind, TextInterleaver
from vivavoce.models.lm.slot_lm import SAFE_ROWS
from vivavoce.models.randomness import SamplingRows, sample, uniform
from vivavoce_kernels.layouts import IDLE, Field, NoiseStream

LARGEST_WINDOW = 200
"""Number of past ids that are kept for a slot; the window of repetition-aware sampling is at most this long."""
_COUNTERS = slice(Field.POSITION, Field.RUN_COUNT + 1)
"""The fields of a slot's state that grow by one with each sampled id."""


@dataclass(frozen=True)
class DecodeRun:
    """One stretch of decoding in a slot: rows are prefilled, then ids are sampled until a control id.

    rows: appended at the slot's current position; allowed: control ids (ids that are not speech) that may be sampled;
    forced_at: after this many ids of this run the next id is the control id `forced`, whatever the model says;
    min_tokens: before this many ids of this run the control ids `early_forbidden` are forbidden, even if they are in
    `allowed`; speaker: [speaker size] float32, for the row of kind `SPEAKER`; watched: indices of the text rows for
    which attention weights are read, to follow the voice; unspoken: number of first watched rows that are the prompt's
    text; adapter: the LoRA adapter, the same in all runs of a slot.
    """

    rows: tuple[Row, ...]
    allowed: tuple[int, ...]
    forced_at: int
    forced: int
    min_tokens: int = 0
    early_forbidden: tuple[int, ...] = ()
    speaker: Tensor | None = None
    watched: tuple[int, ...] = ()
    unspoken: int = 0
    adapter: LoadedAdapter | None = None

    @property
    def positions(self) -> int:
        """The most positions that the run can take: its rows, its ids, and one for steps launched after its end."""
        return len(self.rows) + self.forced_at + 1


def check_positions(run: DecodeRun, taken: int, capacity: int) -> None:
    """Raise InvalidRequest for a run that may need more than `capacity` − `taken` positions."""
    positions = run.positions + taken
    if positions > capacity:
        raise InvalidRequest(
            f"text: with its prompt it may need {positions} positions, a slot has {capacity}; use a shorter text or "
            "reference"
        )


def plain_run(
    config: LMConfig | ConformerLMConfig, request: SegmentRequest, *, official: bool, room: int | None
) -> DecodeRun:
    """Return the run of a complete text: [sos, speaker, prompt text, text, task, prompt speech], then speech.

    official: use the official minimum-length rule, which forbids only one of the stop ids; room: most speech tokens
    that the next stages can take, None: no limit. InvalidRequest: the run may need more positions than the model has.
    """
    vocabulary, voice, params = config.vocabulary, request.conditioning, request.sampling
    least = most = params.exact_tokens or 0
    if params.exact_tokens is None:
        least = max(0 if official else 1, int(params.min_ratio * len(request.text)))
        most = int(params.max_ratio * len(request.text))
    most = most if room is None else min(most, room)
    speaker = voice.lm_embedding if isinstance(config, ConformerLMConfig) else None
    rows = speech_prompt(vocabulary, voice.lm_text + request.text, voice.lm_prompt_tokens, speaker=speaker is not None)
    if len(rows) + most > config.max_positions:
        raise InvalidRequest(
            f"text: with its prompt it may need {len(rows) + most} positions, the model has {config.max_positions}; "
            "use a shorter text or reference"
        )
    stop_ids = tuple(vocabulary.stop_ids)
    # The official code forbids only one stop id before the minimum, so another stop id can end the speech too early.
    early = (vocabulary.masked_before_minimum,) if official else stop_ids
    first, unspoken = 1 + (speaker is not None), len(voice.lm_text)
    before = 0 if request.guarded is None else unspoken
    watched = range(first + unspoken - before, first + unspoken + len(request.text)) if request.watched else ()
    return DecodeRun(rows, stop_ids, most, vocabulary.eos, min(least, most), early, speaker, tuple(watched), before)


def adapted_rows(rows: Iterable[tuple[DecodeRun | None, range]], device: torch.device) -> dict[str, Any]:
    """Return the keyword argument `adapted` for a pass over the rows of runs; empty if no run has an adapter."""
    by_adapter: dict[LoadedAdapter, list[int]] = {}
    for run, own in rows:
        if run is not None and run.adapter is not None:
            by_adapter.setdefault(run.adapter, []).extend(own)
    if not by_adapter:
        return {}
    # The last row is repeated up to a multiple of SAFE_ROWS, so that a row's bits do not depend on other rows.
    whole = [np.array(rows + rows[-1:] * (-len(rows) % SAFE_ROWS)) for rows in by_adapter.values()]
    layers = (one.layers for one in by_adapter)
    return {"adapted": AdaptedRows(list(zip(layers, upload(whole, device), strict=True)))}


class StreamingPrompt:
    """Makes the successive runs of a text that arrives in pieces, all in one slot, which must be empty at first.

    room: the most speech tokens that the next stages can take; capacity: the slot's positions; ∞ means no limit;
    unwatched: number of first text rows that are not spoken, None: no text is watched; adapter: for all runs.
    """

    def __init__(
        self,
        interleaver: TextInterleaver,
        vocabulary: Vocabulary,
        room: float = inf,
        capacity: float = inf,
        unwatched: int | None = None,
        adapter: LoadedAdapter | None = None,
    ) -> None:
        self._unwatched, self._adapter = unwatched, adapter
        self._interleaver, self._vocabulary = interleaver, vocabulary
        self._room, self._capacity = room, capacity
        self._positions = self._spoken = self._sampled = 0
        self._run: DecodeRun | None = None
        self._cut = False
        """Whether `room` or `capacity` ends the run before the interleaver would."""
        self._refusal: str | None = None
        self.push, self.close = interleaver.push, interleaver.close

    @property
    def done(self) -> bool:
        return self._interleaver.done

    def next_run(self) -> DecodeRun | None:
        """Return the next run; None if a run is in progress, text has not arrived yet, or all text is done.

        InvalidRequest: the text goes on, but the limit of its speech tokens or of its positions is reached. The tokens
        that were accepted before may still be spoken.
        """
        if self._run is not None or self.done:
            return None
        if self._refusal is None and self._spoken >= self._room:
            self._refusal = _too_long(self._room, "speech tokens")
        rows = None if self._refusal else self._interleaver.next_rows()
        left = self._capacity - self._positions - len(rows or ()) - 1
        if rows is not None and left < 1:
            self._refusal = _too_long(self._capacity, "positions")
        if self._refusal:
            raise InvalidRequest(self._refusal)
        if rows is None:
            return None
        due = self._interleaver.ids_until_control()
        forced_at = min(self._room - self._spoken, left, inf if due is None else due)
        self._cut = due is None or forced_at < due
        control = self._interleaver.allows()
        self._sampled = 0
        spoken, adapter = self._spoken_text(rows), self._adapter
        self._run = DecodeRun(tuple(rows), control, int(forced_at), control[0], watched=spoken, adapter=adapter)
        self._positions += len(rows)
        return self._run

    def _spoken_text(self, rows: Sequence[Row]) -> tuple[int, ...]:
        if self._unwatched is None:
            return ()
        texts = [place for place, row in enumerate(rows) if row.kind is RowKind.TEXT]
        skipped = min(self._unwatched, len(texts))
        self._unwatched -= skipped
        return tuple(texts[skipped:])

    def accept(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Take sampled ids, in order, with the run's control id, and return the speech tokens among them."""
        speech = tuple(one for one in ids if one < self._vocabulary.num_speech_tokens)
        for one in ids:
            if one < self._vocabulary.num_speech_tokens:
                self._interleaver.accept(one)
                self._positions += 1
                self._spoken += 1
                self._sampled += 1
                continue
            assert self._run is not None, f"control id {one} came without a run"
            if self._cut and self._sampled >= self._run.forced_at:
                spoken_out = self._spoken >= self._room
                limit, what = (self._room, "speech tokens") if spoken_out else (self._capacity, "positions")
                self._refusal = _too_long(limit, what)
            elif not self.done:
                self._interleaver.accept(one)
            self._run = None
        return speech


def _too_long(limit: float, what: str) -> str:
    return f"text: a stream holds {limit} {what} at most; send the rest in a new stream"


@dataclass(frozen=True)
class SamplingState:
    """The inputs of a `Chooser` for n slots.

    counts: [n] int64, ids sampled in the slot so far, control ids included; history: [n, window] int64, sampled ids,
    newest last; only the last `counts` ids are valid; seeds: [n] int64; settings: n rows.
    """

    counts: Tensor
    history: Tensor
    seeds: Tensor
    settings: SamplingRows


Chooser = Callable[[Tensor, SamplingState], Tensor]
"""Chooses one id for each slot: [n, ids] float32 log-probabilities, −inf for forbidden ids → [n] int64."""


def repetition_aware(scores: Tensor, state: SamplingState) -> Tensor:
    """Sample as `SamplingParams` says (a `Chooser`). Random numbers depend only on a slot's seed and `state.counts`."""
    uniforms = torch.stack(
        [uniform(state.seeds, one, state.counts) for one in (NoiseStream.NUCLEUS, NoiseStream.FALLBACK)], -1
    )
    return sample(scores, state.history, state.settings, uniforms)


@dataclass(eq=False)
class Slot:
    """One open slot. `number` identifies it to the caller; `place` is the index of its state and keys on the device."""

    number: int
    place: int
    seed: int
    top_p: float
    top_k: int
    window: int
    max_repeats: int
    positions: int = 0
    """Positions that are filled in the slot's keys and values, without the ids of the current run."""
    count: int = 0
    """Number of ids sampled in finished runs."""
    run: DecodeRun | None = None
    """The run in progress; None once its end was collected."""
    launched: int = 0
    """Number of the run's ids that were requested; the run may end earlier."""
    received: int = 0
    closed: bool = False
    """The slot was freed: ids that arrive later are dropped."""
    text: list[int] = field(default_factory=list)
    """Positions of the text of watched runs."""
    unspoken: int = 0
    """Number of first positions in `text` that belong to the prompt's text."""

    @classmethod
    def of(cls, number: int, place: int, seed: int, params: SamplingParams, defaults: Mapping[str, float]) -> Slot:
        asked = {name: getattr(params, name) for name in defaults}
        chosen: dict[str, Any] = dict(defaults) | {name: value for name, value in asked.items() if value is not None}
        window = chosen["win_size"]
        repeats = math.ceil(window * chosen["tau_r"])
        return cls(number, place, seed, chosen["top_p"], chosen["top_k"], window, repeats)

    def start_row(self, run: DecodeRun, vocabulary: Vocabulary) -> list[int]:
        """Return the integers that the device gets at the start of a run: one for each `Field` in order (top_p as the
        bits of a float64), then 1 for each forbidden control id, else 0, then 1 for each control id that is forbidden
        early, else 0."""
        controls = vocabulary.stop_ids
        (top_p,) = struct.unpack("<q", struct.pack("<d", self.top_p))
        return [
            # RUNNING, and the POSITION of the run's last row; each sampled id raises the position by one.
            *(1, self.positions + len(run.rows) - 1, self.count, 0, 0, run.forced_at, run.forced, run.min_tokens),
            *(self.seed, self.top_k, self.window, self.max_repeats, top_p),
            0 if run.adapter is None else run.adapter.place,
            *(int(one not in run.allowed) for one in controls),
            *(int(one in run.early_forbidden) for one in controls),
        ]


class SlotRows(NamedTuple):
    """The state of slots on the device. The stage has one object for all slots. A decode step works on views of the
    first slots. A prefill works on copies of its own slots (`starting`), and writes them back (`put`).

    numbers: [n, fields] int64; top_p: [n] float32; forbidden, early: [n, control ids] bool; history: [n, window] int64,
    the slot's ids, newest last.
    """

    numbers: Tensor
    top_p: Tensor
    forbidden: Tensor
    early: Tensor
    history: Tensor

    @classmethod
    def allocate(cls, slots: int, num_controls: int, window: int, device: torch.device) -> SlotRows:
        forbidden, early = torch.zeros(2, slots, num_controls, dtype=torch.bool, device=device)
        numbers = torch.zeros(slots, len(Field), dtype=torch.int64, device=device)
        history = torch.full((slots, window), IDLE, dtype=torch.int64, device=device)
        return cls(numbers, torch.zeros(slots, device=device), forbidden, early, history)

    def starting(self, places: Tensor, rows: Tensor) -> SlotRows:
        """Return slots' state at the start of a run; places: [n] int64; rows: [n, …] int64, see `Slot.start_row`."""
        numbers, flags = rows[:, : len(Field)].clone(), rows[:, len(Field) :].bool()
        forbidden, early = flags.chunk(2, dim=1)
        top_p = numbers[:, Field.TOP_P].contiguous().view(torch.float64).float()
        return SlotRows(numbers, top_p, forbidden, early, self.history[places])

    def put(self, places: Tensor, rows: SlotRows) -> None:
        """Write the state of some slots back; places: [n] int64."""
        for part, new in zip(self, rows, strict=True):
            part.index_copy_(0, places, new)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """A context manager that undoes on exit the changes that `advance` made in any slot."""
        kept = [(part, part.clone()) for part in (self.numbers, self.history)]
        yield
        for part, old in kept:
            part.copy_(old)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy the state of source slots to target slots, and stop the source slots."""
        self.put(targets, SlotRows(*(part.index_select(0, sources) for part in self)))
        self.numbers[:, Field.RUNNING].index_fill_(0, sources, 0)

    def advance(self, scores: Tensor, chooser: Chooser, most: int) -> Tensor:
        """Choose an id for every running slot, and record it in the slot's state.

        scores: [n, ids] float32 log-probabilities, masked in place; most: the largest top_k. Returns [n] int64 ids,
        `IDLE` for slots that are not running.
        """
        columns = self.numbers.unbind(1)
        running, last = columns[Field.RUNNING], columns[Field.LAST]
        run_count = columns[Field.RUN_COUNT]
        num_speech = scores.shape[1] - self.forbidden.shape[1]
        forbidden = self.forbidden | (self.early & (run_count < columns[Field.MIN_TOKENS])[:, None])
        scores[:, num_speech:].masked_fill_(forbidden, float("-inf"))
        counts = columns[Field.COUNT]
        # Before its first id a slot's history holds ids of earlier sequences.
        window = torch.minimum(columns[Field.WINDOW], counts)
        settings = SamplingRows(self.top_p, columns[Field.TOP_K], window, columns[Field.MAX_REPEATS], most)
        chosen = chooser(scores, SamplingState(counts, self.history, columns[Field.SEED], settings))
        chosen = torch.where(run_count >= columns[Field.FORCED_AT], columns[Field.FORCED], chosen)
        active = running > 0
        result = torch.where(active, chosen, IDLE)
        grown = torch.cat((self.history[:, 1:], chosen[:, None]), dim=1)
        self.history.copy_(torch.where(active[:, None], grown, self.history))
        speech = active & (chosen < num_speech)
        self.numbers[:, _COUNTERS] += running[:, None]
        last.copy_(torch.where(speech, chosen, last))
        running.copy_(speech)
        return result
