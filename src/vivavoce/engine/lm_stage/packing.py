"""Runs that begin → one array of integers for the device, and what it means there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vivavoce.checkpoint.config import Vocabulary
from vivavoce.engine.lm_stage.slots import Slot
from vivavoce.engine.lm_stage.state import state_row
from vivavoce.models.lm.interleave import RowKind
from vivavoce.models.lm.products import SAFE_ROWS
from vivavoce.models.lm.slot_lm import PackedRows

KINDS = {RowKind.CONTROL: 0, RowKind.TEXT: 1, RowKind.SPEECH: 2}
"""The numbers of the tables that rows are taken from."""


@dataclass(frozen=True)
class Beginning:
    """Runs that begin together, on the device: their rows, and [n, …] int64 what their slots' state begins with."""

    packed: PackedRows
    states: Tensor


def pack(slots: Sequence[Slot], capacity: int, vocabulary: Vocabulary, device: torch.device) -> Beginning:
    """The waiting runs of some slots. Everything goes to the device in one copy."""
    runs = [slot.waiting for slot in slots if slot.waiting is not None]
    assert len(runs) == len(slots), "every slot of a prefill has a run that waits"
    lengths = np.array([len(run.rows) for run in runs])
    starts = np.array([slot.positions for slot in slots])
    places = np.array([slot.place for slot in slots])
    states = [
        state_row(run, slot.settings, slot.seed, slot.positions + len(run.rows) - 1, slot.count, vocabulary)
        for slot, run in zip(slots, runs, strict=True)
    ]
    rows = [row for run in runs for row in run.rows]
    firsts = np.cumsum(lengths) - lengths
    # Attention and products round in blocks of rows: with whole blocks a row's bits do not depend on its neighbours.
    longest, idle = _rounded(int(lengths.max())), _rounded(len(rows)) - len(rows)
    within = np.arange(len(rows)) - np.repeat(firsts, lengths)
    sequence = np.repeat(np.arange(len(runs)), lengths)
    column = np.arange(longest)
    arrays = (
        _padded([KINDS[row.kind] for row in rows], idle, 0),
        _padded([row.id for row in rows], idle, 0),
        _padded(places[sequence], idle, 0),
        _padded(starts[sequence] + within, idle, capacity - 1),
        places,
        starts,
        firsts[:, None] + np.minimum(column, lengths[:, None] - 1),
        _padded(sequence * longest + within, idle, 0),
        firsts + lengths - 1,
        np.array(states),
    )
    parts = to_device(arrays, device)
    return Beginning(PackedRows(*parts[:-1]), parts[-1])


def _rounded(count: int) -> int:
    return -(-count // SAFE_ROWS) * SAFE_ROWS


def _padded(values: Sequence[int] | np.ndarray, count: int, value: int) -> np.ndarray:
    return np.pad(np.asarray(values, dtype=np.int64), (0, count), constant_values=value)


def to_device(arrays: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Integers of any shapes → int64 tensors, in one copy that is not waited for."""
    joint = torch.from_numpy(np.concatenate([one.ravel() for one in arrays]).astype(np.int64, copy=False))
    if device.type == "cuda":
        joint = joint.pin_memory().to(device, non_blocking=True)
    parts = torch.split(joint, [one.size for one in arrays])
    return [part.view(one.shape) for part, one in zip(parts, arrays, strict=True)]
