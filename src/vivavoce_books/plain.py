"""Reads plain text: joins wrapped lines to paragraphs, and finds chapters by the words or place of their headings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, partial

from vivavoce_books.book import BlockKind, Book, BookOptions
from vivavoce_books.chapters import FRONT_TITLES, Item, divide, one_line, start_at_headings
from vivavoce_books.text import CHAPTER_LINE, LINE_END, ORNAMENT, language_code, tidy, vocabulary

_GUTENBERG = re.compile(r"(?m)^\*\*\* ?(START|END) OF TH(?:E|IS) PROJECT GUTENBERG EBOOK.*$")
_PAGE = re.compile(r"\s*(?:[-–—\[]\s*)?\d{1,5}(?:\s*[-–—\]])?\s*|\s*(?:page|seite|p\.)\s*\d{1,5}\s*", re.IGNORECASE)
_PICTURE = re.compile(r"\[(?:Illustration|Picture|Image)\b[^\]]{0,500}\]\s*")
_NOTE = re.compile(r"\[(?:Footnote\s+(?P<number>\w{1,5}):|(?P<mark>\d{1,3}|[*†‡§])\]:?\s)")
_LIST_ITEM = re.compile(r"\s*(?:[-*•‣–]|\(?\d{1,3}[.)])\s+\S")
_FRONT_LINE = re.compile("|".join(FRONT_TITLES.values()), re.IGNORECASE)
_ENDS = tuple(".!?…:;,\"”’'»）)。！？」』—-")
MAX_HEADING_CHARS, MAX_HEADING_LINES, MAX_SUBTITLE_CHARS = 120, 3, 60


def read_plain(text: str, options: BookOptions) -> Book:
    head, body, tail = _gutenberg_parts(text)
    lines = re.findall(r"(?m)^(Title|Author|Language): *(\S.*)$", head)
    about = {name: value.strip() for name, value in reversed(lines)}  # the first line with a name wins
    before = [Item(None, one_line(head), "Project Gutenberg's header")] if head.strip() else []
    after = [Item(None, one_line(tail), "Project Gutenberg's footer")] if tail.strip() else []
    language = {"english": "en", "german": "de", "french": "fr", "spanish": "es", "italian": "it", "chinese": "zh"}
    named = language.get(about.get("Language", "").lower(), about.get("Language"))
    chapters = divide([*before, *start_at_headings(_items(body)), *after], options)
    return Book(about.get("Title", ""), about.get("Author", ""), language_code(named), chapters)


def _gutenberg_parts(text: str) -> tuple[str, str, str]:
    marks = {found[1]: found for found in _GUTENBERG.finditer(text)}
    start = marks["START"].end() if "START" in marks else 0
    end = marks["END"].start() if "END" in marks and marks["END"].start() > start else len(text)
    return text[:start], text[start:end], text[end:]


def _items(text: str) -> Iterator[Item]:
    """Make items from groups of lines that blank lines separate; a page number does not split a paragraph."""
    words = cache(partial(vocabulary, text))
    width = _width(text)
    referred = set(re.findall(r"\S[ \t]*\[(\d{1,3}|[*†‡§])\]", text))
    waiting: list[str] = []
    pages: list[Item] = []
    last = None
    for group in re.split(r"\n[ \t\u3000]*(?:\n[ \t\u3000]*)*\n|\f", f"{text}\n"):
        lines = [line for line in group.split("\n") if line.strip()]
        numbers = [line for line in lines if _PAGE.fullmatch(line)]
        lines = [line for line in lines if not _PAGE.fullmatch(line)]
        if numbers and not lines:
            pages += [Item(None, line.strip(), "page number") for line in numbers]
            continue
        if pages and waiting and lines and _goes_on(waiting[-1], lines[0]):
            waiting += lines
            continue
        for item in _group(waiting, width, words, referred, last):
            last = item if item.kind else last
            yield item
        yield from pages
        pages = [Item(None, line.strip(), "page number") for line in numbers]
        waiting = lines
    yield from _group(waiting, width, words, referred, last)
    yield from pages


def _width(text: str) -> int:
    """Return the column at which the lines are wrapped; 0 if each line is a whole paragraph."""
    lengths = sorted(len(line) for line in text.split("\n") if line.strip())
    widest = lengths[int(0.95 * (len(lengths) - 1))] if lengths else 0
    return widest if 30 <= widest <= 100 else 0


def _goes_on(line: str, following: str) -> bool:
    return not line.rstrip().endswith(_ENDS[:4]) and following.lstrip()[:1].islower()


def _group(
    lines: list[str], width: int, words: Callable[[], frozenset[str]], referred: set[str], last: Item | None
) -> Iterator[Item]:
    whole = "\n".join(line.strip() for line in lines)
    if not whole:
        return
    found = _NOTE.match(whole)
    if ORNAMENT.fullmatch(whole):
        yield Item(BlockKind.SCENE_BREAK)
        yield Item(None, whole, "ornament")
    elif _PICTURE.fullmatch(whole):
        yield Item(None, one_line(whole), "image")
    elif found and (found["number"] or found["mark"] in referred):
        mark, text = whole[: found.end()].strip(), whole[found.end() :]
        yield Item(BlockKind.PARAGRAPH, tidy(text.removesuffix("]") if found["number"] else text, words)[0], note="")
        yield Item(None, f"{mark}]" if found["number"] else mark, "footnote reference")
    elif _is_heading(whole, len(lines), last):
        text, marks = tidy(whole.replace("\n", LINE_END), words)
        yield Item(BlockKind.HEADING, text, level=1)
        yield from (Item(None, mark, "footnote reference") for mark in marks)
    else:
        for paragraph in _paragraphs(lines, width):
            text, marks = tidy(paragraph, words)
            if text:
                yield Item(BlockKind.PARAGRAPH, text)
            yield from (Item(None, mark, "footnote reference") for mark in marks)


def _is_heading(whole: str, lines: int, last: Item | None) -> bool:
    if lines > MAX_HEADING_LINES or len(whole) > MAX_HEADING_CHARS:
        return False
    if CHAPTER_LINE.fullmatch(whole) or _FRONT_LINE.fullmatch(whole.strip(" .:*_")):
        return True
    # A short line after a chapter's number is the chapter's name.
    after_number = last is not None and last.kind is BlockKind.HEADING and CHAPTER_LINE.fullmatch(last.text)
    return bool(after_number) and lines == 1 and len(whole) <= MAX_SUBTITLE_CHARS and not whole.endswith(_ENDS)


def _paragraphs(lines: list[str], width: int) -> Iterator[str]:
    """Yield the paragraphs of a group of lines; a line end is kept if the next word would fit into the line."""
    text = ""
    for at, line in enumerate(lines):
        before = lines[at - 1] if at else ""
        indented = line[:1] in (" ", "\t", "\u3000") and before[:1] not in (" ", "\t", "\u3000")
        if not at:
            text = line
        elif not width or indented or _LIST_ITEM.match(line):
            yield text
            text = line
        else:
            fits = len(before.rstrip()) + 1 + len(line.split()[0]) < 0.8 * width
            fitted = fits and not before.rstrip().endswith("-")
            text += (LINE_END if fitted else "\n") + line
    if text:
        yield text
