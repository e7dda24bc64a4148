"""Data types of a book: its chapters, the blocks that are spoken, and the text that is left out, with reasons."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

from vivavoce.errors import InvalidRequest

Choice = Literal["skip", "speak"]

MAX_BOOK_BYTES = 20_000_000
"""Maximum bytes of a file with its markup, or of all files read from an EPUB; the longest novels have 12,000,000."""
SUFFIXES = (".epub", ".html", ".htm", ".xhtml", ".md", ".markdown", ".txt")
FOREIGN: dict[str, tuple[bytes, int]] = {
    "a PDF": (b"%PDF", 0),
    "a Kindle book": (b"BOOKMOBI", 60),
    "an RTF document": (b"{\\rtf", 0),
    "a Word document": (b"\xd0\xcf\x11\xe0", 0),
    "a DjVu scan": (b"AT&TFORM", 0),
}
"""Unsupported format → bytes that identify it, and their offset in the file."""
_SOUND = re.compile(rb"(?s)RIFF.{4}WAVE|ID3[\2-\4]|fLaC[\0\x80]|OggS\0|\0\0\0.ftyp|\xff[\xf2\xf3\xfa\xfb]")
"""Matches the first bytes of WAV, MP3 (with and without a tag), FLAC, Ogg and M4A files."""


class BlockKind(str, Enum):
    """Kind of a block; a list item, a quotation, a verse and a row of a table are paragraphs."""

    HEADING = "heading"
    PARAGRAPH = "paragraph"
    SCENE_BREAK = "scene break"


@dataclass(frozen=True)
class Block:
    """A heading, a paragraph or a scene break; a newline in `text` ends a line of verse.

    language: ISO code, or None if the book names no language for this block.
    """

    kind: BlockKind
    text: str = ""
    language: str | None = None


@dataclass(frozen=True)
class LeftOut:
    """Text that is not spoken, and the reason: "footnote", "page number", "table" and so on."""

    chapter: str
    text: str
    reason: str


@dataclass(frozen=True)
class Chapter:
    """A chapter of a book. `title` is empty if the book gives the chapter no title."""

    title: str
    blocks: tuple[Block, ...]
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True)
class Cover:
    """The picture of the front cover, as it is stored in the book."""

    content: bytes
    media_type: str


@dataclass(frozen=True)
class Book:
    """A whole book; language: ISO code, or None if the book names no language."""

    title: str
    author: str
    language: str | None
    chapters: tuple[Chapter, ...]
    cover: Cover | None = None


@dataclass(frozen=True)
class BookOptions:
    """Parts of a book other than its main text; each is skipped or spoken."""

    footnotes: Choice = "skip"
    tables: Choice = "skip"
    front_matter: Choice = "skip"
    code: Choice = "skip"


def open_book(path: Path, options: BookOptions = BookOptions()) -> Book:
    """Read a book. Its content shows the format; the suffix decides only between HTML, Markdown and plain text.

    Raises:
        InvalidRequest: the file cannot be read, is not a book, is damaged or exceeds a limit.
        MissingDependency: the extra "books" is not installed.
    """
    label = repr(path.name)
    try:
        if path.exists() and not path.is_file():
            kind = "a folder" if path.is_dir() else "not a regular file"
            raise InvalidRequest(f"book: {label} is {kind}; give one file: {', '.join(SUFFIXES)}")
        with path.open("rb") as opened:
            start = opened.read(4096)
            if start.startswith(b"PK"):
                from vivavoce_books.epub import read_epub

                book = read_epub(path, options)
            else:
                content = start + opened.read(MAX_BOOK_BYTES + 1 - len(start))
                book = _read_text(content, os.fstat(opened.fileno()).st_size, path, options)
    except OSError as error:
        raise InvalidRequest(f"book: {label} cannot be read ({error.strerror}); check the path") from None
    if not any(block.text for chapter in book.chapters for block in chapter.blocks):
        raise InvalidRequest(f"book: {label} has no text to speak; scanned pages must be recognised (OCR) first")
    return book


def _read_text(content: bytes, size: int, path: Path, options: BookOptions) -> Book:
    """Read HTML, Markdown or plain text. content: at most `MAX_BOOK_BYTES` + 1 bytes; size: bytes of the whole file."""
    from vivavoce_books.html import read_html, read_markdown
    from vivavoce_books.plain import read_plain
    from vivavoce_books.text import decode

    label, suffix = repr(path.name), path.suffix.lower()
    for known, (sign, at) in FOREIGN.items():
        if content.startswith(sign, at):
            raise InvalidRequest(f"book: {label} is {known}; convert it to EPUB or text, for example with Calibre")
    if _SOUND.match(content):
        raise InvalidRequest(f"book: {label} is an audio file; give an EPUB, HTML, Markdown or text file")
    if len(content) > MAX_BOOK_BYTES:
        raise InvalidRequest(f"book: {label} has {size} bytes, above the limit of {MAX_BOOK_BYTES}; split it")
    looks = re.match(rb"(?:\xef\xbb\xbf)?\s*<(?:!doctype\s+html|html|\?xml)\b", content[:4096], re.IGNORECASE)
    if looks or suffix in (".html", ".htm", ".xhtml"):
        return read_html(decode(content, label, markup=True), label, options)
    text = decode(content, label)
    return read_markdown(text, label, options) if suffix in (".md", ".markdown") else read_plain(text, options)
