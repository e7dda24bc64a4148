"""Times of each spoken word, from the text tokens that the speech has reached (by attention) and from the audio."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vivavoce.engine.request import AudioChunk, Word
from vivavoce.frontend.text.text_input import readable
from vivavoce.frontend.text.word_spans import WordSpan

FRAME_S = 0.01
_QUIET = 0.03
"""A frame is quiet if its level is below this fraction of the loudest frame so far (−30 dB)."""
_PAUSE_FRAMES = 15
"""This many quiet frames before a sound, or more, are a pause."""
_EARLY_FRAMES, _LATE_FRAMES, _FIRST_FRAMES = 10, 15, 100
"""If sound begins after a pause, at most `_EARLY_FRAMES` before or `_LATE_FRAMES` after the word's start according to
attention, the word's start moves there. For the first word of a segment, `_FIRST_FRAMES` replaces `_LATE_FRAMES`."""
LEAST_WORD_S = 0.03


@dataclass(eq=False)
class SegmentTimer:
    """Finds the times of one segment's words; more words may be appended while the segment's text still grows.

    begin_s: seconds of audio before the segment. words: the segment's words in order."""

    begin_s: float = 0.0
    words: list[WordSpan] = field(default_factory=list)
    _levels: list[float] = field(default_factory=list)
    _left: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    _reached: list[tuple[int, float]] = field(default_factory=list)
    _seconds: float = 0.0
    _given: int = 0
    _after_s: float = 0.0
    """End of the last returned word, in seconds from the segment's beginning."""

    def add(self, text: str, chunk: AudioChunk, ended: bool) -> tuple[Word, ...]:
        """Take the segment's next chunk, and return the words that end in it. text: the whole input text; ended: this
        is the segment's last chunk."""
        self._listen(chunk.samples, chunk.sample_rate)
        if chunk.reached is not None:
            self._reached += chunk.reached
        found = list[Word]()
        while self._given < len(self.words):
            group = self._together(ended)
            heard = self._times(group[0].first, group[-1].last, ended)
            if heard is None:
                break
            start_s, self._after_s = heard[0], min(max(heard[1], heard[0] + LEAST_WORD_S * len(group)), self._seconds)
            letter_s = (self._after_s - start_s) / sum(span.end - span.start for span in group)
            for one in group:
                end_s = start_s + letter_s * (one.end - one.start)
                start, end = round(self.begin_s + start_s, 3), round(self.begin_s + end_s, 3)
                found.append(
                    Word(readable(text[one.start : one.end]), one.start, one.end, start, end, not self._reached)
                )
                start_s = end_s
            self._given += len(group)
        return tuple(found)

    def _listen(self, samples: NDArray[np.float32], rate: int) -> None:
        self._seconds += len(samples) / rate
        sound, size = np.concatenate((self._left, samples)), round(rate * FRAME_S)
        whole = len(sound) // size * size
        self._levels += np.sqrt(np.mean(sound[:whole].reshape(-1, size) ** 2, axis=1)).tolist()
        self._left = sound[whole:]

    def _times(self, first: int, last: int, ended: bool) -> tuple[float, float] | None:
        """Return start and end of the text tokens first … last − 1, in seconds from the segment's beginning; None if
        the end is not known yet."""
        if not self._reached:
            return self._shared_out(first, last) if ended else None
        start_s, end_s = self._when(first), self._when(last)
        if end_s is None or end_s == start_s:
            if not ended:
                return None
            end_s = self._seconds
        start_s = self._after_s if start_s is None else start_s
        return self._heard(start_s, end_s, first=self._given == 0)

    def _together(self, ended: bool) -> list[WordSpan]:
        """Return the next word, and the following words that share its text tokens or that attention reaches at the
        same time."""
        group = [self.words[self._given]]
        for span in self.words[self._given + 1 :]:
            first, last = group[0].first, group[-1].last
            end_s = self._when(last)
            passed = self._reached and (ended if end_s is None else end_s == self._when(first))
            if span.first >= last and not passed:
                break
            group.append(span)
        return group

    def _when(self, text_token: int) -> float | None:
        place = bisect_left(self._reached, text_token, key=lambda one: one[0])
        return self._reached[place][1] if place < len(self._reached) else None

    def _heard(self, start_s: float, end_s: float, first: bool) -> tuple[float, float]:
        """Move the start to the first sound after a pause, and the end to the last sound before a pause."""
        loud = self._loud()
        start, end = round(start_s / FRAME_S), min(round(end_s / FRAME_S), len(loud))
        begins = self._sound_after_pause(loud, start, first)
        if begins is not None:
            start_s = begins * FRAME_S
        while end > start + 1 and not loud[end - 1]:
            end -= 1
        start_s = min(max(self._after_s, start_s), self._seconds)
        return start_s, min(max(start_s, end * FRAME_S), self._seconds)

    @staticmethod
    def _sound_after_pause(loud: NDArray[np.bool_], start: int, first: bool) -> int | None:
        """Return the frame where a word begins after a pause; None if there is no pause near `start`, the frame where
        the word begins according to attention. first: the word is the first of its segment."""
        pause = 1 if first else _PAUSE_FRAMES  # shorter silences are closures of plosives
        low, high = max(0, start - _EARLY_FRAMES), min(start + (_FIRST_FRAMES if first else _LATE_FRAMES), len(loud))
        begins = [at for at in range(low, high) if loud[at] and not loud[max(0, at - pause) : at].any()]
        return min(begins, key=lambda at: abs(at - start)) if begins else None

    def visits(self, span: WordSpan) -> bool:
        """Return whether the speech has reached a text token of the word."""
        reached = self._when(span.first), self._when(span.last)
        return reached[0] is not None and (reached[1] is None or reached[0] < reached[1])

    @property
    def pause_s(self) -> float:
        """The longest silence between two sounds of the segment, in seconds."""
        sounding = np.flatnonzero(self._loud())
        return float(np.diff(sounding).max() - 1) * FRAME_S if len(sounding) > 1 else 0.0

    def _loud(self) -> NDArray[np.bool_]:
        levels = np.array(self._levels)
        return np.asarray(levels > _QUIET * levels.max(initial=0.0))

    def _shared_out(self, first: int, last: int) -> tuple[float, float]:
        """Estimate the times of these text tokens from their positions, without silence at the segment's ends."""
        sounding = np.flatnonzero(self._loud())
        low, high = (sounding[0], sounding[-1] + 1) if len(sounding) else (0, len(self._levels))
        begin, end = self.words[0].first, self.words[-1].last
        times = [(low + (high - low) * (at - begin) / max(1, end - begin)) * FRAME_S for at in (first, last)]
        return min(times[0], self._seconds), min(times[1], self._seconds)


class WordTimer:
    """Finds the times of the words in all segments of a request."""

    def __init__(self) -> None:
        self.segments: list[SegmentTimer] = []
        self.words: list[Word] = []
        """The words that `add` has returned so far."""
        self._seconds = 0.0

    def plan(self, segment: int, words: Sequence[WordSpan]) -> None:
        """Append these words to the segment."""
        while len(self.segments) <= segment:
            self.segments.append(SegmentTimer())
        self.segments[segment].words += words

    def add(self, text: str, chunk: AudioChunk, ended: bool) -> tuple[Word, ...]:
        """Take the next chunk, and return the words that end in it; for the arguments see `SegmentTimer.add`."""
        if chunk.segment >= len(self.segments):
            return ()
        timer = self.segments[chunk.segment]
        if not timer._seconds:
            timer.begin_s = self._seconds
        self._seconds += chunk.duration_s
        found = timer.add(text, chunk, ended)
        self.words += found
        return found
