"""Reads a subset of SSML in a text that begins with `<speak`; the text of unknown elements is spoken."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any
from xml.parsers import expat

from vivavoce.errors import InvalidText
from vivavoce_textnorm.grammar import compiled
from vivavoce_textnorm.inline_tags import FORMS, SECONDS, STRENGTHS, Runs, seconds_of, unknown_break
from vivavoce_textnorm.language_id import with_country
from vivavoce_textnorm.markup import line_end
from vivavoce_textnorm.types import Piece, Say, TextRun
from vivavoce_textnorm.verbalizer import VERBALIZERS

MIN_RATE, MAX_RATE = 0.5, 2.0  # the engine's limits of speed
MAX_DEPTH = 32
"""Maximum depth of nested elements."""

_SSML = compiled(r"\s*(?:<\?xml\s[^<>]*\?>\s*)?<(?:speak(?=[\s/>])|!DOCTYPE\s+speak\b)")
_TIME = compiled(rf"\s*\+?{SECONDS}\s*")
_RATE = compiled(r"\s*(?P<sign>[+-]?)(?P<number>\d{1,4}(?:\.\d{1,6})?)(?P<percent>%?)\s*")
_RATES = {"x-slow": 0.5, "slow": 0.75, "medium": 1.0, "default": 1.0, "fast": 1.25, "x-fast": 1.5}
_KINDS = {
    "characters": "spell", "spell-out": "spell", "verbatim": "spell", "number": "cardinal", "telephone": "phone",
}  # fmt: skip
_SYLLABLE = compiled(r"(?P<initial>[zcs]h|[bpmfdtnlgkhjqxrzcsyw])?(?P<final>\p{Ll}+?)(?P<tone>[0-5]?)")
_TONES = ("", "\u0304", "\u0301", "\u030c", "\u0300", "")
_TONED = compiled(r"[ae]|o(?=u)|[ioü](?![a-z]*[aeiouü])|u(?![a-z]*[aeiouü])")
_REPLACED = ("sub", "say-as", "phoneme")

Open = tuple[str, str | None, float, str]


def is_ssml(text: str) -> bool:
    return _SSML.match(text) is not None


def find_runs(text: str, marks: frozenset[str]) -> list[TextRun]:
    """Split a text, with or without SSML, into runs, which cover it in order. marks: the model's tags, which stay.

    Raises InvalidText for SSML that is malformed or has a forbidden part, and for a pause or rate beyond its limits.
    """
    if "[" not in text and "<" not in text:  # true for most texts
        return [TextRun([Piece(0, len(text), text)] if text else [])]
    if is_ssml(text):
        return _Document(text, marks).runs.runs
    runs = Runs(text)
    runs.add_text(0, len(text))
    return runs.runs


class _Document:
    def __init__(self, text: str, marks: frozenset[str]) -> None:
        self.runs = Runs(text)
        self._text, self._marks = text, marks
        self._open: list[Open] = []
        self._replaced: tuple[int, int, str, Mapping[str, str], list[str]] | None = None
        """The open element whose text is replaced (see `_REPLACED`): its start, depth, name, attributes and text."""
        for (start, kind, values), (end, _, _) in pairwise((*_events(text), (len(text), "", ()))):
            if kind == "start":
                self._begin(start, end, *values)
            elif kind == "end":
                self._end(start, end)
            elif kind == "text" and self._replaced:
                self._replaced[4].append(values[0])
            elif kind == "text" and values[0] == text[start:end]:
                self.runs.add_text(start, end)
            elif not self._replaced:
                self.runs.add(start, end, values[0] if kind == "text" else "", "entity" if kind == "text" else "ssml")

    def _begin(self, start: int, end: int, name: str, attributes: Mapping[str, str]) -> None:
        runs = self.runs
        if len(self._open) == MAX_DEPTH:
            raise InvalidText(
                f"text: more than {MAX_DEPTH} elements of SSML are open at character {start}; leave some out"
            )
        before, said, closing, mark = (runs.language, runs.rate), "", "", f"<{name}>"
        if self._replaced:
            self._open.append((name, *before, ""))
            return
        if name in _REPLACED:
            self._replaced = start, len(self._open), name, attributes, []
        tag = attributes.get("xml:lang", "").lower()
        code = tag.partition("-")[0]
        runs.language = with_country(code, tag) if code in VERBALIZERS else runs.language
        if name == "prosody" and "rate" in attributes:
            runs.rate = self._rate(start, attributes["rate"])
        emphatic = name == "emphasis" and attributes.get("level") not in ("none", "reduced")
        if emphatic and self._text[end - 2] != "/" and "<strong>" in self._marks:
            said, closing = "<strong>", "</strong>"
        elif mark in self._marks:
            said, closing = mark, f"</{name}>"
        elif name in ("p", "s"):
            said = closing = "\n"
        self._open.append((name, *before, closing))
        if name == "break":
            runs.pause(start, end, _break(start, attributes))
        elif not self._replaced:
            runs.add(start, end, self._line_end() if said == "\n" else said, name)

    def _end(self, start: int, end: int) -> None:
        name, language, rate, closing = self._open.pop()
        if self._replaced and self._replaced[1] == len(self._open):
            begin, _, _, attributes, words = self._replaced
            self._replaced = None
            self._replace(begin, end, name, attributes, "".join(words))
        elif not self._replaced:
            self.runs.add(start, end, self._line_end() if closing == "\n" else closing, name)
        self.runs.language, self.runs.rate = language, rate

    def _line_end(self) -> str:
        before = self.runs.runs[-1].pieces[-6:] if self.runs.runs else []
        return line_end(before, last=not any(one.spoken for one in before))

    def _replace(self, start: int, end: int, name: str, attributes: Mapping[str, str], words: str) -> None:
        spoken = attributes.get("alias", words) if name == "sub" else words
        if name == "phoneme":
            spoken = phonemes(attributes.get("alphabet", ""), attributes.get("ph", ""), self._marks) or words
        how = attributes.get("interpret-as", "")
        how, content = _KINDS.get(how, how), " ".join(words.split())
        if name == "say-as" and how in FORMS and len(content) <= 100 and FORMS[how].fullmatch(content):
            order = attributes.get("format", "").lower() if how == "date" else ""
            self.runs.say(start, end, Say(how, content, order if set(order) <= set("dmy") else ""))
        else:
            self.runs.add(start, end, spoken, name)

    def _rate(self, start: int, written: str) -> float:
        found = _RATE.fullmatch(written)
        if not found and written not in _RATES:
            raise InvalidText(
                f"text: rate={written!r} at character {start} is unknown; write {', '.join(_RATES)} or 120%"
            )
        rate = _RATES.get(written) or float(found["number"]) / (100 if found["percent"] else 1)
        if found and found["sign"]:
            rate = 1 + rate if found["sign"] == "+" else 1 - rate
        rate *= self.runs.rate
        if not MIN_RATE <= rate <= MAX_RATE:
            raise InvalidText(
                f"text: rate {rate:g} at character {start} is outside of {MIN_RATE} … {MAX_RATE}; choose one inside"
            )
        return rate


def _events(text: str) -> list[tuple[int, str, tuple[Any, ...]]]:
    """Return the XML parser's events: position in the text, kind, values. The first event is at position 0."""
    events: list[tuple[int, str, tuple[Any, ...]]] = []
    parser, begin = expat.ParserCreate("utf-8"), len(text) - len(text.lstrip())
    data, byte, character = text[begin:].encode(), 0, begin

    def note(kind: str) -> Callable[..., None]:
        def add(*values: object) -> None:
            nonlocal byte, character
            character += len(data[byte : parser.CurrentByteIndex].decode())
            byte = parser.CurrentByteIndex
            events.append((character if events else 0, kind, values))

        return add

    def refuse(*_: object) -> None:
        where = _where(text[:begin], parser.CurrentLineNumber, parser.CurrentColumnNumber)
        raise InvalidText(f"text: {where}: SSML with <!DOCTYPE or <?instructions?> is not read; leave them out")

    parser.StartElementHandler, parser.EndElementHandler = note("start"), note("end")
    parser.CharacterDataHandler, parser.CommentHandler = note("text"), note("comment")
    parser.StartCdataSectionHandler, parser.EndCdataSectionHandler = note("cdata"), note("cdata")
    parser.XmlDeclHandler = note("declaration")
    parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = parser.ProcessingInstructionHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        where = _where(text[:begin], error.lineno, error.offset)
        raise InvalidText(
            f"text: {where}: the SSML is not well-formed XML ({expat.ErrorString(error.code)}); mend it, or begin with "
            "something else than <speak"
        ) from None
    return events


