"""What is compared when a transcript is scored: the words of a text, or its characters."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

import regex

Spell = Callable[[str], str]
"""Writes a text as it is spoken: "11:42" → "eleven forty two"."""

_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}]")
_WORD = regex.compile(r"[\p{L}\p{M}\p{N}]+(?:'[\p{L}\p{M}\p{N}]+)*")
_APOSTROPHES = str.maketrans("’‘ʼ", "'''")


def as_written(text: str) -> str:
    """The `Spell` that changes nothing."""
    return text


def is_unspaced(text: str) -> bool:
    """Whether a text holds Chinese or Japanese characters; such a text is scored by characters."""
    return _UNSPACED.search(text) is not None


def words(text: str) -> list[str]:
    """The words in lower case. Hyphens separate; other punctuation falls away, but for apostrophes inside a word."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).translate(_APOSTROPHES).lower())


def characters(text: str) -> list[str]:
    """As `words`, and every Chinese or Japanese character for itself; a Latin word between them stays whole."""
    return words(_UNSPACED.sub(r" \g<0> ", unicodedata.normalize("NFKC", text)))


def split_like(text: str) -> Callable[[str], list[str]]:
    """What splits a text, and what was heard of it, into what is compared: `characters` if it `is_unspaced`."""
    return characters if is_unspaced(text) else words


def num_characters(text: str) -> int:
    """Letters, digits and Chinese characters of a text; white space and punctuation take no time to say."""
    return sum(len(word) for word in words(text))
