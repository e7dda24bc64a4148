"""The host's books on slots: who holds which, where each stands on the device, how far it can have come."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from vivavoce.engine.lm_stage.choosing import Settings
from vivavoce.engine.lm_stage.run import Run


@dataclass(eq=False)
class Slot:
    """One open slot. Its number is the caller's; `place` is where its state and keys are on the device."""

    number: int
    place: int
    seed: int
    settings: Settings
    positions: int = 0
    """Rows in the cache when the run in progress began, or now if there is none."""
    count: int = 0
    """Ids sampled in the runs that are over."""
    waiting: Run | None = None
    """Fed, not yet prefilled."""
    run: Run | None = None
    """In progress, as far as is known."""
    launched: int = 0
    """Ids of the run that were asked for; of several steps at once perhaps more than it can have."""
    received: int = 0
    """Ids of the run that have come."""
    closed: bool = False
    """It was freed: what is still on its way to it is nobody's."""

    @property
    def decoding(self) -> bool:
        """The run in progress may need another step."""
        return self.run is not None and self.launched <= self.run.forced_at

    @property
    def reach(self) -> int:
        """A bound on the positions that the slot's next step uses."""
        return self.positions + self.launched

    def begin(self) -> None:
        """The waiting run is being prefilled: its first id is asked for."""
        assert self.waiting is not None
        self.run, self.waiting = self.waiting, None
        self.positions += len(self.run.rows)
        self.launched, self.received = 1, 0

    def end(self) -> None:
        """The run's control id has come. All ids but that one were fed."""
        self.positions += self.received - 1
        self.count += self.received
        self.run, self.launched, self.received = None, 0, 0


class SlotTable:
    """Open slots; the lowest free number and the lowest free place are taken first."""

    def __init__(self, slots: int) -> None:
        self._numbers = list(range(slots))
        self._places = list(range(slots))
        self._open: dict[int, Slot] = {}
        self._used: int | None = 0
        self._most: int | None = 0

    def __len__(self) -> int:
        return len(self._open)

    def __getitem__(self, number: int) -> Slot:
        return self._open[number]

    @property
    def free(self) -> int:
        """Slots that can be opened."""
        return len(self._numbers)

    @property
    def all(self) -> list[Slot]:
        """The open ones."""
        return list(self._open.values())

    @property
    def used(self) -> int:
        """All open slots stand on places below this one."""
        if self._used is None:
            self._used = max((slot.place for slot in self._open.values()), default=-1) + 1
        return self._used

    @property
    def most(self) -> int:
        """The largest top_k of all open slots."""
        if self._most is None:
            self._most = max((slot.settings.top_k for slot in self._open.values()), default=0)
        return self._most

    def open(self, seed: int, settings: Settings) -> Slot:
        """Take a slot."""
        if not self._numbers:
            raise RuntimeError("no slot is free; ask free_slots before opening one")
        number = heapq.heappop(self._numbers)
        slot = Slot(number, heapq.heappop(self._places), seed, settings)
        self._open[number] = slot
        self._used = self._most = None
        return slot

    def close(self, number: int) -> Slot:
        """Free a slot."""
        slot = self._open.pop(number)
        slot.closed = True
        self._used = self._most = None
        heapq.heappush(self._numbers, number)
        heapq.heappush(self._places, slot.place)
        return slot

    def compact(self) -> list[tuple[int, int]]:
        """Give the slots on the highest places the lowest free ones; (from, to), all on the device to be copied."""
        moves = []
        self._used = None
        for slot in sorted(self._open.values(), key=lambda one: -one.place):
            if not self._places or self._places[0] > slot.place:
                break
            target = heapq.heappushpop(self._places, slot.place)
            moves.append((slot.place, target))
            slot.place = target
        return moves
