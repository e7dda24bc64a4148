"""Books as audiobooks: EPUB, HTML, Markdown and plain text by chapters and blocks."""

from vivavoce_books.book import Block, BlockKind, Book, BookOptions, Chapter, Cover, LeftOut, open_book

__all__ = ["Block", "BlockKind", "Book", "BookOptions", "Chapter", "Cover", "LeftOut", "open_book"]