def _where(before: str, line: int, column: int) -> str:
    column += 1 + (len(before) - before.rfind("\n") - 1 if line == 1 else 0)
    return f"line {line + before.count(chr(10))}, column {column}"


def _break(start: int, attributes: Mapping[str, str]) -> float:
    written = attributes.get("time", attributes.get("strength", "medium"))
    found = _TIME.fullmatch(written)
    if not found and ("time" in attributes or written not in STRENGTHS):
        raise unknown_break(written, start)
    return seconds_of(found) if found else STRENGTHS[written]


def phonemes(alphabet: str, written: str, marks: frozenset[str]) -> str | None:
    """Return the model's tags for phones ("arpabet") or syllables ("pinyin"); None if the model lacks any of them."""
    found: list[str] = []
    for one in written.split():
        syllable = _SYLLABLE.fullmatch(unicodedata.normalize("NFC", one.lower().replace("v", "ü").replace("u:", "ü")))
        if alphabet.removeprefix("x-") == "arpabet":
            found.append(one.upper())
        elif alphabet.removeprefix("x-") == "pinyin" and syllable:
            tone = _TONES[int(syllable["tone"] or 0)]
            final = _TONED.sub(lambda vowel, tone=tone: vowel[0] + tone, syllable["final"], count=1)
            found += filter(None, (syllable["initial"], unicodedata.normalize("NFC", final)))
        else:
            return None
    said = [f"[{one}]" for one in found]
    return "".join(said) if said and marks.issuperset(said) else None
