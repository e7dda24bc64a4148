"""Tensors that a recorded batch reads: they stay where they are, and every batch is laid into them anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vivavoce.engine.transfer import copy_into
from vivavoce.models.kernels.row_table import WIDTH, PackedRow
from vivavoce.models.vocoder.packed import AFTER, FIRST, INSIDE, PackedFrames

BUCKETS = (48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
"""Frames of a batch, padding included: a recording for each."""


def bucket_of(frames: int, sizes: Sequence[int]) -> int:
    """The smallest of the ascending sizes that holds so many frames; past the largest a multiple of it."""
    return next((size for size in sizes if size >= frames), -(-frames // sizes[-1]) * sizes[-1])


@dataclass(frozen=True, eq=False)
class Buffers:
    """What one bucket's batches are laid into."""

    mel: Tensor
    """[frames, bins] float32."""
    source: Tensor
    """[frames · samples per frame] float32."""
    carried: Tensor
    """[rows, lanes] float32."""
    table: Tensor
    """int64, see `write_table`."""

    @classmethod
    def of(cls, frames: int, gap: int, bins: int, samples: int, lanes: int, device: torch.device) -> Buffers:
        """Zeros; a padding that was never written must be finite too."""
        rows = rows_of(frames, gap)
        return cls(
            torch.zeros(frames, bins, device=device),
            torch.zeros(frames * samples, device=device),
            torch.zeros(rows, lanes, device=device),
            torch.zeros(frames + rows * WIDTH, dtype=torch.int64, device=device),
        )

    def of_first(self, frames: int, gap: int) -> Buffers:
        """For smaller batches, in the same memory, but with a table of their own: one is all padding until it is
        written, so that a recording may be made at any time.
        """
        rows, samples = rows_of(frames, gap), len(self.source) // len(self.mel)
        table = torch.zeros(frames + rows * WIDTH, dtype=torch.int64, device=self.table.device)
        return Buffers(self.mel[:frames], self.source[: frames * samples], self.carried[:rows], table)

    @property
    def frames(self) -> PackedFrames:
        """The table as kernels read it."""
        size = len(self.mel)
        halves = self.table[:size].view(torch.int32)
        return PackedFrames(halves[:size], halves[size:], self.table[size:].view(-1, WIDTH))

    def write_table(self, rows: Sequence[PackedRow]) -> None:
        """One copy: what each frame is, whose it is, and the rows."""
        size = len(self.mel)
        host = np.zeros(len(self.table), np.int64)
        _fill(host[:size].view(np.int32), rows)
        host[size:].reshape(-1, WIDTH)[: len(rows)] = rows
        copy_into(self.table, torch.from_numpy(host))


def rows_of(frames: int, gap: int) -> int:
    """As many rows as can be in a batch of that many frames."""
    return frames // (gap + 1) + 1


def _fill(halves: npt.NDArray[np.int32], rows: Sequence[PackedRow]) -> None:
    """halves: tags of all frames, then rows of all frames."""
    tags, row_of = np.split(halves, 2)
    for number, row in enumerate(rows):
        end = row.start + row.frames
        tags[row.start] = FIRST
        tags[row.start + 1 : end] = INSIDE
        tags[end] = AFTER
        row_of[row.start : end + 1] = number
