"""Normalised text → segments that the language model speaks well, each with the characters of the text that it speaks.

wetext normalises a text as a whole, so the characters are found by alignment: words, numbers, marks and Chinese or
Japanese characters of the text are matched with those of the segments, in order. Most stay as they are; numbers, dates,
units and abbreviations are written in words by the rules, and match nothing. The end of a segment is then known to lie
between two matched tokens of the text, which mostly are neighbours; if they are not, the marks between them decide,
then the spaces, then proportion.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import regex

from vivavoce.service.text.reading import Language

_SENTENCE_MARKS: dict[Language, str] = {"zh": "。？！；：、.?!;", "en": ".?!;:"}
_COMMAS = "，,"
_CLOSING_QUOTES = '"”'
_FINAL_MARK: dict[Language, str] = {"zh": "。", "en": "."}

_AFTER_COMMA = regex.compile(r"[，、]|,(?=\s)")
_SPACE = regex.compile(r"\s+")
# what is not to be torn: a tag, or a character with its combining marks
_ATOM = regex.compile(r"<\|[^|<>]{1,40}\|>|\[[\w-]{1,40}\]|</?\w{1,40}>|\X")

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
_OPENING = regex.compile(r"""["'*_\p{Ps}\p{Pi}]+\Z""")
_RUN = 4
"""Equal tokens in a row that show that two texts, which went apart, are together again."""
_FIRST_REACH = 32


def split_paragraph(
    text: str,
    length: Callable[[str], int],
    lang: Language,
    *,
    token_max_n: int = 80,
    token_min_n: int = 60,
    merge_len: int = 20,
    comma_split: bool = False,
) -> list[str]:
    """Split text at its marks and join the sentences up to a length, as the official front end does.

    `length` measures text (CosyVoice2: characters for zh, tokens for en). A piece is closed when the next sentence
    would take it past `token_max_n` and it has more than `token_min_n` already, so one long sentence stays whole.
    A last piece shorter than `merge_len` joins the one before. Text without a final mark gets one. Text of marks
    alone, and empty text, give no piece.
    """
    marks = _SENTENCE_MARKS[lang] + (_COMMAS if comma_split else "")
    if not text:
        return []
    if text[-1] not in marks:
        text += _FINAL_MARK[lang]
    pieces: list[str] = []
    current, current_length = "", 0
    for sentence in _sentences(text, marks):
        joined = current + sentence
        joined_length = length(joined)  # each is measured once, for measuring English means tokenising
        if joined_length > token_max_n and current_length > token_min_n:
            pieces.append(current)
            joined, joined_length = sentence, length(sentence)
        current, current_length = joined, joined_length
    if current:
        pieces.append(current)
    if len(pieces) > 1 and length(pieces[-1]) < merge_len:
        pieces[-2:] = [pieces[-2] + pieces[-1]]
    return pieces


def _sentences(text: str, marks: str) -> list[str]:
    """Cut after every mark; a mark with nothing before it goes, a closing quote right after a mark stays with it.

    A closing quote after a mark at the very start has no sentence to join (the official code fails there); it opens
    the first one.
    """
    sentences: list[str] = []
    start = 0
    for at, character in enumerate(text):
        if character not in marks:
            continue
        if at > start:
            sentences.append(text[start : at + 1])
        start = at + 1
        if sentences and start < len(text) and text[start] in _CLOSING_QUOTES:
            sentences[-1] += text[start]
            start += 1
    return sentences


def cut_long(text: str, length: Callable[[str], int], limit: int) -> list[str]:
    """Halve text, and its halves, until every piece has `length` of at most `limit`; shorter text is returned whole.

    Each cut is made near the middle, after a comma if there is one there, else after white space, else between two
    characters; tags such as `[laughter]` are not torn. The pieces joined are the text. A single character is never
    cut, whatever its length.
    """
    if len(text) < 2 or length(text) <= limit:
        return [text]
    middle = _cut_near_middle(text)
    return [*cut_long(text[:middle], length, limit), *cut_long(text[middle:], length, limit)]


