"""Which segments of an utterance have begun and ended, and how far a listener has come, as its audio is sent."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from vivavoce.service.host.speaker import SegmentText


@dataclass(frozen=True)
class _Mark:
    segment: int
    start: int
    end: int


class Marks:
    """Counts over all orders of an utterance: segments and characters (from 0), seconds of audio that were sent."""

    def __init__(self, sample_rate: int) -> None:
        self._sample_rate = sample_rate
        self._sent = 0
        self._told: deque[_Mark] = deque()
        self._open: tuple[_Mark, float] | None = None
        self._reached: _Mark | None = None
        self._first_segment = self._first_character = self._given = 0

    @property
    def seconds(self) -> float:
        """Audio that was sent."""
        return self._sent / self._sample_rate

    def begin_order(self, first_character: int) -> None:
        """An order begins, whose own counts start at 0; its text begins at this character of the utterance."""
        self._first_segment, self._first_character = self._given, first_character

    def told(self, segment: SegmentText) -> None:
        """A segment of the current order is going to be spoken, after those before it."""
        start, end = self._first_character + segment.start, self._first_character + segment.end
        self._told.append(_Mark(self._first_segment + segment.place, start, end))
        self._given = max(self._given, self._first_segment + segment.place + 1)

    def before(self, segment: int) -> list[dict[str, Any]]:
        """What a client is told before audio of this segment of the current order."""
        replies = []
        while self._told and self._told[0].segment <= self._first_segment + segment:
            replies += self._closing()
            mark = self._told.popleft()
            self._open = (mark, self.seconds)
            replies.append({"type": "segment", **_characters(mark), "start": round(self.seconds, 6)})
        return replies

    def end_order(self) -> list[dict[str, Any]]:
        """What a client is told when the current order's audio is over; segments may have had none."""
        return [*self.before(self._given), *self._closing()]

    def sent(self, samples: int) -> None:
        """So much more audio was sent."""
        self._sent += samples
        if self._open is not None:
            self._reached = self._open[0]

    def reached(self) -> dict[str, int] | None:
        """The segment in which the audio that was sent ends, and its characters; None: there was no audio."""
        if self._reached is None:
            return None
        mark = self._reached
        return {"segment": mark.segment, "from_character": mark.start, "to_character": mark.end}

    def _closing(self) -> list[dict[str, Any]]:
        if self._open is None:
            return []
        (mark, start), self._open = self._open, None
        times = {"start": round(start, 6), "end": round(self.seconds, 6)}
        return [{"type": "segment_done", **_characters(mark), **times}]


def _characters(mark: _Mark) -> dict[str, int]:
    return {"segment": mark.segment, "start_character": mark.start, "end_character": mark.end}
