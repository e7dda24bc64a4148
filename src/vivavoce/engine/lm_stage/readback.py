"""Ids on their way from the device to the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.engine.lm_stage.slots import Slot


class Sampled(NamedTuple):
    """What one launch gave for one slot.

    ids: in order, one for each step until the run's end; ended: the last one is a control id: the run is over, and the
    slot pauses until the next `feed` or `close`.
    """

    slot: int
    ids: tuple[int, ...]
    ended: bool


@dataclass(frozen=True, eq=False)
class Arrived:
    """Ids of one launch; owners: whose they were when it was launched; ids: [steps, owners] int64, −1 where a slot was
    idle.
    """

    owners: Sequence[Slot]
    ids: NDArray[np.int64]


class _Page:
    """Memory of the host for the ids of one launch, used again for a later one; [steps, slots] int64."""

    def __init__(self, steps: int, slots: int, device: torch.device) -> None:
        on_cuda = device.type == "cuda"
        self.rows = torch.empty(steps, slots, dtype=torch.int64, pin_memory=on_cuda)
        self.ids: NDArray[np.int64] = self.rows.numpy()
        self._written = torch.cuda.Event() if on_cuda else None

    def close(self) -> None:
        """All that it is to hold was enqueued."""
        if self._written is not None:
            self._written.record()

    def full(self, wait: bool) -> bool:
        """Whether all of it has come; wait: block until it has."""
        if self._written is None or self._written.query():
            return True
        if wait:
            self._written.synchronize()
        return wait


@dataclass(frozen=True, eq=False)
class _Launch:
    page: _Page
    steps: int
    decode: bool
    places: NDArray[np.int64]
    owners: Sequence[Slot]


class Readback:
    """Results of launches, oldest first. The copies run behind the device's work; the host looks when it likes.

    slots: ids of a step at most.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self._slots, self._device = slots, device
        self._launches: deque[_Launch] = deque()
        self._spare: list[_Page] = []

    def __len__(self) -> int:
        return len(self._launches)

    @property
    def steps(self) -> int:
        """Decode steps that were not received."""
        return sum(launch.steps for launch in self._launches if launch.decode)

    def wait(self) -> None:
        """Block until the oldest launch is finished."""
        if self._launches:
            self._launches[0].page.full(wait=True)

    def send(
        self, results: Iterable[Tensor], steps: int, owners: Sequence[Slot], places: Sequence[int], *, decode: bool
    ) -> None:
        """Start to copy the ids of so many steps, each [≤ slots] int64 and −1 where a slot was idle.

        A step's ids are copied before the next one is asked for, and may be overwritten by it. places: where the ids of
        each owner stand; decode: all slots that run have a part in it, which a prefill's neighbours have not.
        """
        page = self._page(steps)
        for row, ids in zip(page.rows, results, strict=False):
            row[: len(ids)].copy_(ids, non_blocking=True)
        page.close()
        self._launches.append(_Launch(page, steps, decode, np.array(places), owners))

    def receive(self, wait: bool) -> list[Arrived]:
        """The ids of all launches that are finished; wait: block for the oldest one."""
        arrived = []
        while self._launches and self._launches[0].page.full(wait):
            wait = False
            launch = self._launches.popleft()
            arrived.append(Arrived(launch.owners, launch.page.ids[: launch.steps, launch.places]))
            self._spare.append(launch.page)
        return arrived

    def _page(self, steps: int) -> _Page:
        page = self._spare.pop() if self._spare else None
        return page if page and len(page.rows) >= steps else _Page(steps, self._slots, self._device)
