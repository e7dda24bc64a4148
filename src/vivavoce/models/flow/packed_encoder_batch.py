"""A batch of the token encoder without padding: the new tokens of all rows, end to end, in tensors of fixed size."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vivavoce.models.kernels.encoder_attention import RelativePlaces
from vivavoce.models.kernels.encoder_windows import PooledTails, TokenPlaces


@dataclass(frozen=True, eq=False)
class EncoderTables:
    """What stands where; all int32.

    ids: [tokens, 1 + lookahead], of each packed token its id and those that follow in its row, −1: zeros.
    row, local, ends: [tokens], of each its row, its place among the row's new tokens (−1: padding), and the place in
    the row before which it sees keys (0: padding); frame_ends: [frames], the same of frames.
    first, length, past: [rows], in tokens: packed place of each row's first new one, how many it has, and how many
    precede them.
    slots: [rows], pages beside which the rows' tails lie.
    tiles, frame_tiles: [tiles, 3], pieces of rows for one program of attention: row, first packed position, positions
    (0: idle).
    pages: [rows, width], pages of each row in order; of no width if rows have no pages.
    """

    ids: Tensor
    row: Tensor
    local: Tensor
    ends: Tensor
    frame_ends: Tensor
    first: Tensor
    length: Tensor
    past: Tensor
    slots: Tensor
    tiles: Tensor
    frame_tiles: Tensor
    pages: Tensor

    @property
    def tokens(self) -> TokenPlaces:
        """What windows read of it."""
        return TokenPlaces(self.row, self.local, self.length)

    @property
    def of_tokens(self) -> RelativePlaces:
        """What attention reads of it at token rate."""
        return RelativePlaces(self.tiles, self.ends, self.first, self.past, self.pages)

    @property
    def of_frames(self) -> RelativePlaces:
        """What attention reads of it at mel rate."""
        return RelativePlaces(self.frame_tiles, self.frame_ends, self.first, self.past, self.pages)


@dataclass(frozen=True, eq=False)
class EncoderPast:
    """One half's share of the pages.

    keys: [pages, 1, sites, 1, page, 2 · size]; tails: of its convolution, those in the pool and the ones that it
    leaves.
    """

    keys: Tensor
    tails: PooledTails


@dataclass(frozen=True, eq=False)
class EncoderBatch:
    """What one run of the encoder reads and writes.

    mu: [frames, bins], its result, anything in padding; past: at token rate and at mel rate; None: rows have no past
    and leave no state.
    """

    tables: EncoderTables
    mu: Tensor
    past: tuple[EncoderPast, EncoderPast] | None
