"""What became of one request; a whole load's figures are in `figures`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MS = 1000.0


@dataclass(frozen=True)
class Arrival:
    """One chunk at the client."""

    at_s: float
    """Seconds after the load's start."""
    num_samples: int
    """What it adds to the audio."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """A request and its answer."""

    name: str
    text: str
    start_s: float
    """When it was asked for, in seconds after the load's start."""
    end_s: float
    """When the answer was known to be whole, or failed."""
    sample_rate: int
    arrivals: tuple[Arrival, ...] = ()
    problem: str = ""
    """One sentence; empty: it ended well."""
    file: Path | None = None
    samples: NDArray[np.float32] | None = None
    """The audio [n], kept only where it is to be scored."""

    @property
    def ok(self) -> bool:
        """Whether it ended well."""
        return not self.problem

    @property
    def audio_s(self) -> float:
        """Seconds of audio."""
        return sum(arrival.num_samples for arrival in self.arrivals) / self.sample_rate

    @property
    def total_s(self) -> float:
        """Seconds from the call to the end."""
        return self.end_s - self.start_s

    def chunk_s(self, place: int) -> float | None:
        """Seconds from the call to the chunk at that place (from 0); None: there is none."""
        return self.arrivals[place].at_s - self.start_s if place < len(self.arrivals) else None

    @property
    def gaps_s(self) -> tuple[float, ...]:
        """Seconds between neighbouring chunks."""
        return tuple(after.at_s - before.at_s for before, after in pairwise(self.arrivals))

    @property
    def margins_s(self) -> tuple[float, ...]:
        """For each chunk but the first, the seconds of audio that a listener had left when it came.

        The listener plays from the first chunk on; below 0, it is the silence before the chunk.
        """
        margins = []
        played_until_s = self.arrivals[0].at_s if self.arrivals else 0.0
        for place, arrival in enumerate(self.arrivals):
            if place:
                margins.append(played_until_s - arrival.at_s)
            played_until_s = max(played_until_s, arrival.at_s) + arrival.num_samples / self.sample_rate
        return tuple(margins)

    def to_json(self) -> dict[str, Any]:
        """One line of the requests' log."""
        return {
            "name": self.name,
            "text": self.text,
            "start_s": round(self.start_s, 6),
            "first_chunk_ms": _milliseconds(self.chunk_s(0)),
            "second_chunk_ms": _milliseconds(self.chunk_s(1)),
            "total_ms": _milliseconds(self.total_s),
            "audio_s": round(self.audio_s, 6),
            "rtf": round(self.total_s / self.audio_s, 6) if self.ok and self.audio_s else None,
            "chunks": [[_milliseconds(one.at_s - self.start_s), one.num_samples] for one in self.arrivals],
            "min_margin_ms": _milliseconds(min(self.margins_s, default=None)),
            "file": self.file.name if self.file is not None else None,
            "problem": self.problem or None,
        }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * _MS, 3)
