"""What the device knows of every slot, and the rules by which it changes: fixed tensors, changed in place.

Nothing here waits for the device.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from vivavoce.checkpoint.config import Vocabulary
from vivavoce.engine.lm_stage.choosing import Chooser, SamplingState, Settings
from vivavoce.engine.lm_stage.run import Run
from vivavoce.models.lm.sampling import SamplingRows

IDLE = -1
"""Stands in a launch's result where no id was sampled."""


class Field(IntEnum):
    """Columns of a slot's numbers."""

    RUNNING = 0
    """1 from prefill to the run's control id."""
    POSITION = 1
    """Where the row that this launch feeds stands (a prefill's last row)."""
    COUNT = 2
    """Ids sampled in the slot."""
    RUN_COUNT = 3
    """Ids sampled in the run."""
    LAST = 4
    """The id to be fed next."""
    FORCED_AT = 5
    FORCED = 6
    MIN_TOKENS = 7
    SEED = 8
    TOP_K = 9
    WINDOW = 10
    MAX_REPEATS = 11
    TOP_P = 12
    """As the bits of a float64."""


_COUNTERS = slice(Field.POSITION, Field.RUN_COUNT + 1)


def state_row(run: Run, settings: Settings, seed: int, position: int, count: int, vocabulary: Vocabulary) -> list[int]:
    """One slot's numbers at the start of a run, and two flags for each control id: forbidden, and forbidden early.

    position: of the run's last row; count: ids sampled in the slot before this run.
    """
    (top_p,) = struct.unpack("<q", struct.pack("<d", settings.top_p))
    numbers = (1, position, count, 0, 0, run.forced_at, run.forced, run.min_tokens)
    sampling = (seed, settings.top_k, settings.window, settings.max_repeats, top_p)
    controls = vocabulary.stop_ids
    return [
        *numbers,
        *sampling,
        *(int(one not in run.allowed) for one in controls),
        *(int(one in run.early_forbidden) for one in controls),
    ]


@dataclass(frozen=True)
class SlotRows:
    """State of some slots: views of the whole for a decode step, gathered copies for a prefill.

    numbers: [n, fields] int64; top_p: [n] float32; forbidden, early: [n, control ids] bool; history: [n, window]
    int64, the slot's ids, newest last.
    """

    numbers: Tensor
    top_p: Tensor
    forbidden: Tensor
    early: Tensor
    history: Tensor

    def column(self, field: Field) -> Tensor:
        """[n] int64, a view."""
        return self.numbers[:, field]

    def advance(self, scores: Tensor, chooser: Chooser, most: int) -> Tensor:
        """Choose an id for every running slot and take it down.

        scores: [n, ids] float32 log-probabilities, masked in place; most: no top_k is larger  →  [n] int64, `IDLE`
        where a slot is not running
        """
        running, run_count = self.column(Field.RUNNING), self.column(Field.RUN_COUNT)
        num_speech = scores.shape[1] - self.forbidden.shape[1]
        forbidden = self.forbidden | (self.early & (run_count < self.column(Field.MIN_TOKENS))[:, None])
        scores[:, num_speech:].masked_fill_(forbidden, float("-inf"))
        chosen = chooser(scores, self._sampling(most))
        chosen = torch.where(run_count >= self.column(Field.FORCED_AT), self.column(Field.FORCED), chosen)
        result = torch.where(running > 0, chosen, IDLE)
        self._take_down(chosen, running, num_speech)
        return result

    def _take_down(self, chosen: Tensor, running: Tensor, num_speech: int) -> None:
        active = running > 0
        grown = torch.cat((self.history[:, 1:], chosen[:, None]), dim=1)
        self.history.copy_(torch.where(active[:, None], grown, self.history))
        self.numbers[:, _COUNTERS] += running[:, None]
        speech = active & (chosen < num_speech)
        self.column(Field.LAST).copy_(torch.where(speech, chosen, self.column(Field.LAST)))
        running.copy_(speech)

    def _sampling(self, most: int) -> SamplingState:
        settings = SamplingRows(
            self.top_p, self.column(Field.TOP_K), self.column(Field.WINDOW), self.column(Field.MAX_REPEATS), most
        )
        return SamplingState(self.column(Field.COUNT), self.history, self.column(Field.SEED), settings)


class SlotStates:
    """The state of all slots; window: ids of each slot's past that are kept."""

    def __init__(self, slots: int, num_controls: int, window: int, device: torch.device) -> None:
        self._all = SlotRows(
            numbers=torch.zeros(slots, len(Field), dtype=torch.int64, device=device),
            top_p=torch.zeros(slots, device=device),
            forbidden=torch.zeros(slots, num_controls, dtype=torch.bool, device=device),
            early=torch.zeros(slots, num_controls, dtype=torch.bool, device=device),
            history=torch.full((slots, window), IDLE, dtype=torch.int64, device=device),
        )

    def first(self, slots: int) -> SlotRows:
        """The first slots, as views."""
        return SlotRows(*(part[:slots] for part in self._parts()))

    def starting(self, places: Tensor, rows: Tensor) -> SlotRows:
        """What slots begin a run with; places: [n] int64; rows: [n, …] int64, see `state_row`."""
        numbers, flags = rows[:, : len(Field)].clone(), rows[:, len(Field) :].bool()
        forbidden, early = flags.chunk(2, dim=1)
        top_p = numbers[:, Field.TOP_P].contiguous().view(torch.float64).float()
        return SlotRows(numbers, top_p, forbidden, early, self._all.history[places])

    def put(self, places: Tensor, rows: SlotRows) -> None:
        """Write the state of some slots back; places: [n] int64."""
        for part, new in zip(self._parts(), _parts_of(rows), strict=True):
            part.index_copy_(0, places, new)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy slots onto others; what is left behind runs no more."""
        for part in self._parts():
            part.index_copy_(0, targets, part.index_select(0, sources))
        self._all.column(Field.RUNNING).index_fill_(0, sources, 0)

    def _parts(self) -> tuple[Tensor, ...]:
        return _parts_of(self._all)


def _parts_of(rows: SlotRows) -> tuple[Tensor, ...]:
    return rows.numbers, rows.top_p, rows.forbidden, rows.early, rows.history
