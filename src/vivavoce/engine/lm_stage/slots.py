"""Slots: what the host knows of each, and the state that the device keeps and changes in place, without waiting."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vivavoce.checkpoint.config import Vocabulary
from vivavoce.engine.lm_stage.run import DecodeRun
from vivavoce.engine.request import SamplingParams
from vivavoce.models.counter_noise import NoiseStream, uniform
from vivavoce.models.kernels.layouts import IDLE, Field
from vivavoce.models.lm.sampling import SamplingRows, sample

LARGEST_WINDOW = 200
"""Ids of a slot's past that are kept: no sampling window is wider."""
_COUNTERS = slice(Field.POSITION, Field.RUN_COUNT + 1)


@dataclass(frozen=True)
class SamplingState:
    """What the choice in each of n slots may depend on.

    counts: [n] int64, ids sampled in the slot so far, control ids included; history: [n, window] int64, the newest
    of them last (what is further back than `counts` means nothing); seeds: [n] int64; settings: n rows.
    """

    counts: Tensor
    history: Tensor
    seeds: Tensor
    settings: SamplingRows


Chooser = Callable[[Tensor, SamplingState], Tensor]
"""Decides one id per slot: [n, ids] float32 log-probabilities, −inf where forbidden  →  [n] int64; a test may put its
own in this place."""


def repetition_aware(scores: Tensor, state: SamplingState) -> Tensor:
    """Repetition-aware sampling (a `Chooser`); each slot draws from its own seed, by its own count."""
    uniforms = torch.stack(
        [uniform(state.seeds, one, state.counts) for one in (NoiseStream.NUCLEUS, NoiseStream.FALLBACK)], -1
    )
    # A window that reaches further back than the slot's first id would look at its earlier occupants.
    window = torch.minimum(state.settings.window, state.counts)
    return sample(scores, state.history, replace(state.settings, window=window), uniforms)


@dataclass(eq=False)
class Slot:
    """One open slot. Its number is the caller's; `place` is where its state and keys are on the device."""

    number: int
    place: int
    seed: int
    top_p: float
    top_k: int
    window: int
    max_repeats: int
    positions: int = 0
    """Rows in the cache when the run in progress began, or now if there is none."""
    count: int = 0
    """Ids sampled in the runs that are over."""
    run: DecodeRun | None = None
    """In progress, as far as is known."""
    launched: int = 0
    """Ids of the run that were asked for; of several steps at once perhaps more than it can have."""
    received: int = 0
    """Ids of the run that have come."""
    closed: bool = False
    """It was freed: what is still on its way to it is dropped."""

    @classmethod
    def of(cls, number: int, place: int, seed: int, params: SamplingParams, defaults: Mapping[str, float]) -> Slot:
        """What the parameters leave open, the checkpoint's `SamplingDefaults` decide."""
        asked = {name: getattr(params, name) for name in defaults}
        chosen: dict[str, Any] = dict(defaults) | {name: value for name, value in asked.items() if value is not None}
        window = chosen["win_size"]
        repeats = math.ceil(window * chosen["tau_r"])
        return cls(number, place, seed, chosen["top_p"], chosen["top_k"], window, repeats)

    @property
    def decoding(self) -> bool:
        """The run in progress may need another step."""
        return self.run is not None and self.launched <= self.run.forced_at

    def start_row(self, run: DecodeRun, vocabulary: Vocabulary) -> list[int]:
        """Its `Field`s at the start of a run, and two flags for each control id: forbidden, forbidden early.

        The position is that of the run's last row.
        """
        controls = vocabulary.stop_ids
        (top_p,) = struct.unpack("<q", struct.pack("<d", self.top_p))
        return [
            *(1, self.positions + len(run.rows) - 1, self.count, 0, 0, run.forced_at, run.forced, run.min_tokens),
            *(self.seed, self.top_k, self.window, self.max_repeats, top_p),
            *(int(one not in run.allowed) for one in controls),
            *(int(one in run.early_forbidden) for one in controls),
        ]


class SlotRows(NamedTuple):
    """State of some slots: all, views of the first ones for a decode step, or gathered copies for a prefill.

    numbers: [n, fields] int64; top_p: [n] float32; forbidden, early: [n, control ids] bool; history: [n, window]
    int64, the slot's ids, newest last.
    """

    numbers: Tensor
    top_p: Tensor
    forbidden: Tensor
    early: Tensor
    history: Tensor

    @classmethod
    def allocate(cls, slots: int, num_controls: int, window: int, device: torch.device) -> SlotRows:
        """Of idle slots; window: ids of each one's past that are kept."""
        forbidden, early = torch.zeros(2, slots, num_controls, dtype=torch.bool, device=device)
        numbers = torch.zeros(slots, len(Field), dtype=torch.int64, device=device)
        history = torch.full((slots, window), IDLE, dtype=torch.int64, device=device)
        return cls(numbers, torch.zeros(slots, device=device), forbidden, early, history)

    def first(self, slots: int) -> SlotRows:
        """The first slots, as views."""
        return SlotRows(*(part[:slots] for part in self))

    def starting(self, places: Tensor, rows: Tensor) -> SlotRows:
        """What slots begin a run with; places: [n] int64; rows: [n, …] int64, see `Slot.start_row`."""
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
        """All slots are afterwards as they were, as far as `advance` changes them."""
        kept = [(part, part.clone()) for part in (self.numbers, self.history)]
        yield
        for part, old in kept:
            part.copy_(old)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy slots onto others; what is left behind runs no more."""
        self.put(targets, SlotRows(*(part.index_select(0, sources) for part in self)))
        self.numbers[:, Field.RUNNING].index_fill_(0, sources, 0)

    def advance(self, scores: Tensor, chooser: Chooser, most: int) -> Tensor:
        """Choose an id for every running slot and take it down.

        scores: [n, ids] float32 log-probabilities, masked in place; most: no top_k is larger  →  [n] int64, `IDLE`
        where a slot is not running
        """
        columns = self.numbers.unbind(1)
        running, last = columns[Field.RUNNING], columns[Field.LAST]
        run_count = columns[Field.RUN_COUNT]
        num_speech = scores.shape[1] - self.forbidden.shape[1]
        forbidden = self.forbidden | (self.early & (run_count < columns[Field.MIN_TOKENS])[:, None])
        scores[:, num_speech:].masked_fill_(forbidden, float("-inf"))
        settings = SamplingRows(
            self.top_p, columns[Field.TOP_K], columns[Field.WINDOW], columns[Field.MAX_REPEATS], most
        )
        chosen = chooser(scores, SamplingState(columns[Field.COUNT], self.history, columns[Field.SEED], settings))
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
