"""The time of each segment in the audio, for clients that get it while the text is spoken."""

from __future__ import annotations

from typing import Any

from vivavoce.frontend.speech import SegmentText


class SegmentClock:
    """Counts sent samples. Segments and characters are counted over all requests of a text.

    Methods return the events that follow, as JSON values; begun, done: types of the events.
    """

    def __init__(self, sample_rate: int, begun: str, done: str) -> None:
        self._rate, self._begun, self._done = sample_rate, begun, done
        self._samples = 0
        self._announced: dict[int, dict[str, int]] = {}
        self._current: int | None = None
        self._begin_s = 0.0
        self._first_segment = self._first_character = self._given = 0
        self.reached: dict[str, int] | None = None
        """Segment and characters of the last audio; None before the first audio."""

    @property
    def seconds(self) -> float:
        return round(self._samples / self._rate, 6)

    def begin_request(self, first_character: int) -> None:
        """Start a new request, whose segments are numbered from 0. first_character: where its text begins."""
        self._first_segment, self._first_character = self._given, first_character

    def announce(self, segment: SegmentText) -> None:
        number = self._first_segment + segment.place
        start, end = self._first_character + segment.start, self._first_character + segment.end
        self._announced[number] = {"segment": number, "start_character": start, "end_character": end}
        self._given = max(self._given, number + 1)

    def begin(self, segment: int) -> list[dict[str, Any]]:
        """The next audio belongs to this segment of the request."""
        return self._begin(self._first_segment + segment)

    def begin_through(self, segment: int) -> list[dict[str, Any]]:
        """Like `begin`, but earlier segments without audio also begin and end."""
        passed = [number for number in self._announced if number <= self._first_segment + segment]
        return [event for number in passed for event in self._begin(number)]

    def end_request(self) -> list[dict[str, Any]]:
        return [*self.begin_through(self._given), *self.end()]

    def add(self, samples: int) -> None:
        self._samples += samples
        if self._current is not None:
            self.reached = self._announced[self._current]

    def end(self) -> list[dict[str, Any]]:
        if self._current is None:
            return []
        segment, self._current = self._announced.pop(self._current), None
        return [{"type": self._done, **segment, "start": self._begin_s, "end": self.seconds}]

    def _begin(self, number: int) -> list[dict[str, Any]]:
        if number == self._current:
            return []
        events = self.end()
        self._current, self._begin_s = number, self.seconds
        return [*events, {"type": self._begun, **self._announced[number], "start": self._begin_s}]
