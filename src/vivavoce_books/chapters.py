"""Divides the items of a book, such as headings, paragraphs and footnotes, into chapters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from vivavoce_books.book import Block, BlockKind, BookOptions, Chapter, LeftOut
from vivavoce_books.text import CHAPTER_LINE

FRONT_TITLES = {
    "table of contents": r"(?:table of )?contents|inhalt(?:sverzeichnis)?|table des mati[eè]res|sommaire|[ií]ndice"
    r"|sum[aá]rio|содержание|оглавление|目\s*[录錄次]|차례",
    "copyright page": r"copyright(?: page| notice)?|imprint|impressum|colophon|版权(?:页|信息|声明)?|奥付",
    "title page": r"(?:half[- ])?title[- ]?page|扉页|书名页",
    "cover page": r"cover(?: page)?|封面",
    "index": r"(?:general |subject )?index|索引",
}
MAX_FRONT_SHARE = 0.25
"""A chapter with a title of `FRONT_TITLES` is front matter only if it has at most this share of all characters."""


@dataclass(frozen=True)
class Item:
    """A block, or text that is left out: then `kind` is None, and `reason` gives the reason.

    title: title of the chapter that begins with the item, or None. level: level of a heading, from 1. ids: anchors of
    the item. note: anchor of the footnote that has the item, "" if the anchor is unknown, None if the item is not in a
    footnote. refs: anchors of the footnotes to which the item refers.
    """

    kind: BlockKind | None
    text: str = ""
    reason: str = ""
    language: str | None = None
    level: int = 0
    title: str | None = None
    ids: tuple[str, ...] = ()
    note: str | None = None
    refs: tuple[str, ...] = ()


@dataclass
class _Section:
    title: str
    items: list[Item]
    front: bool = False

    def has(self, *kinds: BlockKind) -> bool:
        return any(item.kind in kinds and item.note is None for item in self.items)


def one_line(text: str) -> str:
    return " ".join(text.split())


def combined_title(first: str, second: str) -> str:
    """Make a title of two headings, such as "Chapter 1: The storm"; but "A book" and "Chapter 1" give "Chapter 1"."""
    if not second or not CHAPTER_LINE.fullmatch(first) or first == second:
        return second or first
    return f"{first.rstrip('.:')}: {second}"


def start_at_headings(items: Iterable[Item]) -> list[Item]:
    """Begin chapters at headings of levels 1 and 2, or if the book has none, at headings of its highest level."""
    items = list(items)
    levels = {item.level for item in items if item.kind is BlockKind.HEADING and item.note is None}
    deepest = max(2, min(levels, default=2))
    return [
        replace(item, title=one_line(item.text))
        if item.kind is BlockKind.HEADING and item.level <= deepest and item.note is None
        else item
        for item in items
    ]


def divide(items: Iterable[Item], options: BookOptions) -> tuple[Chapter, ...]:
    """Divide items into chapters. A chapter without text joins the next chapter; footnotes move to a chapter's end."""
    sections: list[_Section] = []
    for item in items:
        if item.title is not None or not sections:
            sections.append(_Section(item.title or "", []))
        sections[-1].items.append(item)
    if options.front_matter == "skip":
        sections = _without_front_matter(sections)
    sections = _joined(sections)
    _place_notes(sections)
    chapters: list[Chapter] = []
    waiting: list[LeftOut] = []
    for section in sections:
        blocks, left_out = _finished(section, options)
        waiting += left_out
        if blocks:
            chapters.append(Chapter(section.title, blocks, tuple(waiting)))
            waiting = []
    if chapters and waiting:
        chapters[-1] = replace(chapters[-1], left_out=(*chapters[-1].left_out, *waiting))
    return tuple(chapters)


def _front_reason(title: str) -> str | None:
    bare = title.strip(" .:*_—-").lower()
    return next((reason for reason, names in FRONT_TITLES.items() if re.fullmatch(names, bare)), None)


def _without_front_matter(sections: list[_Section]) -> list[_Section]:
    total, at = sum(len(item.text) for section in sections for item in section.items), 0
    while at < len(sections):
        reason, stop = _front_reason(sections[at].title), at + 1
        size = sum(len(item.text) for item in sections[at].items)
        if reason and size <= max(MAX_FRONT_SHARE * total, 300) and len(sections) > 1:
            if reason == "table of contents":
                stop = _end_of_contents(sections, at)
            for section in sections[at:stop]:
                section.front = True
                section.items = [
                    item if item.kind is None else replace(item, kind=None, reason=reason) for item in section.items
                ]
        at = stop
    return sections


def _end_of_contents(sections: list[_Section], at: int) -> int:
    """Return the index of the section after a table of contents, whose lines may look like headings without text."""
    first = at + 1
    stop = next((i for i in range(first, len(sections)) if sections[i].has(BlockKind.PARAGRAPH)), len(sections))
    titles = [section.title.casefold() for section in sections]
    again = [i for i in range(first + 1, stop + 1) if i < len(sections) and titles[i] == titles[first]]
    numbered = [i for i in range(first, min(stop + 1, len(sections))) if CHAPTER_LINE.fullmatch(sections[i].title)]
    return again[0] if again else numbered[-1] if numbered else first


def _joined(sections: list[_Section]) -> list[_Section]:
    """Join each section that has only headings to the next section."""
    joined: list[_Section] = []
    for section in sections:
        last = next((before for before in reversed(joined) if not before.front), None)
        headed = last is not None and (last.title or last.has(BlockKind.HEADING))
        if last and headed and not section.front and not last.has(BlockKind.PARAGRAPH):
            joined.remove(last)
            section = _Section(combined_title(last.title, section.title), last.items + section.items)
        joined.append(section)
    return joined


def _place_notes(sections: list[_Section]) -> None:
    """Move each footnote to the end of the chapter that refers to it."""
    owner: dict[str, int] = {}
    for at, section in enumerate(sections):
        for item in section.items:
            owner |= {ref: at for ref in item.refs if item.note is None and ref not in owner}
    moved: list[list[Item]] = [[] for _ in sections]
    for at, section in enumerate(sections):
        for item in section.items:
            if item.note is not None:
                moved[owner.get(item.note, at)].append(item)
        rest = [item for item in section.items if item.note is None]
        if len(rest) < len(section.items) and at and not section.has(BlockKind.PARAGRAPH):
            # A section of footnotes only: leave out its heading, too.
            rest = [replace(item, kind=None, reason="footnote") if item.kind else item for item in rest]
        section.items = rest
    for section, notes in zip(sections, moved, strict=True):
        section.items += notes


def _finished(section: _Section, options: BookOptions) -> tuple[tuple[Block, ...], list[LeftOut]]:
    blocks: list[Block] = []
    left_out: list[LeftOut] = []
    for item in section.items:
        if item.kind is None or (item.note is not None and options.footnotes == "skip"):
            if item.text:
                left_out.append(LeftOut(section.title, item.text, item.reason or "footnote"))
        elif item.kind is not BlockKind.SCENE_BREAK:
            blocks.append(Block(item.kind, item.text, item.language))
        elif blocks and blocks[-1].kind is BlockKind.PARAGRAPH:
            blocks.append(Block(item.kind))
    if blocks and blocks[-1].kind is BlockKind.SCENE_BREAK:
        blocks.pop()
    return tuple(blocks), left_out
