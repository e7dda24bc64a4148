"""The time of each segment and word in the audio, for clients that receive audio while the text is spoken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vivavoce.engine.request import Word
from vivavoce.frontend.speech import SegmentText
from vivavoce.server.notice import NO_SEGMENT


class SegmentClock:
    """Counts sent samples. Segments and characters are numbered over all requests of a text.

    Methods return the events to send next, as JSON values. begun, done, words: the types of these events.
    """

    def __init__(self, sample_rate: int, begun: str, done: str, words: str) -> None:
        self._rate, self._begun, self._done, self._words = sample_rate, begun, done, words
        self._first_s = 0.0
        self._heard: list[dict[str, Any]] = []
        self._samples = 0
        self._announced: dict[int, dict[str, int]] = {}
        self._current: int | None = None
        self._begin_s = 0.0
        self._first_segment = self._first_character = self._repeated = self._given = 0
        self.reached: dict[str, int] | None = None
        """Segment and characters of the last audio; None before the first audio."""

    @property
    def seconds(self) -> float:
        return round(self._samples / self._rate, 6)

    def begin_request(self, first_character: int, repeated: int = 0) -> None:
        """Start a new request, whose own segment numbers and characters count from 0. first_character: position of its
        text in the whole text; repeated: characters at its start that are left out of its segments.
        """
        self._repeated = repeated
        self._first_segment, self._first_character, self._first_s = self._given, first_character, self.seconds

    def announce(self, segment: SegmentText) -> None:
        number = self._first_segment + segment.place
        start, end = (self._first_character + max(at, self._repeated) for at in (segment.start, segment.end))
        self._announced[number] = {"segment": number, "start_character": start, "end_character": end}
        self._given = max(self._given, number + 1)

    def begin(self, segment: int) -> list[dict[str, Any]]:
        """Note that the next audio belongs to this segment of the request, or is the notice before the text."""
        return [] if segment == NO_SEGMENT else self._begin(self._first_segment + segment)

    def begin_through(self, segment: int) -> list[dict[str, Any]]:
        """Like `begin`, but earlier segments without audio also begin and end."""
        passed = [number for number in self._announced if number <= self._first_segment + segment]
        return [event for number in passed for event in self._begin(number)]

    def words(self, words: Sequence[Word]) -> list[dict[str, Any]]:
        """Return one event with the words that end in the next audio; [] without words."""
        found = [
            {
                "text": one.text,
                "start_character": self._first_character + one.start_character,
                "end_character": self._first_character + one.end_character,
                "start": round(self._first_s + one.start_s, 3),
                "end": round(self._first_s + one.end_s, 3),
            }
            for one in words
        ]
        self._heard += found
        estimated = {"estimated": True} if any(one.estimated for one in words) else {}
        return [{"type": self._words, "words": found, **estimated}] if found else []

    def spoken_until(self, seconds: float | None = None) -> dict[str, Any] | None:
        """Return how far the text is heard in `seconds` (None: all) of the audio; None if no word is timed."""
        seconds = self.seconds if seconds is None else min(seconds, self.seconds)
        begun = [one for one in self._heard if one["start"] < seconds]
        if not self._heard:
            return None
        return {"character": begun[-1]["end_character"] if begun else 0, "ms": round(1000 * seconds)}

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
