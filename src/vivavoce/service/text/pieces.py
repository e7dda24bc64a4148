"""Pieces of a text that is still arriving → pieces that end with whole words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import regex

from vivavoce.service.text.checks import MAX_TEXT_CHARS, check_length

MAX_HELD = 100
"""Characters that are held back at most; what is longer is no word."""

_UNFINISHED = regex.compile(r"\s*[\p{L}\p{N}\p{M}'’-]*\Z")
_NO_SPACES = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]\Z")


def whole_words(pieces: Iterable[str]) -> Iterator[str]:
    """Hold back a last word that may go on, and white space, until what follows is known; the pieces joined stay same.

    Tokenizers write a word with the space before it. Torn elsewhere ("gar", "den" or "the ", "garden") it becomes other
    tokens than those that the model has learned. Scripts without spaces between words pass as they come.

    Raises:
        InvalidText: a piece is too long, or no text.
    """
    held = ""
    for piece in pieces:
        check_length(piece)
        text = held + piece
        if len(text) > MAX_TEXT_CHARS:
            yield held
            text = piece
        # The tail alone is looked at: a piece without spaces must not cost more than its length.
        tail = text[-MAX_HELD - 1 :]
        unfinished = None if _NO_SPACES.search(tail[-1:]) else _UNFINISHED.search(tail)
        length = len(unfinished[0]) if unfinished else 0
        cut = len(text) - length if length <= MAX_HELD else len(text)
        held = text[cut:]
        if cut:
            yield text[:cut]
    if held:
        yield held
