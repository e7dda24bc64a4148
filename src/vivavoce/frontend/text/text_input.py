"""The text of a request before it is read: how it is to be read, and a filter that removes what cannot be spoken."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import regex

from vivavoce.errors import InvalidRequest
from vivavoce_textnorm import Language, check_length, with_country

Normalization = Literal["official", "natural", "off"]
"""The rules that read a text: the official front end's, our own (natural), or none (off)."""

Emojis = Literal["silent", "named"]
"""Emojis by natural rules: silent, or named by their Unicode names, in English."""
Code = Literal["read", "silent"]
Reasoning = Literal["silent", "read"]
"""The reasoning of a language model in its text."""

LANGUAGE_NAMES: Mapping[Language, str] = {
    **{"zh": "Chinese", "en": "English", "ja": "Japanese", "ko": "Korean", "de": "German"},
    **{"es": "Spanish", "fr": "French", "it": "Italian", "ru": "Russian"},
}
_LANGUAGES: Mapping[str, Language | None] = {
    **{written: code for code, name in LANGUAGE_NAMES.items() for written in (code, name.lower())},
    **{"auto": None, "mandarin": "zh", "cantonese": "zh", "yue": "zh", "cmn": "zh", "zho": "zh", "chi": "zh"},
    **{"eng": "en", "jpn": "ja", "kor": "ko", "deu": "de", "ger": "de", "spa": "es", "fra": "fr", "fre": "fr"},
    **{"ita": "it", "rus": "ru"},
}

_SUSPECT = re.compile("[<`\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ud800-\udfff\ufffd]")  # a quick test
_TAG = "(?:think(?:ing)?|reasoning)"
_LEFT_OUT = regex.compile(
    "(?P<pair>[\ud800-\udbff][\udc00-\udfff])"
    r"|(?P<lost>\x1b\[[\d;?]*[@-~]|[[\p{Cc}\p{Cs}\uFFFD]--\s])"
    rf"|(?<!`)<(?P<opened>{_TAG})(?:\s[^<>]{{0,200}})?>|</(?P<closed>{_TAG})\s{{0,20}}>",
    regex.V1 | regex.IGNORECASE,
)
# The end of a piece that may become a match of `_LEFT_OUT` with the next piece.
_UNFINISHED = regex.compile(
    "(?:[\ud800-\udbff]|"
    rf"\x1b(?:\[[\d;?]{{0,20}})?|`|`?<(?:/?[a-z]{{0,9}}|{_TAG}\s[^<>]{{0,200}}|/{_TAG}\s{{0,20}}))\Z",
    regex.IGNORECASE,
)
_MOST_HELD = 240


def parse_language(name: str) -> str | None:
    """The language of a code (en, eng), a tag (en-US, zh_CN) or an English name; None for "auto".

    English of a country that writes the day first is `DAY_FIRST`; any other language is a code.
    """
    known = str(name).strip().lower()
    tag = known.replace("_", "-")
    for written in (known, tag.partition("-")[0]):
        if written in _LANGUAGES:
            found = _LANGUAGES[written]
            return found and with_country(found, tag)
    remedy = "choose one, or leave it out to have it told from the text"
    known = f"{', '.join(LANGUAGE_NAMES)}, yue (taken for zh), auto"
    raise InvalidRequest(f"language: {name!r} is not one of {known}; {remedy}")


def one_of(names: tuple[Any, ...], field: str, name: str, remedy: str = "choose one") -> Any:
    if name not in names:
        raise InvalidRequest(f"{field}: {name!r} is not one of {', '.join(names)}; {remedy}")
    return name


def readable(text: str) -> str:
    """A text that UTF-8 can write: halves of surrogate pairs are joined, a lone one becomes U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class TextFilter:
    """Filters the pieces of one text, which may be cut anywhere.

    The halves of a UTF-16 surrogate pair become one character. A lone half is dropped, and so are U+FFFD (the mark of
    lost characters), control characters other than white space, and a terminal's colours. The reasoning of a language
    model, from `<think>`, `<thinking>` or `<reasoning>` to its closing tag or the text's end, becomes one space; if
    reasoning is read, only its tags are left out.
    """

    def __init__(self, reasoning: Reasoning = "silent") -> None:
        self._is_read = reasoning == "read"
        self._held = self._open = ""
        self._moved = [(0, 0)]  # (place in the kept text, distance to the same character's place in the text)
        self._kept = 0
        self.taken = 0
        """The number of characters that have gone through the filter so far."""

    def add(self, piece: str, is_last: bool = False) -> str:
        """Return the next kept text, as far as it is certain. InvalidText: the piece is too long, or not a text."""
        check_length(piece)
        if not (self._held or self._open or _SUSPECT.search(piece)):
            self.taken, self._kept = self.taken + len(piece), self._kept + len(piece)
            return piece
        text, self._held = self._held + piece, ""
        if not is_last and (unfinished := _UNFINISHED.search(text, max(0, len(text) - _MOST_HELD))):
            text, self._held = text[: unfinished.start()], unfinished[0]
        kept, at = "", 0
        for found in _LEFT_OUT.finditer(text):
            closes = (found["closed"] or "").lower() == self._open
            if self._open and not closes:
                continue
            kept += "" if self._open else text[at : found.start()]
            at, self._open = found.end(), ""
            if found["opened"] and not self._is_read:
                self._open = found["opened"].lower()
            instead = readable(found[0]) if found["pair"] else ""
            if found["opened"]:
                instead = " "
            kept += instead
            self._moved.append((self._kept + len(kept), self.taken + at - self._kept - len(kept)))
        kept += "" if self._open else text[at:]
        self.taken, self._kept = self.taken + len(text), self._kept + len(kept)
        return kept

    @property
    def is_within_reasoning(self) -> bool:
        """Whether the text so far ends within reasoning that is left out."""
        return self._open != ""

    def original(self, at: int) -> int:
        """The place in the text of a character of the kept text; the ends correspond."""
        if at >= self._kept:
            return self.taken
        return at + self._moved[bisect_right(self._moved, at, key=lambda one: one[0]) - 1][1]

    def stream(self, pieces: Iterable[str]) -> Iterator[str]:
        for piece in pieces:
            yield self.add(piece)
        yield self.add("", is_last=True)
