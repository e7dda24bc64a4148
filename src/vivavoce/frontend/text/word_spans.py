"""Finds the written words of a text, and the text ids that speak each word."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import regex

from vivavoce.frontend.text.segmentation import matches, tokens_of

_CJK = r"\p{Han}\p{Hiragana}\p{Katakana}ー"
# A word ends at white space; each Chinese or Japanese character is a word, with the punctuation after it.
_WORD = regex.compile(rf"[{_CJK}]\p{{P}}*|[^\s{_CJK}]+")
_SPOKEN = regex.compile(r"[\p{L}\p{N}]")
_READ = regex.compile(r"[\p{L}\p{N}\p{Sc}\p{Sm}&@#%*/]")
"""Characters that normalisation may read aloud."""
_AT_MARK = 8
_GAP = regex.compile(r"[\s\p{P}]+")


class WordSpan(NamedTuple):
    """A word: characters start … end − 1 of the input, spoken by the text ids first … last − 1 of its segment.

    The ids of punctuation after the word are excluded.
    """

    start: int
    end: int
    first: int
    last: int


def words_of(text: str, spoken: str, places: Sequence[tuple[int, int]], start: int = 0) -> tuple[WordSpan, ...]:
    """The words of a segment's text that are spoken, in order; silent words are left out.

    spoken: the normalised text. places: range of characters for each id of `spoken`. start: position of the text's
    first character in the input.
    """
    written = [found.span() for found in _WORD.finditer(text)]
    ids = [_without_space(spoken, place) for place in places]
    spans = []
    for (begin, end), (said, said_end) in zip(written, _shares(text, spoken, written), strict=True):
        letters = [found.start() for found in _SPOKEN.finditer(spoken, said, said_end)]
        if not letters:
            continue
        own = [number for number, (low, high) in enumerate(ids) if low <= letters[-1] and high > letters[0]]
        if own:
            spans.append(WordSpan(start + begin, start + end, own[0], own[-1] + 1))
    return tuple(spans)


def _without_space(text: str, place: tuple[int, int]) -> tuple[int, int]:
    low, high = place
    while low < high and text[low].isspace():
        low += 1
    return low, high


def _shares(text: str, spoken: str, written: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The range of `spoken` that speaks each written word.

    Words that both texts contain are aligned. Written words between two aligned words, such as numbers, share the
    spoken text between them in proportion to the lengths of the written words.
    """
    own, said = tokens_of(text), tokens_of(spoken)
    pairs = matches([key for _, key in own], [key for _, key in said])
    anchors: list[tuple[int, int] | None] = [None] * len(written)
    word = 0
    for place, beside in pairs:
        (at, _), _ = own[place]
        while written[word][1] <= at:
            word += 1
        (low, high), before = said[beside][0], anchors[word]
        if _SPOKEN.search(spoken, low, high):
            anchors[word] = (before[0] if before else low), high
    shares, past = list[tuple[int, int]](), 0
    waiting: list[int] = []
    for number, anchor in enumerate([*anchors, (len(spoken), len(spoken))]):
        if anchor is None:
            waiting.append(number)
            continue
        if waiting:
            sizes = [len(_READ.findall(text, *written[one])) for one in waiting]
            if not any(sizes) and shares:
                shares[-1] = shares[-1][0], anchor[0]
                past = anchor[0]
            shares += _divided(spoken, past, anchor[0], sizes)
        elif shares:  # "dollars", spoken after "million" for "$2 million", belongs to "million"
            shares[-1] = shares[-1][0], max(shares[-1][1], anchor[0])
        waiting = []
        if number < len(written):
            shares.append(anchor)
            past = anchor[1]
    return shares


def _divided(spoken: str, low: int, high: int, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Divide a range of `spoken` between words, in proportion to these sizes, preferably at punctuation nearby."""
    gaps = [(low, 0), *((found.end(), _AT_MARK * (len(found[0]) > 1)) for found in _GAP.finditer(spoken, low, high))]
    ends, total, past = [low], max(1, sum(sizes)), 0
    for size in sizes:
        past += size
        wanted = low + (high - low) * past / total
        best = high if past == total else min(gaps, key=lambda gap: abs(gap[0] - wanted) - gap[1])[0]
        ends.append(max(best, ends[-1]))
    return list(pairwise(ends))
