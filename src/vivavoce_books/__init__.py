"""Makes audiobooks: divides EPUB, HTML, Markdown and plain text into chapters and blocks, and speaks them."""

from vivavoce_books.book import Block, BlockKind, Book, BookOptions, Chapter, Cover, LeftOut, open_book

__all__ = ["Block", "BlockKind", "Book", "BookOptions", "Chapter", "Cover", "LeftOut", "open_book"]
