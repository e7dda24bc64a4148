"""Markdown (CommonMark with tables and footnotes), by way of HTML."""

from __future__ import annotations

import re
from dataclasses import replace

from vivavoce.errors import MissingDependency
from vivavoce_books.book import Book, BookOptions
from vivavoce_books.html import MAX_DEPTH, read_html
from vivavoce_books.text import language_code

_METADATA = re.compile(r"---[ \t]*\n((?:[^\n]*\n){0,200}?)(?:---|\.\.\.)[ \t]*(?:\n|$)")
_NOTE = re.compile(r"(?m)^(\[\^[^\]\s]{1,40}\]):")
"""A footnote: a paragraph of its own, and no definition of a link."""


def read_markdown(text: str, label: str, options: BookOptions) -> Book:
    try:
        from markdown_it import MarkdownIt
    except ImportError:
        raise MissingDependency("Markdown needs markdown-it-py; type pip install 'vivavoce[books]'") from None
    # More levels than the reader of HTML permits: markdown-it drops what is deeper without a word.
    reader = MarkdownIt("commonmark", {"html": True, "maxNesting": 2 * MAX_DEPTH}).enable(["table", "strikethrough"])
    head = _METADATA.match(text)
    pairs = re.findall(r"(?m)^(title|author|lang)(?:uage)?:(.+)$", head[1] if head else "")
    values, body = {name: value.strip(" \t\"'") for name, value in pairs}, text[head.end() :] if head else text
    book = read_html(reader.render(_NOTE.sub(r"\n\1\\:", body)), label, options)
    language = language_code(values.get("lang"))
    return replace(book, title=values.get("title", book.title), author=values.get("author", ""), language=language)
