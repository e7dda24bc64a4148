"""CUDA graphs: work that is recorded once and then launched as a whole, and the sizes of recordings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Launch = Callable[[], None]
"""Work to be recorded: uses tensors with fixed addresses, waits for nothing, makes the same launches each time."""

MOST_ROWS, LEAST_ROWS = 256, 8
"""Limits for the rows of a common batch."""
BLOCK = 64
"""The positions of a batch beyond the largest common size are a multiple of this."""


def fitting(sizes: Sequence[int], count: int) -> int | None:
    """The smallest of ascending sizes that is not below `count`; None: all are below."""
    return next((size for size in sizes if size >= count), None)


def rounded(size: int, to: int) -> int:
    return -(-size // to) * to


def sizes_within(sizes: Sequence[int], most: int | None) -> tuple[int, ...]:
    """The sizes, of an ascending list, up to `most`; at least the smallest one. None: all sizes."""
    return tuple(size for size in sizes if most is None or size <= max(most, sizes[0]))


def sizes_for(sizes: Sequence[int], most: int | None) -> tuple[int, ...]:
    """The sizes, of an ascending list, that work of 1 to `most` needs. None: all sizes."""
    smaller = (0, *sizes)
    return tuple(size for size, before in zip(sizes, smaller, strict=False) if most is None or before < most)


def in_order_of_recording(sizes: Sequence[int], most: int | None) -> tuple[int, ...]:
    """The largest size, then `sizes_for` in descending order. With the largest recorded first, the intermediate tensors
    of all others fit into its memory, whenever they are recorded.
    """
    return tuple(dict.fromkeys((sizes[-1], *reversed(sizes_for(sizes, most)))))


@dataclass(frozen=True)
class Bucket:
    """The size of a batch: packed positions, rows, and whether rows have pages."""

    positions: int
    rows: int
    paged: bool


@dataclass(frozen=True)
class BatchSizes:
    """Positions of the common batches, ascending; a batch has positions / `per_row` rows, at most `MOST_ROWS`."""

    positions: tuple[int, ...]
    per_row: int

    def within(self, most: int | None) -> BatchSizes:
        """The sizes up to `most` positions, at least the smallest; None: all."""
        return BatchSizes(sizes_within(self.positions, most), self.per_row)

    def common(self, positions: int, paged: bool) -> Bucket:
        return Bucket(positions, min(max(positions // self.per_row, LEAST_ROWS), MOST_ROWS), paged)

    def bucket(self, positions: int, rows: int, paged: bool) -> Bucket:
        """The smallest common batch that has room for these; beyond the largest, a size that is rounded up."""
        for size in self.positions:
            common = self.common(size, paged)
            if positions <= size and rows <= common.rows:
                return common
        return Bucket(rounded(positions, BLOCK), rounded(rows, LEAST_ROWS), paged)

    def is_common(self, bucket: Bucket) -> bool:
        """Whether this size is one of the common sizes, which other batches need, too."""
        return bucket.positions in self.positions and bucket == self.common(bucket.positions, bucket.paged)


TOKEN_SIZES = BatchSizes((32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192), 8)
"""Batch sizes, in tokens, for which graphs of the flow's encoder are recorded."""
FRAME_SIZES = BatchSizes(
    (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 10240, 12288, 16384), 16
)
"""Batch sizes, in mel frames, for which graphs of the flow's estimator are recorded."""


class Graphs:
    """CUDA graphs of one queue. They share the memory of their intermediate tensors, so they must run one at a time.

    On devices other than CUDA nothing is recorded, and the work itself runs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self.captured = 0

    def capture(self, work: Launch) -> Launch:
        """Record `work`, and return a function that does the same in one launch.

        The work runs once before it is recorded, so that libraries have chosen and compilers are done; its results must
        not depend on the number of runs. Call it on the queue's own stream.
        """
        self.captured += 1
        if self._device.type != "cuda":
            return work
        stream = torch.cuda.current_stream(self._device)
        work()
        # The recording must begin after the stream has finished the set-up of libraries.
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as one that loads a voice, may use the device meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            work()
        return graph.replay
