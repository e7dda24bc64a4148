"""Which characters of a text each of its segments speaks, though the segments were normalised.

Words, numbers, marks and Chinese or Japanese characters of the text are matched with those of the segments, in order
(`alignment.py`). Most stay as they are; numbers, dates, units and abbreviations are written in words by the rules, and
match nothing. The end of a segment is then known to lie between two matched tokens of the text, which mostly are
neighbours; if they are not, the marks between them decide, then the spaces, then proportion.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import regex

from vivavoce.service.text.alignment import matches

_CJK = r"\p{Han}\p{Hiragana}\p{Katakana}ー"
_MARKS = ".?!;:,。？！；：，、．｡…"
# A number keeps its inner marks to itself; a run of marks ends no more than a single one does.
_TOKEN = regex.compile(
    rf"[{_CJK}]|[[\p{{L}}\p{{M}}]--[{_CJK}]]+|\p{{N}}+(?:[.,:/-]\p{{N}}+)*+|[{_MARKS}]+", regex.VERSION1
)
_SAME_MARK = str.maketrans("。？！；：，、．｡…", ".?!;:,,...")
_SAME_MARKS = frozenset(".?!;:,")

_REACH = 300
"""Characters around the likely end of a segment, in a text that was rewritten there, in which a better one is looked
for."""
# What opens and closes alike closes here if nothing follows it.
_CLOSING = regex.compile(rf"""(?:[{_MARKS}\p{{Pe}}\p{{Pf}}]|["'*_]+(?=[{_MARKS}\p{{Pe}}\p{{Pf}}\s]|\Z))*+\s*""")
_SPACE = regex.compile(r"\s+")
_OPENING = regex.compile(r"""["'*_\p{Ps}\p{Pi}]+\Z""")


@dataclass(frozen=True)
class TextSegment:
    """A segment of a text; spoken: as the model is given it; text: as it was written, from character `start` on."""

    spoken: str
    text: str
    start: int

    @property
    def end(self) -> int:
        """The character of the input after its last one."""
        return self.start + len(self.text)


def locate(text: str, segments: Sequence[str], start: int = 0) -> list[TextSegment]:
    """The segments of a text that begins at character `start` of the input; see `find_spans`."""
    spans = find_spans(text, segments)
    return [
        TextSegment(spoken, text[begin:end], start + begin)
        for spoken, (begin, end) in zip(segments, spans, strict=True)
    ]


def find_spans(text: str, segments: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """The characters of `text` that each segment speaks, as half-open ranges: contiguous, in order, from 0 to its end.

    text: as it was given; segments: what `TextFrontEnd.segments` made of it, one or more. Closing quotes and white
    space after a segment count to it. A range is empty where several segments speak one character.
    """
    if not segments:
        raise ValueError("segments: there is none; a text that can be spoken has at least one")
    if len(segments) == 1:
        return ((0, len(text)),)
    aligned = _Aligned(text, "".join(segments))
    cuts = [0]
    for end in accumulate(len(segment) for segment in segments[:-1]):
        cuts.append(max(cuts[-1], aligned.cut(end)))
    return tuple(pairwise([*cuts, len(text)]))


class _Tokens:
    """The tokens of a text: how they are compared, and their ranges of characters."""

    def __init__(self, text: str) -> None:
        found = [match.span() for match in _TOKEN.finditer(text)]
        words = [text[start:end] for start, end in found]
        keys = {word: _key(word) for word in dict.fromkeys(words)}
        self.keys = [keys[word] for word in words]
        self.starts = [start for start, _ in found]
        self.ends = [end for _, end in found]


@dataclass(frozen=True)
class _Gap:
    """What lies between a matched token and the next one: characters of the text, and of what is spoken."""

    start: int
    end: int
    said_start: int
    said_end: int


class _Aligned:
    """A text and what is spoken of it, token by token."""

    def __init__(self, text: str, said: str) -> None:
        self._text, self._said_size = text, len(said)
        self._tokens, self._said = _Tokens(text), _Tokens(said)
        self._pairs = matches(self._tokens.keys, self._said.keys)
        self._said_starts = [self._said.starts[beside] for _, beside in self._pairs]

    def cut(self, end: int) -> int:
        """Where in the text a segment ends that ends at `end` in what is spoken."""
        following = bisect_left(self._said_starts, end)
        if following:
            token, beside = self._pairs[following - 1]
            if self._said.ends[beside] > end:  # a long word was torn
                return min(self._tokens.starts[token] + end - self._said.starts[beside], self._tokens.ends[token])
        gap = self._gap(following)
        last = bisect_left(self._said.starts, end) - 1
        if last < 0 or self._said.ends[last] <= gap.said_start:
            return self._past_closing(gap.start, gap.end)
        return self._cut_between(gap, last, end)

    def _gap(self, following: int) -> _Gap:
        """What lies before the matched pair of this number."""
        start = said_start = 0
        end, said_end = len(self._text), self._said_size
        if following:
            token, beside = self._pairs[following - 1]
            start, said_start = self._tokens.ends[token], self._said.ends[beside]
        if following < len(self._pairs):
            token, beside = self._pairs[following]
            end, said_end = self._tokens.starts[token], self._said.starts[beside]
        return _Gap(start, end, said_start, said_end)

    def _cut_between(self, gap: _Gap, last: int, said_end: int) -> int:
        """The same where the last token of the segment, of this number, matches nothing."""
        following = last + 1
        if following == len(self._said.starts) or self._said.starts[following] >= gap.said_end:
            wanted = gap.end  # the next segment begins with a matched token
        else:
            share = (said_end - gap.said_start) / (gap.said_end - gap.said_start)
            wanted = gap.start + round(share * (gap.end - gap.start))
        start, end = max(gap.start, wanted - _REACH), min(gap.end, wanted + _REACH)
        marks, spaces = self._after_marks(start, end), self._after_spaces(start, end)
        places = (marks or spaces) if self._said.keys[last] in _SAME_MARKS else (spaces or marks)
        if places:
            return min(places, key=lambda place: abs(place - wanted))
        opening = _OPENING.search(self._text, start, end)
        return min(wanted, opening.start()) if opening else wanted

    def _after_marks(self, start: int, end: int) -> list[int]:
        tokens = self._tokens
        inside = range(bisect_left(tokens.starts, start), bisect_left(tokens.starts, end))
        return [self._past_closing(tokens.ends[one], end) for one in inside if tokens.keys[one] in _SAME_MARKS]

    def _after_spaces(self, start: int, end: int) -> list[int]:
        return [match.end() for match in _SPACE.finditer(self._text, start, end)]

    def _past_closing(self, start: int, end: int) -> int:
        """Past what closes a sentence, and the white space after it."""
        text = self._text
        past = _end(_CLOSING, text, start)
        if text.startswith('"', past) and text.count('"', text.rfind("\n", 0, past) + 1, past) % 2:
            past = _end(_CLOSING, text, past + 1)  # as in Chinese, where no space follows
        return min(past, end)


def _end(pattern: regex.Pattern[str], text: str, start: int) -> int:
    """Where a pattern that may match nothing ends."""
    match = pattern.match(text, start)
    return match.end() if match else start


def _key(token: str) -> str:
    """What a token is compared by: marks by their first character, words without regard to case and width."""
    if token[0] in _MARKS:
        return token[0].translate(_SAME_MARK)
    return unicodedata.normalize("NFKC", token).casefold()
