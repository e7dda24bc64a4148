"""A batch of the estimator without padding: the new frames of all rows, end to end, in tensors of fixed size.

Guidance evaluates everything twice: row i of [2 · frames, …] is frame i with its conditions, row frames + i the same
frame without.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vivavoce.models.kernels.flow_conv import Frames, Tails
from vivavoce.models.kernels.flow_pages import PagePlaces


@dataclass(frozen=True, eq=False)
class PackedTables:
    """What stands where; all int32.

    row, local, position, ends: [frames], of each packed frame its row, its place among the row's new frames (−1:
    padding), its place in the whole row, and the place before which it sees the row's keys.
    first, length: [rows], packed place of each row's first new frame, and how many it has.
    tiles: [tiles, 3], pieces of rows for one program of attention: row, first packed frame, frames (0: idle).
    pages: [rows, width], pages of each row in order; of no width if rows have no pages.
    """

    row: Tensor
    local: Tensor
    position: Tensor
    ends: Tensor
    first: Tensor
    length: Tensor
    tiles: Tensor
    pages: Tensor

    @property
    def frames(self) -> Frames:
        """What convolutions read of it."""
        return Frames(self.row, self.local, self.length)


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """What one Euler step reads and updates in place.

    x: [frames, bins] float32, where each frame is on its path.
    features: [2 · frames, in], x, mu, the speaker and the condition side by side; zeros but for x without conditions.
    step: [1] int32, which of the Euler steps it is.
    keys: the pages, as in `flow_attention.attend`, and tails: of convolutions, of this step; both None if rows have no
    past and leave no state.
    """

    x: Tensor
    features: Tensor
    step: Tensor
    tables: PackedTables
    keys: Tensor | None
    tails: Tails | None

    @property
    def page_places(self) -> PagePlaces | None:
        """Where new keys and values are kept."""
        if self.keys is None:
            return None
        tables = self.tables
        return PagePlaces(self.keys, tables.row, tables.local, tables.position, tables.pages, self.step)
