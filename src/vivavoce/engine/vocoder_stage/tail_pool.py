"""Tails of all streams in one tensor per kind, a row each: gathered and scattered in one launch."""

from __future__ import annotations

import torch
from torch import Tensor

from vivavoce.engine.vocoder_stage.joins import CONTEXT_FRAMES, OVERLAP_FRAMES
from vivavoce.models.kernels.vocoder_tails import Pool

FIRST_ROWS = 64


class TailPool:
    """Rows to be taken and given back. A row is written once, for the piece that it was taken for.

    Work already enqueued on the stage's stream may still read a row that was given back: whoever takes it next is
    enqueued behind it.
    """

    def __init__(self, bins: int, samples: int, lanes: int, device: torch.device) -> None:
        """bins: of the mel; samples: per frame; lanes: of a phase."""
        frames = OVERLAP_FRAMES + CONTEXT_FRAMES
        shapes = ((frames, bins), (CONTEXT_FRAMES, samples), (OVERLAP_FRAMES, samples), (lanes,))
        self.memory = Pool(*(torch.zeros(FIRST_ROWS, *shape, device=device) for shape in shapes))
        self._free = list(range(FIRST_ROWS))

    @property
    def taken(self) -> int:
        """Rows in use."""
        return len(self.memory.mel) - len(self._free)

    def take(self) -> int:
        """A row nobody has; the pool doubles if there is none."""
        if not self._free:
            rows = len(self.memory.mel)
            memory = self.memory
            self.memory = Pool(*(_doubled(part) for part in (memory.mel, memory.source, memory.held, memory.phase)))
            self._free = list(range(rows, 2 * rows))
        return self._free.pop()

    def give(self, row: int) -> None:
        """Give a row back."""
        self._free.append(row)


def _doubled(part: Tensor) -> Tensor:
    return torch.cat((part, torch.zeros_like(part)))
