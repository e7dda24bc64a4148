"""What listeners met since the server began: counters and bounded histograms, written in one event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from vivavoce.engine.histogram import Histogram, HistogramSnapshot, log_bounds
from vivavoce.service.host.verdict import FinishReason

SECONDS = log_bounds(1e-3, 1e3, per_decade=5)
"""1 ms … 1000 s: nothing that a listener could tell apart is shorter."""


@dataclass(frozen=True)
class DoorSnapshot:
    """One door.

    accepted: requests taken in; active: those of them that go on; refused: how many by error code; ended: how many by
    reason, all reasons; first_audio_s: seconds from a request's start to its first audio; wall_s: seconds from its
    start to its end, of every one that ended.
    """

    door: str
    accepted: int
    refused: Mapping[str, int]
    ended: Mapping[FinishReason, int]
    first_audio_s: HistogramSnapshot
    wall_s: HistogramSnapshot

    @property
    def active(self) -> int:
        """Requests that go on."""
        return self.accepted - sum(self.ended.values())


@dataclass(frozen=True)
class MetersSnapshot:
    """Everything at one moment.

    doors: those that were used, by name; gap_s: seconds between two pieces of one stream; late_s: seconds that a piece
    came after its listener had played all before it; audio_s: seconds of audio that were handed over by requests that
    ended; characters: of texts that were taken in.
    """

    doors: tuple[DoorSnapshot, ...]
    gap_s: HistogramSnapshot
    late_s: HistogramSnapshot
    audio_s: float
    characters: int

    @property
    def active(self) -> int:
        """Requests that go on, whatever their door."""
        return sum(door.active for door in self.doors)

    @property
    def underruns(self) -> int:
        """Pieces whose listener had nothing left to play."""
        return self.late_s.count


class Meters:
    """The counters. Doors and error codes are few and named by the program, so that memory stays bounded."""

    def __init__(self) -> None:
        self._doors: dict[str, _Door] = {}
        self._gap = Histogram(SECONDS)
        self._late = Histogram(SECONDS)
        self._audio_s = 0.0
        self._characters = 0

    def accepted(self, door: str) -> None:
        """A request was taken in; exactly one `ended` follows."""
        self._door(door).accepted += 1

    def refused(self, door: str, code: str) -> None:
        """A request was not taken in, with this `VivavoceError.code`."""
        self._door(door).refused[code] += 1

    def characters(self, count: int) -> None:
        """So many characters of text were taken in, at once or piece by piece."""
        self._characters += count

    def first_audio(self, door: str, seconds: float) -> None:
        """A listener got its first audio so many seconds after its request's start."""
        self._door(door).first_audio.observe(seconds)

    def piece(self, gap_s: float, late_s: float) -> None:
        """A listener got a piece after its first, gap_s after the one before.

        late_s: seconds since it had played everything, ≤ 0: it had not.
        """
        self._gap.observe(gap_s)
        if late_s > 0:
            self._late.observe(late_s)

    def ended(self, door: str, reason: FinishReason, audio_s: float, wall_s: float) -> None:
        """An accepted request ended, wall_s after its start, with so much audio handed over."""
        entry = self._door(door)
        entry.ended[reason] += 1
        entry.wall.observe(wall_s)
        self._audio_s += audio_s

    def snapshot(self) -> MetersSnapshot:
        """Everything so far."""
        return MetersSnapshot(
            doors=tuple(self._doors[name].snapshot(name) for name in sorted(self._doors)),
            gap_s=self._gap.snapshot(),
            late_s=self._late.snapshot(),
            audio_s=self._audio_s,
            characters=self._characters,
        )

    def _door(self, name: str) -> _Door:
        return self._doors.setdefault(name, _Door())


class _Door:
    def __init__(self) -> None:
        self.accepted = 0
        self.refused: Counter[str] = Counter()
        self.ended: Counter[FinishReason] = Counter()
        self.first_audio = Histogram(SECONDS)
        self.wall = Histogram(SECONDS)

    def snapshot(self, name: str) -> DoorSnapshot:
        return DoorSnapshot(
            door=name,
            accepted=self.accepted,
            refused=MappingProxyType(dict(self.refused)),
            ended=MappingProxyType({reason: self.ended[reason] for reason in FinishReason}),
            first_audio_s=self.first_audio.snapshot(),
            wall_s=self.wall.snapshot(),
        )
