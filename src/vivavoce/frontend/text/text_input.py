"""The text of a request before normalisation: its options, and a filter that removes characters not to be spoken."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import regex

from vivavoce.errors import InvalidRequest
from vivavoce_textnorm import Language, check_length, with_country

Normalization = Literal["official", "natural", "off"]
"""The rules of text normalisation: the official front end's rules, our own (natural), or no rules (off)."""

Emojis = Literal["silent", "named"]
"""Emojis under natural normalisation: left out (silent), or read by their English Unicode names (named)."""
Code = Literal["read", "silent"]
Reasoning = Literal["silent", "read"]
"""Reasoning of a chat model in the text, such as `<think>…</think>`: left out (silent) or spoken (read)."""

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

_SUSPECT = re.compile("[<`\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ud800-\udfff\ufffd]")  # other text stays as it is
_TAG, _CALL = "(?:think(?:ing)?|reasoning)", "(?:tool|function)_calls?"
_LEFT_OUT = regex.compile(
    r"(?P<pair>[\ud800-\udbff][\udc00-\udfff])|(?P<lost>\x1b\[[\d;?]*[@-~]|[[\p{Cc}\p{Cs}\uFFFD]--\s])"
    rf"|(?<!`)<(?P<opened>{_TAG})(?:\s[^<>]{{0,200}})?>|(?<!`)<(?P<opened>{_CALL})>(?= {{0,20}}[{{\[\r\n])"
    rf"|</(?P<closed>{_TAG}|{_CALL})\s{{0,20}}>",
    regex.V1 | regex.IGNORECASE,
)
# Matches the end of a piece if the next piece may complete it to a match of `_LEFT_OUT`.
_UNFINISHED = regex.compile(
    rf"(?:[\ud800-\udbff]|\x1b(?:\[[\d;?]{{0,20}})?|`|`?<(?:/?[a-z_]{{0,14}}|{_TAG}\s[^<>]{{0,200}}"
    rf"|{_CALL}> {{0,20}}|/(?:{_TAG}|{_CALL})\s{{0,20}}))\Z",
    regex.IGNORECASE,
)
_REASONED = regex.compile(r"(?<!\p{Quotation_Mark}|`)</(?i:think(?:ing)?)\s{0,20}>(?:[ \t]*\r?\n\s*\S|\p{Lu})")
_MOST_HELD = 240


def parse_language(name: str) -> str | None:
    """Return the language code for a code (en, eng), a tag (en-US, zh_CN) or an English name; None for "auto".

    English of a country that writes the day before the month gives `DAY_FIRST`. Raises InvalidRequest for other names.
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
    """Make a text valid for UTF-8: a surrogate pair becomes one character, a lone surrogate becomes U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class TextFilter:
    """Filters a text that arrives in pieces, which may be cut at any character.

    A UTF-16 surrogate pair becomes one character. Lone surrogates, U+FFFD (the mark of lost characters), control
    characters other than white space, and terminal colour codes are removed. Reasoning of a chat model, from `<think>`
    or a similar tag to its closing tag or the text's end, becomes one space; with reasoning="read", only its tags do. A
    call of a tool (`<tool_call>{`) always becomes one space. If the whole text comes as one piece, the text before a
    `</think>` without `<think>` is reasoning, too, if the tag ends a line or a capital letter follows at once."""

    def __init__(self, reasoning: Reasoning = "silent") -> None:
        self._is_read = reasoning == "read"
        self._held = self._open = ""
        self._moved = [(0, 0)]  # (position in the filtered text, distance to the position in the original text)
        self._kept = 0
        self.taken = 0
        """The number of characters that have gone through the filter so far."""

    def add(self, piece: str, is_last: bool = False) -> str:
        """Add a piece, and return the filtered text that later pieces cannot change any more; `is_last` returns all.
        Raises InvalidText if the piece is too long or not a string."""
        check_length(piece)
        if not (self._held or self._open or _SUSPECT.search(piece)):
            self.taken, self._kept = self.taken + len(piece), self._kept + len(piece)
            return piece
        is_whole = is_last and not (self.taken or self._held or self._is_read)
        text, self._held = self._held + piece, ""
        if not is_last and (unfinished := _UNFINISHED.search(text, max(0, len(text) - _MOST_HELD))):
            text, self._held = text[: unfinished.start()], unfinished[0]
        kept, at = "", 0
        for found in _LEFT_OUT.finditer(text):
            closes = (found["closed"] or "").lower() == self._open
            if self._open and not closes:
                continue
            kept += "" if self._open else text[at : found.start()]
            is_lone = found["closed"] and not self._open
            if is_whole and is_lone and _REASONED.match(text, found.start()):
                kept = "".join(kept.rpartition("<|endofprompt|>")[:2])
                self._moved = [one for one in self._moved if one[0] <= len(kept)]
            opens = found["opened"] and not (self._is_read and "_" not in found["opened"])
            at, self._open = found.end(), found["opened"].lower() if opens else ""
            kept += " " if found["opened"] or is_lone else readable(found[0]) if found["pair"] else ""
            self._moved.append((self._kept + len(kept), self.taken + at - self._kept - len(kept)))
        kept += "" if self._open else text[at:]
        self.taken, self._kept = self.taken + len(text), self._kept + len(kept)
        return kept

    @property
    def open_tag(self) -> str:
        """The tag of the reasoning or tool call that is not closed yet, and is being removed; "" if there is none."""
        return f"<{self._open}>" if self._open else ""

    def original(self, at: int) -> int:
        """Convert a position in the filtered text to the position in the original text."""
        if at >= self._kept:
            return self.taken
        return at + self._moved[bisect_right(self._moved, at, key=lambda one: one[0]) - 1][1]

    def stream(self, pieces: Iterable[str]) -> Iterator[str]:
        for piece in pieces:
            yield self.add(piece)
        yield self.add("", is_last=True)
