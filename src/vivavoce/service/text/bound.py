"""A last bound on the length of a piece, for text that splitting at marks leaves too long."""

from __future__ import annotations

from collections.abc import Callable

import regex

_AFTER_COMMA = regex.compile(r"[，、]|,(?=\s)")
_AFTER_SPACE = regex.compile(r"\s+")
# what is not to be torn: a tag, or a character with its combining marks
_ATOM = regex.compile(r"<\|[^|<>]{1,40}\|>|\[[\w-]{1,40}\]|</?\w{1,40}>|\X")


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
    for pattern, margin in ((_AFTER_COMMA, size // 4), (_AFTER_SPACE, size // 4), (_ATOM, 0)):
        ends = (match.end() for match in pattern.finditer(text))
        inner = [end for end in ends if max(margin, 1) <= end <= size - max(margin, 1)]
        if inner:
            return min(inner, key=lambda end: abs(2 * end - size))
    return size // 2
