"""The stage: slots are opened, fed and closed; prefills and decode steps are launched; ids are collected late."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from vivavoce.engine.lm_stage.choosing import Chooser, filled, repetition_aware
from vivavoce.engine.lm_stage.packing import to_device
from vivavoce.engine.lm_stage.plain_steps import PlainSteps
from vivavoce.engine.lm_stage.readback import Arrived, Readback, Sampled
from vivavoce.engine.lm_stage.run import Run
from vivavoce.engine.lm_stage.slots import Slot, SlotTable
from vivavoce.engine.request import SamplingParams
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import LanguageModel, Models

LARGEST_WINDOW = 200
"""Ids of a slot's past that are kept: no sampling window is wider."""


class Steps(Protocol):
    """How the stage's forwards are made: by the plain network, or by recorded launches of our own kernels."""

    def bucket(self, slots: int) -> int:
        """Slots that a step for the first `slots` covers."""

    def prefill(self, held: Sequence[Slot], most: int) -> Tensor:
        """Read the waiting runs of one slot or more; their first ids come first, [≥ n] int64.

        most: no open slot's top_k is larger
        """

    def decode(self, held: Sequence[Slot], most: int, steps: int) -> Iterator[Tensor]:
        """So many more ids for one slot or more, all that run: by place, [bucket] int64 for each step, −1 where none
        runs. A step is launched when it is asked for, and may overwrite the ids of the one before.
        """

    def move(self, sources: Tensor, targets: Tensor, positions: int) -> None:
        """Copy slots onto others, the first `positions` positions of each; sources, targets: [n] int64."""

    def prepare(self, slots: int | None) -> None:
        """Make ahead what so many slots would otherwise wait for when it is first needed; None: all slots."""


class LMStage:
    """The language model over static slots.

    Launches (`prefill`, `decode`) do not wait for the device; `collect` gives their ids. One thread calls it, under
    `torch.inference_mode()`, and on CUDA always on the same stream.

    Args:
        models: networks on one device.
        slots: sequences that can run at the same time.
        capacity: positions of each slot; its keys and values are reserved at once.
        chooser: stands in for repetition-aware sampling.
        kernels: use kernels of our own where no chooser is given; needs the package `triton`, and CUDA or its
            interpreter. A launch's ids stay in memory that the next one overwrites.
        deterministic: a request's ids are the same, bit for bit, alone and in company, in 16 bit too: every decode
            step is of all slots, and runs are prefilled one by one. (A neighbour whose top_k is past the sampling
            kernel's has the ids of its steps chosen by torch, whose softmax may round otherwise.)
        int8: with kernels; the matrices of the layers are read as int8, see `FusedLM`.

    Raises:
        ValueError: int8 without kernels or with a chooser, or of sizes that it does not take.
    """

    def __init__(
        self,
        models: Models | LanguageModel,
        *,
        slots: int,
        capacity: int,
        chooser: Chooser | None = None,
        kernels: bool = False,
        deterministic: bool = False,
        int8: bool = False,
    ) -> None:
        if int8 and (chooser is not None or not kernels):
            raise ValueError("int8: the language model reads it with kernels and its own sampling only; leave int8 out")
        self.slots, self.capacity = slots, capacity
        config = models.config.lm
        self._device, self._vocabulary, self._defaults = models.device, config.vocabulary, config.sampling
        self._deterministic = deterministic
        window = max(LARGEST_WINDOW, config.sampling.win_size)
        with torch.inference_mode():
            if kernels and chooser is None:
                self._steps: Steps = _recorded(models, slots, capacity, window, fixed=deterministic, int8=int8)
            else:
                choose = chooser or repetition_aware
                self._steps = PlainSteps(models, slots, capacity, window, choose, fixed=deterministic)
        self._table = SlotTable(slots)
        self._readback = Readback(slots, models.device)

    def prepare(self, slots: int | None = None) -> None:
        """Record the launches that so many slots need, None: all; on CUDA call it on the stage's stream."""
        self._steps.prepare(slots)

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

    @property
    def steps_in_flight(self) -> int:
        """Decode steps whose ids were not collected."""
        return self._readback.steps

    def wait(self) -> None:
        """Block until the oldest launch whose ids were not collected is finished."""
        self._readback.wait()

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
        """Read the queued runs of some slots, in one forward, and sample the first id of each."""
        held = [self._table[number] for number in slots]
        for batch in [[slot] for slot in held] if self._deterministic else [held] if held else []:
            ids = self._steps.prefill(batch, self._table.most)
            for slot in batch:
                slot.begin()
            self._readback.send([ids[: len(batch)]], 1, batch, range(len(batch)), decode=False)

    def decode(self, steps: int = 1) -> None:
        """So many more ids, or all up to its end, for every slot whose run is in progress; nothing if there is none.

        The host goes on at once, and the ids arrive together.
        """
        self._compact()
        held = [slot for slot in self._table.all if slot.decoding]
        if not held:
            return
        places = [slot.place for slot in held]
        self._readback.send(self._steps.decode(held, self._table.most, steps), steps, held, places, decode=True)
        for slot in held:
            slot.launched += steps

    def collect(self, wait: bool) -> list[Sampled]:
        """Ids of finished launches, oldest first; wait: block for the oldest one if none is finished."""
        return [one for arrived in self._readback.receive(wait) for one in self._taken(arrived)]

    def close(self, slot: int) -> None:
        """Free a slot at once; ids that are still on their way to it are dropped."""
        self._table.close(slot)

    def _taken(self, arrived: Arrived) -> Iterator[Sampled]:
        # Slots are many and launches frequent: what can be is worked out for all of them at once.
        counts: list[int] = np.count_nonzero(arrived.ids >= 0, axis=0).tolist()
        ends: list[bool] = np.any(arrived.ids >= self._vocabulary.num_speech_tokens, axis=0).tolist()
        for slot, ids, count, ended in zip(arrived.owners, arrived.ids.T.tolist(), counts, ends, strict=True):
            if slot.closed or not count:
                continue
            slot.received += count
            if ended:
                slot.end()
            # After its end a slot is idle to the end of the launch.
            yield Sampled(slot.number, tuple(ids[:count]), ended)

    def _check(self, run: Run, positions: int) -> None:
        if positions + run.positions > self.capacity:
            raise InvalidRequest(
                f"text: with its prompt it may need {positions + run.positions} positions, a slot has "
                f"{self.capacity}; use a shorter text or reference"
            )

    def _compact(self) -> None:
        """Once the open slots would fit half of the step, they move together."""
        if 2 * self._steps.bucket(len(self._table)) > self._steps.bucket(self._table.used):
            return
        moves = self._table.compact()
        if moves:
            sources, targets = to_device([np.array(part) for part in zip(*moves, strict=True)], self._device)
            self._steps.move(sources, targets, max(slot.reach + 1 for slot in self._table.all))


def _recorded(
    models: Models | LanguageModel, slots: int, capacity: int, window: int, *, fixed: bool, int8: bool
) -> Steps:
    # Triton is not everywhere, and whoever asks for kernels has it.
    from vivavoce.engine.lm_stage.recorded_steps import RecordedSteps

    return RecordedSteps(models, slots, capacity, window, fixed=fixed, int8=int8)
