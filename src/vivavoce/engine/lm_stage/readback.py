"""Ids on their way from the device to the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampled:
    """What one launch gave for one slot.

    ids: in order, usually one; ended: the last one is a control id: the run is over, and the slot pauses until the
    next `feed` or `close`.
    """

    slot: int
    ids: tuple[int, ...]
    ended: bool


class Owner(NamedTuple):
    """Whose id stands at a place of a launch's result; `epoch` tells a slot's owners apart."""

    place: int
    slot: int
    epoch: int


class Arrived(NamedTuple):
    """One id and whose it is."""

    owner: Owner
    id: int


class Readback:
    """Results of launches, oldest first. The copies run behind the device's work; the host looks when it likes."""

    def __init__(self) -> None:
        self._launches: deque[tuple[Tensor, torch.cuda.Event | None, Sequence[Owner]]] = deque()

    def __len__(self) -> int:
        return len(self._launches)

    def send(self, ids: Tensor, owners: Sequence[Owner]) -> None:
        """Start to copy a launch's ids, [n] int64 and −1 where a slot was idle; the next launch may overwrite them."""
        if ids.device.type != "cuda":
            self._launches.append((ids.clone(), None, owners))
            return
        host = torch.empty(ids.shape, dtype=ids.dtype, pin_memory=True)
        host.copy_(ids, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._launches.append((host, event, owners))

    def receive(self, wait: bool) -> list[Arrived]:
        """The ids of all launches that are finished; wait: block for the oldest one."""
        arrived = []
        while self._launches:
            ids, event, owners = self._launches[0]
            if event is not None and not event.query():
                if not wait:
                    break
                event.synchronize()
            wait = False
            self._launches.popleft()
            values = ids.tolist()
            arrived += [Arrived(owner, values[owner.place]) for owner in owners if values[owner.place] >= 0]
        return arrived
