"""Draws ids inside another runtime's process, by our own sampling rule and with each request's own seed.

The runtime passes its logits to `SpeechSampler` before it samples. `SpeechSampler` draws the id that our own engine
would draw, and sets all other logits to −∞, so that the runtime must sample this id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.engine.lm_stage.slots import SamplingState, repetition_aware
from vivavoce.errors import CheckpointError
from vivavoce.models.randomness import SamplingRows
from vivavoce_runtimes.merged_vocabulary import EMBEDDING_BIAS


@dataclass(frozen=True)
class Draws:
    """The sampling settings and state of one run, as plain numbers that can be sent to another process.

    All ids are of the speech vocabulary. count: number of ids that the slot sampled before this run; history: the last
    of those ids, newest last; forbidden: control ids that are never sampled; early: control ids that are not sampled
    before the run has `least` ids; top_p, top_k, window, max_repeats: see `SamplingRows`.
    """

    seed: int
    top_p: float
    top_k: int
    window: int
    max_repeats: int
    count: int = 0
    history: tuple[int, ...] = ()
    forbidden: tuple[int, ...] = ()
    early: tuple[int, ...] = ()
    least: int = 0


def speech_bias(folder: Path) -> tuple[NDArray[np.float32], range]:
    """Return a merged model's bias of the speech head, [n], and the n ids; CheckpointError: its file is not usable."""
    try:
        bias: NDArray[np.float32] = np.load(folder / EMBEDDING_BIAS, allow_pickle=False)
        speech = np.flatnonzero(np.isfinite(bias))
        ids = range(int(speech[0]), int(speech[-1]) + 1)
    except (OSError, ValueError, IndexError, TypeError):
        raise CheckpointError(
            f"model: {EMBEDDING_BIAS} in {folder.name} cannot be read; make the folder with `vivavoce export hf`"
        ) from None
    return bias[ids.start : ids.stop], ids


class SpeechSampler:
    """Draws an id for each row of a runtime's logits, and masks all other ids.

    folder: the merged model's folder. It draws only ids of the speech head, which have a finite bias.
    """

    def __init__(self, folder: Path, device: torch.device) -> None:
        bias, speech = speech_bias(folder)
        self.first, self._end, self._device = speech.start, speech.stop, device
        self._bias = torch.from_numpy(bias).to(device)

    @torch.inference_mode()
    def leave_one(
        self, logits: Tensor, rows: Sequence[int], draws: Sequence[Draws], said: Sequence[Sequence[int]]
    ) -> Tensor:
        """Draw an id of the speech vocabulary for each of n rows, [n] int64; mask the row's other ids in place.

        logits: [runtime's rows, merged ids]; rows: n rows of it; said: the merged ids of each row's run so far.
        """
        places, counts = torch.tensor([rows, [len(ids) for ids in said]], device=self._device)
        scores = logits[places, self.first : self._end].float() + self._bias
        self._forbid(scores, draws, counts)
        columns = [[one.seed, one.top_k, one.window, one.max_repeats, one.count] for one in draws]
        seeds, top_k, window, max_repeats, before = torch.tensor(columns, device=self._device).unbind(1)
        top_p = torch.tensor([one.top_p for one in draws], device=self._device)
        settings = SamplingRows(top_p, top_k, window, max_repeats, max(one.top_k for one in draws))
        state = SamplingState(before + counts, self._newest(draws, said), seeds, settings)
        chosen = repetition_aware(scores, state)
        logits[places] = float("-inf")
        logits[places, self.first + chosen] = 0.0
        return chosen

    def _newest(self, draws: Sequence[Draws], said: Sequence[Sequence[int]]) -> Tensor:
        """Return each row's newest speech ids, newest last, padded at the left with −1: [n, widest window] int64."""
        width = max(one.window for one in draws)
        recent = np.full((len(draws), width), -1)
        for row, (one, ids) in enumerate(zip(draws, said, strict=True)):
            tail = (*one.history, *(each - self.first for each in ids[-width:]))[-width:]
            recent[row, width - len(tail) :] = tail
        return torch.from_numpy(recent).to(self._device)

    def _forbid(self, scores: Tensor, draws: Sequence[Draws], counts: Tensor) -> None:
        """Give −∞ to ids that must not be drawn now; only control ids can be forbidden, and these are the last ids."""
        lowest = min((control for one in draws for control in (*one.forbidden, *one.early)), default=scores.shape[1])
        masks = np.zeros((2, len(draws), scores.shape[1] - lowest), bool)
        for row, one in enumerate(draws):
            for mask, controls in zip(masks, (one.forbidden, one.early), strict=True):
                mask[row, [control - lowest for control in controls]] = True
        never, early = torch.from_numpy(masks).to(self._device)
        least = torch.tensor([one.least for one in draws], device=self._device)
        scores[:, lowest:].masked_fill_(never | (early & (counts < least)[:, None]), float("-inf"))
