"""Cleans texts of books: decodes bytes, joins lines to paragraphs, and removes footnote marks."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress

from vivavoce.errors import InvalidRequest

LINE_END = "\u2028"
"""Character for a line end that must stay, as in a verse; `tidy` replaces it by a newline."""
_CJK = "[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef]"
_INVISIBLE = str.maketrans(dict.fromkeys("\u00ad\u200b\u2060\ufeff"))
_NOTE_MARK = re.compile(r"[ \t\xa0]{0,9}[\[［〔]\s?(?:\d{1,3}|[*†‡§]{1,3}|\^[^\]\s]{1,40})?\s?[\]］〕]")
NOTE_START = re.compile(r"(\[\^[^\]\s]{1,40}\]):\s")
"""Matches the start of a footnote in Markdown."""
_BROKEN_WORD = re.compile(r"(?<![^\W\d_])([^\W\d_]{1,40})-[ \t]{0,9}\n\s*([^\W\d_]+)")
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")
ORNAMENT = re.compile(r"[\s*⁂∗⁎•·~–—=_#❦☙❧❖✦✧★☆◇◆○●※+°-]*[*⁂∗⁎•·~–—=_#❦☙❧❖✦✧★☆◇◆○●※+°-]")

_NUMBER = r"(?:\d{1,4}|[IVXLCDM]+|[ivxlcdm]+)\b"
CHAPTER_LINE = re.compile(
    r"(?i:chapter|chap\.|part|book|volume|letter|canto|act|scene|kapitel|teil|buch|chapitre|partie|livre"
    r"|cap[ií]tulo|parte|capitolo|глава|часть)\s+"
    rf"(?:{_NUMBER}(?:\s*[.:,—–-].*|\s+[^a-zа-я].*|\s*)|[^\W\d_]+(?:-[^\W\d_]+)?\s*(?:[.:—–\n].*)?)"
    r"|(?i:prologue|epilogue|preface|foreword|introduction|afterword|interlude|prolog|epilog|vorwort|nachwort"
    r"|einleitung|prólogo|epílogo|préface|avant-propos|пролог|эпилог|楔子|序章|序言|前言|引子|尾声|后记)\W*"
    r"|第\s*[0-9０-９〇零一二三四五六七八九十百千两]+\s*[章回节卷部话集篇幕].*"
    r"|[IVXLC]{1,8}\.?",
    re.DOTALL,
)
"""Matches a line that begins a chapter if blank lines are around it."""

_CODES = {"eng": "en", "deu": "de", "ger": "de", "fra": "fr", "fre": "fr", "spa": "es", "ita": "it", "por": "pt"} | {
    **{"rus": "ru", "zho": "zh", "chi": "zh", "cmn": "zh", "jpn": "ja", "kor": "ko"}
}


def language_code(tag: str | None) -> str | None:
    """Return the ISO code of a language tag ("en" for "en-GB"); None if the tag is missing or names no language."""
    code = re.split("[-_]", (tag or "").strip().lower())[0]
    return _CODES.get(code, code) if re.fullmatch("[a-z]{2,3}", code) and code not in ("und", "zxx", "mul") else None


def decode(content: bytes, label: str, *, markup: bool = False) -> str:
    """Decode UTF-16 with a byte order mark, UTF-8, the encoding that its markup names, GB 18030 or Windows-1252."""
    is_utf_16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    for encoding in ("utf-16",) if is_utf_16 else _encodings(content, markup):
        with suppress(UnicodeDecodeError, LookupError):
            return _checked(content.decode(encoding), label)
    _checked("" if is_utf_16 else content.decode("latin-1"), label)
    raise InvalidRequest(f"book: {label} has an unknown encoding; save it as UTF-8")


def _encodings(content: bytes, markup: bool) -> Iterator[str]:
    yield "utf-8-sig"
    if markup and (declared := re.search(rb"(?:charset|encoding)\s*=\s*[\"']?\s*([\w.-]+)", content[:2048])):
        yield declared[1].decode("ascii", "replace")
    runs = re.findall(rb"[\x80-\xff]+", content)
    high = sum(map(len, runs))
    # Text in another encoding may decode as GB 18030, but then has none of the most frequent Chinese characters.
    if high >= 2 * len(runs) and not {"的", "。", "，"}.isdisjoint(content.decode("gb18030", "ignore")):
        yield "gb18030"
    if high * 3 < len(content):
        yield "cp1252"


def _checked(text: str, label: str) -> str:
    if "\0" in text:
        raise InvalidRequest(f"book: {label} is not text but a binary file; give an EPUB, HTML, Markdown or text file")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def vocabulary(text: str) -> frozenset[str]:
    """Return the words of a text in lower case, except words that a line end splits."""
    return frozenset(_WORD.findall(_BROKEN_WORD.sub(" ", text.lower())))


def tidy(text: str, words: Callable[[], Collection[str]]) -> tuple[str, list[str]]:
    """Join the lines of a text and remove its note marks; return text and marks. words: the book's `vocabulary`."""
    marks = [mark.strip() for mark in _NOTE_MARK.findall(text)]
    text = _NOTE_MARK.sub("", NOTE_START.sub("", text.lstrip(), count=1)).translate(_INVISIBLE)
    text = _BROKEN_WORD.sub(lambda found: _whole_word(found[1], found[2], words()), text)
    text = re.sub(rf"(?<={_CJK})[ \t]*\n\s*(?={_CJK})", "", text)
    lines = (" ".join(line.split()) for line in text.split(LINE_END))
    return "\n".join(line for line in lines if line), [mark for mark in marks if mark.strip("[]［］〔〕 ")]


def _whole_word(left: str, right: str, words: Collection[str]) -> str:
    """Join a word that a line end splits. The hyphen stays if other words of the book show that it belongs there."""
    one, hyphened = f"{left}{right}".lower(), f"{left}-{right}".lower()
    both = len(left) > 2 and left.lower() in words and right.lower() in words
    keep = one not in words and (hyphened in words or both or right[0].isupper())
    return f"{left}-{right}" if keep else f"{left}{right}"
