"""Where packed batches are computed: tensors that stay where they are, and Euler steps recorded over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from vivavoce.checkpoint.config import UNetConfig
from vivavoce.engine.flow_stage.packed_tables import Bucket, TableShape
from vivavoce.engine.flow_stage.pool import Shelf
from vivavoce.engine.graphs import Graphs, Work, in_order_of_recording
from vivavoce.models.flow.packed import PackedUNet
from vivavoce.models.flow.packed_batch import PackedBatch
from vivavoce.models.kernels.flow_conv import Tails


@dataclass(frozen=True, eq=False)
class PackedState:
    """A batch between two of its steps, in tensors of its own.

    tables: [numbers] int32, as its bucket's `TableShape` says; x: [frames, bins] float32; given: [frames, in − bins],
    the features that do not change; before, after: [steps, 2, rows, tail, channels], its convolutions' tails, or None.
    """

    tables: Tensor
    x: Tensor
    given: Tensor
    before: Tensor | None
    after: Tensor | None


class Storage:
    """Memory of batches up to a size. Batches take turns in it, step by step; `holder` is the one whose numbers it has.

    Args:
        shapes: of the buckets that will lie in it, one at a time.
        shelf: the estimator's.
    """

    def __init__(self, shapes: list[TableShape], config: UNetConfig, shelf: Shelf) -> None:
        self.holder: PackedState | None = None
        self._config, self._shelf = config, shelf
        like, frames = shelf.keys, max(shape.bucket.frames for shape in shapes)
        tail_rows = max((shape.bucket.rows for shape in shapes if shape.bucket.paged), default=0)
        self._tables = torch.zeros(max(sum(shape.sizes) for shape in shapes), dtype=torch.int32, device=like.device)
        self._x = torch.zeros(frames, config.out_channels, device=like.device)
        self._features = like.new_zeros(2 * frames, config.in_channels)
        self._step = torch.zeros(1, dtype=torch.int32, device=like.device)
        self._tails = like.new_zeros(2, 2 * tail_rows * prod(shelf.tails.shape[3:]))

    def tables(self, shape: TableShape) -> Tensor:
        """[numbers] int32, as the shape lays them."""
        return self._tables[: sum(shape.sizes)]

    def batch(self, shape: TableShape) -> PackedBatch:
        """The tensors of one bucket; they overlap those of all others."""
        bucket, tails = shape.bucket, None
        if bucket.paged:
            size = (2, bucket.rows, *self._shelf.tails.shape[3:])
            before, after = (part[: prod(size)].view(size) for part in self._tails)
            tails = Tails(before, after)
        return PackedBatch(
            self._x[: bucket.frames],
            self._features[: 2 * bucket.frames],
            self._step,
            shape.views(self.tables(shape)),
            self._shelf.keys if bucket.paged else None,
            tails,
        )


class PackedBuffers:
    """One bucket's tensors, and a step recorded over them.

    Args:
        record: turns work that may be repeated into something that does the same.
    """

    def __init__(
        self, shape: TableShape, storage: Storage, network: PackedUNet, record: Callable[[Work], Work]
    ) -> None:
        self.shape, self._storage = shape, storage
        self._tables, self._batch = storage.tables(shape), storage.batch(shape)
        storage.holder = None
        # All padding: the work that is done while it is recorded leaves no trace in the pages.
        self._tables.copy_(torch.from_numpy(shape.numbers((), 1)))
        self._replay = record(lambda: network.step(self._batch))

    def step(self, number: int, state: PackedState) -> None:
        """Take Euler step `number` of a batch, and leave in `state` what the next one needs."""
        batch, tails = self._batch, self._batch.tails
        if self._storage.holder is not state:
            self._enter(state)
        batch.step.fill_(number)
        if tails is None or state.before is None or state.after is None:
            self._replay()
        else:
            rows = state.before.shape[2]
            tails.before[:, :rows].copy_(state.before[number])
            self._replay()
            state.after[number].copy_(tails.after[:, :rows])
        state.x.copy_(batch.x[: len(state.x)])

    def leave(self, state: PackedState) -> None:
        """The batch takes no more steps here."""
        if self._storage.holder is state:
            self._storage.holder = None

    def _enter(self, state: PackedState) -> None:
        used, bins = state.x.shape
        features = self._batch.features.view(2, -1, self._batch.features.shape[1])
        self._tables.copy_(state.tables)
        self._batch.x[:used].copy_(state.x)
        features[:, :used, :bins] = state.x
        features[0, :used, bins:] = state.given
        features[1, :used, bins:] = 0
        self._storage.holder = state


class BufferShelf:
    """The buffers of all buckets, made and recorded as they are first needed, or ahead.

    sizes: frames of the common buckets, ascending.
    """

    def __init__(self, network: PackedUNet, config: UNetConfig, shelf: Shelf, sizes: Sequence[int]) -> None:
        self._network, self._config, self._shelf, self._sizes = network, config, shelf, sizes
        self._graphs = Graphs(shelf.keys.device)
        self._buffers: dict[Bucket, PackedBuffers] = {}
        self._storage = Storage([self._shape(bucket) for bucket in self._common(None)], config, shelf)

    def of(self, bucket: Bucket) -> PackedBuffers:
        """Those of a bucket; of one that is not common, new ones, which nobody else will use."""
        shape = self._shape(bucket)
        if not bucket.is_common or bucket.frames > self._sizes[-1]:
            # Launching takes little beside so large a batch, and each would need a recording of its own.
            return PackedBuffers(shape, Storage([shape], self._config, self._shelf), self._network, lambda work: work)
        if bucket not in self._buffers:
            self._buffers[bucket] = PackedBuffers(shape, self._storage, self._network, self._graphs.capture)
        return self._buffers[bucket]

    def prepare(self, frames: int | None) -> None:
        """Record all common buckets that batches of up to so many frames come in."""
        for bucket in self._common(frames):
            self.of(bucket)

    def _common(self, frames: int | None) -> list[Bucket]:
        sources = (True, False) if len(self._shelf.keys) else (False,)
        return [Bucket.common(size, paged) for size in in_order_of_recording(self._sizes, frames) for paged in sources]

    def _shape(self, bucket: Bucket) -> TableShape:
        return TableShape(bucket, self._network.cuts(bucket.frames).attention.queries)
