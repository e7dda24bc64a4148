"""The token encoder over packed rows: a batch's tables are copied to the device, and its size's recording runs.

Rows with state need one more small copy, of the pages beside which their tails lie. Batches past the largest common
size have no recording: each of their kernels is launched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from vivavoce.engine.flow_stage.arrays import upload
from vivavoce.engine.flow_stage.encoder_buffers import EncoderBuffers, EncoderStorage, Shelves
from vivavoce.engine.flow_stage.encoder_tables import EncoderBucket, EncoderShape
from vivavoce.engine.flow_stage.planning import Row
from vivavoce.engine.flow_stage.pool import SINK, PagePool
from vivavoce.engine.graphs import Graphs, in_order_of_recording
from vivavoce.models.build import Models
from vivavoce.models.flow.packed_encoder import PackedEncoder
from vivavoce.models.kernels.compile_ahead import compiled_ahead


@dataclass(frozen=True, eq=False)
class EncodedRows:
    """What the encoder made of rows.

    mu: [frames, bins], the rows' new frames end to end; it stays until anything is encoded again, so whoever wants it
    takes it before, on the same stream. slots: [2, rows] int64 on the device, pages beside which tails lie and will
    lie, None without state. shelves: the pool's, where the tails will lie. tails: [rows, tails of both rates, size],
    what the rows leave, their own for good; of no rows without state.
    """

    mu: Tensor
    slots: Tensor | None
    shelves: Shelves
    tails: Tensor

    def commit(self) -> None:
        """Write the encoder's tails to the pool."""
        if self.slots is None:
            return
        parts = self.tails.split([shelf.tail for shelf in self.shelves], dim=1)
        for shelf, tails in zip(self.shelves, parts, strict=True):
            shelf.tails.index_copy_(0, self.slots[1], tails[:, None, None])


class PackedEncoding:
    """Encodes packed batches, which share buffers and recordings.

    Args:
        sizes: tokens of the common buckets, ascending.
        invariant: what a row computes does not depend on its neighbours, nor on whether its past was kept or is
            computed again, to the bit; slower.

    Raises:
        ValueError: sizes that the kernels do not take.
    """

    def __init__(self, models: Models, pool: PagePool, sizes: Sequence[int], *, invariant: bool) -> None:
        self._sizes = sizes
        self._config, self._bins, self._device = (
            models.config.flow.encoder,
            models.config.flow.num_mel_bins,
            models.device,
        )
        self._network = PackedEncoder(models.flow, invariant=invariant)
        self._shelves: Shelves = pool.shelves[:2]
        self._graphs = Graphs(models.device)
        self._buffers: dict[EncoderBucket, EncoderBuffers] = {}
        self._storage = self._store([self._shape(bucket) for bucket in self._common(None)])

    def encode(self, rows: Sequence[Row]) -> EncodedRows:
        """Rows that all leave a state, or none; keys and values go to their pages, tails to the pool at `commit`."""
        paged = rows[0].after is not None
        mu, tails = self._buffers_of(EncoderBucket.of(sum(row.new for row in rows), len(rows), paged)).encode(rows)
        slots = None
        if paged:
            pairs = [(row.before.slot if row.before else SINK, row.after.slot) for row in rows if row.after]
            (slots,) = upload((np.array(pairs, dtype=np.int64).T.copy(),), self._device)
        return EncodedRows(mu=mu, slots=slots, shelves=self._shelves, tails=tails)

    def prepare(self, tokens: int | None) -> None:
        """Record all common buckets that batches of up to so many tokens come in."""
        common = self._common(tokens)
        with compiled_ahead() as apart:
            for bucket in common if apart else ():
                self._network.encode(self._storage.batch(self._shape(bucket)))
        for bucket in common:
            self._buffers_of(bucket)

    def _buffers_of(self, bucket: EncoderBucket) -> EncoderBuffers:
        """Those of a bucket; of one that is not common, new ones, which nobody else will use."""
        shape = self._shape(bucket)
        if not bucket.is_common or bucket.tokens > self._sizes[-1]:
            # Launching takes little beside so large a batch, and each would need a recording of its own.
            return EncoderBuffers(shape, self._store([shape]), self._network, lambda work: work)
        if bucket not in self._buffers:
            self._buffers[bucket] = EncoderBuffers(shape, self._storage, self._network, self._graphs.capture)
        return self._buffers[bucket]

    def _common(self, tokens: int | None) -> list[EncoderBucket]:
        sources = (True, False) if len(self._shelves[0].keys) else (False,)
        return [
            EncoderBucket.common(size, paged)
            for size in in_order_of_recording(self._sizes, tokens)
            for paged in sources
        ]

    def _shape(self, bucket: EncoderBucket) -> EncoderShape:
        queries = self._network.cuts(bucket.tokens).attention.queries
        return EncoderShape(bucket, queries, self._config.lookahead, self._config.upsampling)

    def _store(self, shapes: Sequence[EncoderShape]) -> EncoderStorage:
        return EncoderStorage(shapes, self._bins, self._shelves)
