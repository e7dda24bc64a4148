"""A listener who plays a stream while it comes, simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vivavoce.bench.outcome import Arrival


@dataclass(frozen=True)
class Playback:
    """What one listener heard."""

    margins_s: tuple[float, ...]
    """For each piece but the first, the seconds of audio that were still to be played when it came; below 0, the
    seconds of silence that came before it."""

    @property
    def underruns(self) -> int:
        """Pieces that came after everything before them was played."""
        return sum(margin < 0 for margin in self.margins_s)

    @property
    def stall_s(self) -> float:
        """Seconds of silence between the first and the last sound."""
        return -sum(margin for margin in self.margins_s if margin < 0)


def play(arrivals: Sequence[Arrival], sample_rate: int) -> Playback:
    """Play from the first arrival on at real time; what comes too late is played when it comes."""
    played_until_s = arrivals[0].at_s
    margins = []
    for place, arrival in enumerate(arrivals):
        if place:
            margins.append(played_until_s - arrival.at_s)
        played_until_s = max(played_until_s, arrival.at_s) + arrival.num_samples / sample_rate
    return Playback(tuple(margins))
