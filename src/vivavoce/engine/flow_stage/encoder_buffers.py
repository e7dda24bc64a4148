"""Where packed batches of the token encoder are computed: tensors that stay where they are, and runs over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vivavoce.engine.flow_stage.encoder_tables import EncoderShape
from vivavoce.engine.flow_stage.planning import Row
from vivavoce.engine.flow_stage.pool import Shelf
from vivavoce.engine.graphs import Work
from vivavoce.engine.transfer import copy_into
from vivavoce.models.flow.packed_encoder import PackedEncoder
from vivavoce.models.flow.packed_encoder_batch import EncoderBatch, EncoderPast
from vivavoce.models.kernels.encoder_windows import PooledTails

Shelves = tuple[Shelf, Shelf]
"""The encoder's: at token rate and at mel rate."""


class EncoderStorage:
    """Memory of batches up to a size, one at a time.

    Args:
        shapes: of the buckets that will lie in it.
        bins: of mu.
    """

    def __init__(self, shapes: Sequence[EncoderShape], bins: int, shelves: Shelves) -> None:
        self._shelves, like = shelves, shelves[0].keys
        rows = max((shape.bucket.rows for shape in shapes if shape.bucket.paged), default=0)
        lines, size = sum(shelf.tail for shelf in shelves), shelves[0].tails.shape[-1]
        self._tables = torch.zeros(max(sum(shape.sizes) for shape in shapes), dtype=torch.int32, device=like.device)
        self._mu = like.new_zeros(max(shape.frames for shape in shapes), bins)
        self._after = like.new_zeros(rows, lines, size)

    def tables(self, shape: EncoderShape) -> Tensor:
        """[numbers] int32, as the shape lays them."""
        return self._tables[: sum(shape.sizes)]

    def after(self, shape: EncoderShape) -> Tensor:
        """[rows, tails of both rates, size], what rows leave."""
        return self._after[: shape.bucket.rows if shape.bucket.paged else 0]

    def batch(self, shape: EncoderShape) -> EncoderBatch:
        """The tensors of one bucket; they overlap those of all others."""
        tables, past = shape.views(self.tables(shape)), None
        if shape.bucket.paged:
            of_tokens, of_frames = self._shelves
            parts = self.after(shape).split([of_tokens.tail, of_frames.tail], dim=1)
            past = (
                EncoderPast(of_tokens.keys, PooledTails(of_tokens.tails, tables.slots, parts[0])),
                EncoderPast(of_frames.keys, PooledTails(of_frames.tails, tables.slots, parts[1])),
            )
        return EncoderBatch(tables, self._mu[: shape.frames], past)


class EncoderBuffers:
    """One bucket's tensors, and a run recorded over them.

    Args:
        record: turns work that may be repeated into something that does the same.
    """

    def __init__(
        self, shape: EncoderShape, storage: EncoderStorage, network: PackedEncoder, record: Callable[[Work], Work]
    ) -> None:
        self._shape, self._tables = shape, storage.tables(shape)
        self._batch, self._after = storage.batch(shape), storage.after(shape)
        # All padding: the work that is done while it is recorded leaves no trace in the pages.
        self._write(())
        self._replay = record(lambda: network.encode(self._batch))

    def encode(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """mu [frames, bins], which stays until anything is encoded again, and tails [rows, tail, size], for good."""
        self._write(rows)
        self._replay()
        frames = sum(row.new for row in rows) * self._shape.upsampling
        return self._batch.mu[:frames], self._after[: len(rows)].clone()

    def _write(self, rows: Sequence[Row]) -> None:
        copy_into(self._tables, torch.from_numpy(self._shape.numbers(rows)))