def _cut_near_middle(text: str) -> int:
    """The best place to cut: a breath in the middle half of the text, else the gap nearest the middle."""
    size = len(text)
    for pattern, margin in ((_AFTER_COMMA, size // 4), (_SPACE, size // 4), (_ATOM, 0)):
        ends = (match.end() for match in pattern.finditer(text))
        inner = [end for end in ends if max(margin, 1) <= end <= size - max(margin, 1)]
        if inner:
            return min(inner, key=lambda end: abs(2 * end - size))
    return size // 2


class TextSegment(NamedTuple):
    """A segment as the model is given it (spoken); it speaks the characters start … end − 1 of the text."""

    spoken: str
    start: int
    end: int


def find_spans(text: str, segments: Sequence[str]) -> list[TextSegment]:
    """Each segment with the characters of `text` that it speaks: contiguous ranges, in order, from 0 to its end.

    text: as it was given; segments: what `TextFrontEnd.segments` made of it, one or more. Closing quotes and white
    space after a segment count to it. A range is empty where several segments speak one character.
    """
    cuts = [0]
    if len(segments) > 1:
        aligned = _Aligned(text, "".join(segments))
        for end in accumulate(len(segment) for segment in segments[:-1]):
            cuts.append(max(cuts[-1], aligned.cut(end)))
    return [TextSegment(*found) for found in zip(segments, cuts, [*cuts[1:], len(text)], strict=True)]


class _Aligned:
    """A text and what is spoken of it, token by token."""

    def __init__(self, text: str, said: str) -> None:
        self._text = text
        self._tokens, self._said = list(_TOKEN.finditer(text)), list(_TOKEN.finditer(said))
        found = matches(_keys(self._tokens), _keys(self._said))
        # Characters start … end − 1 of both where they match, between their beginnings and their ends.
        self._pairs = [
            (0, 0, 0, 0),
            *(self._tokens[at].span() + self._said[beside].span() for at, beside in found),
            (len(text), len(text), len(said), len(said)),
        ]

    def cut(self, said: int) -> int:
        """Where in the text a segment ends that ends at this character of what is spoken."""
        following = bisect_left(self._pairs, said, lo=1, key=lambda pair: pair[2])
        (before, start, said_before, said_start), (end, _, said_end, _) = self._pairs[following - 1 : following + 1]
        if said_start > said:  # a long word was torn
            return min(before + said - said_before, start)
        last = bisect_left(self._said, said, key=_start) - 1
        if last < 0 or self._said[last].end() <= said_start:
            return self._past_closing(start, end)
        # The last token of the segment matches nothing.
        wanted = end
        if last + 1 < len(self._said) and self._said[last + 1].start() < said_end:  # nor does the next one
            wanted = start + round((said - said_start) / (said_end - said_start) * (end - start))
        start, end = max(start, wanted - _REACH), min(end, wanted + _REACH)
        inside = self._tokens[bisect_left(self._tokens, start, key=_start) : bisect_left(self._tokens, end, key=_start)]
        marks = [self._past_closing(one.end(), end) for one in inside if _key(one[0]) in _SAME_MARKS]
        spaces = [match.end() for match in _SPACE.finditer(self._text, start, end)]
        places = (marks or spaces) if _key(self._said[last][0]) in _SAME_MARKS else (spaces or marks)
        if places:
            return min(places, key=lambda place: abs(place - wanted))
        opening = _OPENING.search(self._text, start, end)
        return min(wanted, opening.start()) if opening else wanted

    def _past_closing(self, start: int, end: int) -> int:
        """Past what closes a sentence, and the white space after it."""
        text = self._text
        past = _CLOSING.match(text, start).end()
        if text.startswith('"', past) and text.count('"', text.rfind("\n", 0, past) + 1, past) % 2:
            past = _CLOSING.match(text, past + 1).end()  # as in Chinese, where no space follows
        return min(past, end)


def _start(token: regex.Match[str]) -> int:
    return token.start()


def _keys(tokens: list[regex.Match[str]]) -> list[str]:
    words = [token[0] for token in tokens]
    keys = {word: _key(word) for word in set(words)}
    return [keys[word] for word in words]


def _key(token: str) -> str:
    """What a token is compared by: marks by their first character, words without regard to case and width."""
    if token[0] in _MARKS:
        return token[0].translate(_SAME_MARK)
    return unicodedata.normalize("NFKC", token).casefold()


def matches(one: Sequence[str], other: Sequence[str]) -> list[tuple[int, int]]:
    """Places of equal tokens in both, each in ascending order.

    The texts are walked side by side. Where they differ, they go on where the nearest run of equal tokens begins: a
    run further away cannot be meant, as long as a rewriting keeps the order and brings no such run of its own. What
    lies between is matched by its longest common subsequence. Work and memory grow with the length of the texts, and
    with the square of what was rewritten between two runs.
    """
    found: list[tuple[int, int]] = []
    at, beside = 0, 0
    while at < len(one) and beside < len(other):
        if one[at] == other[beside]:
            found.append((at, beside))
            at, beside = at + 1, beside + 1
            continue
        skip, skip_beside = _to_next_run(one, other, at, beside)
        between = _longest_common(one[at : at + skip], other[beside : beside + skip_beside])
        found += [(at + place, beside + place_beside) for place, place_beside in between]
        at, beside = at + skip, beside + skip_beside
    return found


def _to_next_run(one: Sequence[str], other: Sequence[str], at: int, beside: int) -> tuple[int, int]:
    """Tokens of each before the nearest run of equal ones, nearest by their sum; all, where there is none."""
    left, left_beside = len(one) - at, len(other) - beside
    reach = _FIRST_REACH
    while True:
        run = _nearest_run(one[at : at + reach + _RUN], other[beside : beside + reach + _RUN])
        # Tokens out of reach may begin a run only if they are further away than it.
        if run is not None and sum(run) <= reach:
            return run
        if reach >= max(left, left_beside):
            return run or (left, left_beside)
        reach *= 2


def _nearest_run(one: Sequence[str], other: Sequence[str]) -> tuple[int, int] | None:
    places: dict[tuple[str, ...], int] = {}
    for place, run in _runs(one):
        places.setdefault(run, place)
    nearest: tuple[int, int] | None = None
    for beside, run in _runs(other):
        if nearest is not None and beside > sum(nearest):
            break
        found = places.get(run)
        if found is not None and (nearest is None or found + beside < sum(nearest)):
            nearest = found, beside
    return nearest


def _runs(tokens: Sequence[str]) -> Iterator[tuple[int, tuple[str, ...]]]:
    return enumerate(zip(*(tokens[start:] for start in range(_RUN)), strict=False))


def _longest_common(one: Sequence[str], other: Sequence[str]) -> list[tuple[int, int]]:
    """Places of a longest common subsequence, by Hyyrö's bit-parallel rows ("Bit-parallel LCS-length computation
    revisited", 2004): bit i of row j is 0 where the first i + 1 tokens share one more with the first j + 1 than the
    first i do.
    """
    places: dict[str, int] = {}
    for place, token in enumerate(one):
        places[token] = places.get(token, 0) | 1 << place
    every = row = (1 << len(one)) - 1
    rows = []
    for token in other:
        hits = row & places.get(token, 0)
        row = ((row + hits) | (row - hits)) & every
        rows.append(row)
    found: list[tuple[int, int]] = []
    place, beside = len(one) - 1, len(rows) - 1
    while place >= 0 and beside >= 0:
        if rows[beside] >> place & 1:
            place -= 1
        elif beside and not rows[beside - 1] >> place & 1:
            beside -= 1
        else:
            found.append((place, beside))
            place, beside = place - 1, beside - 1
    return found[::-1]
