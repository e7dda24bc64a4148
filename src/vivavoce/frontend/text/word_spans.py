"""Finds the written words of a text, and the text ids that speak each word."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import regex

from vivavoce.frontend.text.segmentation import matches, tokens_of
from vivavoce_textnorm import without_markup

_CJK = r"\p{Han}\p{Hiragana}\p{Katakana}ー"
# A word ends at white space; each Chinese or Japanese character is a word, with the punctuation after it.
_WORD = regex.compile(rf"[{_CJK}]\p{{P}}*|[^\s{_CJK}]+")
_SPOKEN = regex.compile(r"[\p{L}\p{N}]")
_READ = regex.compile(r"[\p{L}\p{N}\p{Sc}\p{Sm}&@#%*/§°©®™№℃℉㎡㈱㈲㈜〒--|]", regex.V1)
"""Characters that normalisation may read aloud."""
_AT_MARK = 8
_SAID = regex.compile(rf"[{_CJK}]|[^\s\p{{P}}{_CJK}]+")
_Range = tuple[int, int]


class WordSpan(NamedTuple):
    """A word: characters start … end − 1 of the input, which the text ids first … last − 1 of its segment speak.

    The ids of punctuation after the word are excluded.
    """

    start: int
    end: int
    first: int
    last: int


def words_of(text: str, spoken: str, places: Sequence[_Range], start: int = 0) -> tuple[WordSpan, ...]:
    """Find the words of a segment's text that are spoken, in order; silent words are left out.

    text: the written text. spoken: the normalised text. places: range of characters for each id of `spoken`. start:
    position of the text's first character in the input."""
    written = [found.span() for found in _WORD.finditer(text)]
    ids = [(high - len(spoken[low:high].lstrip()), high) for low, high in places]
    spans = []
    for (begin, end), (said, said_end) in zip(written, _shares(text, spoken, written), strict=True):
        letters = [found.start() for found in _SPOKEN.finditer(spoken, said, said_end)]
        own = [number for number, (low, high) in enumerate(ids) if letters and low <= letters[-1] and high > letters[0]]
        if own:
            spans.append(WordSpan(start + begin, start + end, own[0], own[-1] + 1))
    return tuple(spans)


def _shares(text: str, spoken: str, written: Sequence[_Range]) -> list[_Range]:
    """Return, for each written word, the range of characters of `spoken` that speaks the word.

    Words that both texts contain are aligned. The written words between two aligned words, such as numbers, divide the
    spoken text there in proportion to their lengths.
    """
    plain, anchors = without_markup(text), list[_Range | None]([None] * len(written))
    for (begin, _), (low, high) in _aligned(text, plain, spoken):
        if _SPOKEN.search(spoken, low, high):
            word = bisect_right(written, begin, key=lambda one: one[1])
            anchors[word] = (anchors[word] or (low, high))[0], high
    shares, past, waiting = list[_Range](), 0, list[int]()
    for number, anchor in enumerate([*anchors, (len(spoken), len(spoken))]):
        if anchor is None:
            waiting.append(number)
            continue
        words, waiting = [plain[slice(*written[one])] for one in waiting], []
        if shares and not any(map(_READ.search, words)):  # "dollars" in "two million dollars" belongs to "million"
            past = max(shares[-1][1], anchor[0])
            shares[-1] = shares[-1][0], past
        shares += _divided(spoken, past, anchor[0], words)
        if number < len(written):
            shares.append(anchor)
            past = anchor[1]
    return shares


def _aligned(text: str, plain: str, spoken: str) -> Iterator[tuple[_Range, _Range]]:
    """Match the tokens of both texts, so that spoken words are left for each written word without a match.

    In "e.g. for lunch", spoken as "for example for lunch", the written "for" must match the second spoken "for":
    "e.g." needs words, too. plain: `text` without markup. Yields pairs of ranges in `text` and in `spoken`."""
    (own, keys), (said, said_keys) = tokens_of(text), tokens_of(spoken)
    pairs, end, said_end = matches(keys, said_keys), 0, 0
    while pairs:
        place, beside = pairs[0]
        words = sum(map(bool, map(_READ.search, plain[end : own[place][0]].split())))
        if words > len(_SAID.findall(spoken, said_end, said[beside][0])):
            later = matches(keys[place:], said_keys[beside + 1 :])
            if len(later) == len(pairs):
                pairs = [(place + one, beside + 1 + other) for one, other in later]
                continue
        yield own[place], said[beside]
        end, said_end = own[place][1], said[beside][1]
        del pairs[0]


def _divided(spoken: str, low: int, high: int, words: Sequence[str]) -> list[_Range]:
    """Divide a range of `spoken` between written words, in proportion to their lengths, preferably at punctuation.

    Each written word gets at least one spoken word. If there are too few spoken words, signs get none; if there are
    still too few, several written words get the same spoken word."""
    said = [found.span() for found in _SAID.finditer(spoken, low, high)]
    read = [one for one in words if _READ.search(one)]
    if len(said) < len(read):
        read = [one for one in words if _SPOKEN.search(one)]
    starts, sizes = [*(start for start, _ in said), high], [len(_READ.findall(one)) for one in read]
    marked = [0, *(_AT_MARK * (after - before > 1) for (_, before), (after, _) in pairwise(said))]
    shares, end, left = list[_Range](), low, len(read)
    for word in words:
        begin = end
        if said and word in read and len(said) < len(read):
            place = (len(read) - left) * len(said) // len(read)
            begin, end, left = starts[place], starts[place + 1], left - 1
        elif word in read:
            left -= 1
            wanted = low + (high - low) * sum(sizes[: len(read) - left]) / sum(sizes)
            places = range(bisect_left(starts, begin) + 1, len(said) - left + 1) if left else ()
            end = starts[min(places, key=lambda at: abs(starts[at] - wanted) - marked[at], default=-1)]
        shares.append((begin, end))
    return shares
