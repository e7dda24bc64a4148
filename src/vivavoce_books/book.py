"""A book as its listener gets it: chapters of blocks, and with each chapter the text that is not spoken, with reasons."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

from vivavoce.errors import InvalidRequest

Choice = Literal["skip", "speak"]

MAX_FILE_BYTES = 100_000_000
"""The largest file that is read; a longer book is split into volumes."""
MAX_BOOK_CHARS = 20_000_000
"""Characters of a book; the longest novels have about 10,000,000."""
SUFFIXES = (".epub", ".html", ".htm", ".xhtml", ".md", ".markdown", ".txt")


class BlockKind(str, Enum):
    """A list item, a quotation, a verse and a table's row are paragraphs."""

    HEADING = "heading"
    PARAGRAPH = "paragraph"
    SCENE_BREAK = "scene break"


@dataclass(frozen=True)
class Block:
    """A stretch of speech; a newline in `text` ends a line of verse.

    language: ISO code where the book names one for this block.
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
    """title: empty where the book names none."""

    title: str
    blocks: tuple[Block, ...]
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True)
class Cover:
    """The picture of the front, as it is stored in the book."""

    content: bytes
    media_type: str


@dataclass(frozen=True)
class Book:
    """language: ISO code; None where the book does not say."""

    title: str
    author: str
    language: str | None
    chapters: tuple[Chapter, ...]
    cover: Cover | None = None


@dataclass(frozen=True)
class BookOptions:
    """Which parts beside the text are spoken."""

    footnotes: Choice = "skip"
    tables: Choice = "skip"
    front_matter: Choice = "skip"
    code: Choice = "skip"


def open_book(path: Path, options: BookOptions = BookOptions()) -> Book:  # noqa: B008 - it is frozen
    """Read a book by what its content is; the suffix decides between HTML, Markdown and plain text.

    Raises:
        InvalidRequest: the file cannot be read, is no book, is damaged or beyond a limit.
    """
    raise InvalidRequest(f"book: {path.name!r} cannot be read yet; the readers are missing")
