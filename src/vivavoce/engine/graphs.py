"""Work that is recorded once and then launched as a whole: CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

Work = Callable[[], None]
"""Reads and writes tensors that stay where they are; waits for nothing; makes the same launches each time."""


def sizes_within(sizes: Sequence[int], most: int | None) -> tuple[int, ...]:
    """Of ascending sizes of recordings those of `most` and below, and the smallest in any case; None: all."""
    return tuple(size for size in sizes if most is None or size <= max(most, sizes[0]))


def sizes_for(sizes: Sequence[int], most: int | None) -> tuple[int, ...]:
    """Of ascending sizes of recordings those that work of at most `most` ≥ 1 comes in; None: all."""
    smaller = (0, *sizes)
    return tuple(size for size, before in zip(sizes, smaller, strict=False) if most is None or before < most)


def in_order_of_recording(sizes: Sequence[int], most: int | None) -> tuple[int, ...]:
    """As `sizes_for`, descending, and before them the largest, needed or not: the intermediate tensors of the others,
    whenever they are recorded, then fit into the memory of its recording.
    """
    return tuple(dict.fromkeys((sizes[-1], *reversed(sizes_for(sizes, most)))))


class Graphs:
    """Recordings of one lane. They share the memory of their intermediate tensors, so they must run one after another.

    On other devices than CUDA nothing is recorded: what is given is what runs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self.captured = 0
        """Recordings made so far."""

    def capture(self, work: Work) -> Work:
        """Something that does the same as `work` in one launch.

        The work runs once before it is recorded, so that libraries have chosen and compilers are done; its results
        must not depend on how often it runs. Call it on the lane's own stream.
        """
        self.captured += 1
        if self._device.type != "cuda":
            return work
        stream = torch.cuda.current_stream(self._device)
        work()
        # A recording may not begin while the stream still works on what the library set up for it.
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as one that loads a voice, may use the device meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            work()
        return graph.replay
