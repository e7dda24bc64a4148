"""What other threads tell the engine's loop."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from vivavoce.engine.ticket import Arrived, Ticket


@dataclass(frozen=True, eq=False)
class Submitted:
    """A request was accepted."""

    ticket: Ticket


@dataclass(frozen=True)
class Cancelled:
    """A listener has left."""

    id: int


@dataclass(frozen=True, eq=False)
class TextArrived:
    """More text of a request: ids, or a whole segment; None: all of it has arrived; an error: it will not."""

    id: int
    more: tuple[int, ...] | Arrived | Exception | None


@dataclass(frozen=True)
class Stop:
    """Leave once nothing is left to do (`drain`), or at once."""

    drain: bool


@dataclass(frozen=True, eq=False)
class Prepare:
    """Get the stages ready for what so many streams need, None: for work of any size; `done` is told how that went."""

    streams: int | None
    done: Future[None]


Message = Submitted | Cancelled | TextArrived | Prepare | Stop
