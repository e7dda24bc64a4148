"""What the device knows of every slot, and the rules by which it changes: fixed tensors, changed in place.

Nothing here waits for the device.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from vivavoce.checkpoint.config import Vocabulary
from vivavoce.engine.lm_stage.choosing import Chooser, SamplingState, Settings
from vivavoce.engine.lm_stage.run import Run
from vivavoce.models.lm.sampling import SamplingRows
from vivavoce.models.lm.slot_numbers import IDLE, Field

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


def state_width(num_controls: int) -> int:
    """Integers of a `state_row`."""
    return len(Field) + 2 * num_controls


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
        return SlotRows(*(part[:slots] for part in self.parts))

    def starting(self, places: Tensor, rows: Tensor) -> SlotRows:
        """What slots begin a run with; places: [n] int64; rows: [n, …] int64, see `state_row`."""
        numbers, flags = rows[:, : len(Field)].clone(), rows[:, len(Field) :].bool()
        forbidden, early = flags.chunk(2, dim=1)
        top_p = numbers[:, Field.TOP_P].contiguous().view(torch.float64).float()
        return SlotRows(numbers, top_p, forbidden, early, self._all.history[places])

    def put(self, places: Tensor, rows: SlotRows) -> None:
        """Write the state of some slots back; places: [n] int64."""
        for part, new in zip(self.parts, _parts_of(rows), strict=True):
            part.index_copy_(0, places, new)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """All slots are afterwards as they were, as far as `SlotRows.advance` changes them."""
        changing = (self._all.numbers, self._all.history)
        kept = [part.clone() for part in changing]
        yield
        for part, old in zip(changing, kept, strict=True):
            part.copy_(old)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy slots onto others; what is left behind runs no more."""
        for part in self.parts:
            part.index_copy_(0, targets, part.index_select(0, sources))
        self._all.column(Field.RUNNING).index_fill_(0, sources, 0)

    @property
    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """All slots' numbers, top_p, forbidden, early and history, see `SlotRows`."""
        return _parts_of(self._all)


def _parts_of(rows: SlotRows) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return rows.numbers, rows.top_p, rows.forbidden, rows.early, rows.history
