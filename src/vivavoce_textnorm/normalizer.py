"""The interface through which a front end reads a text, and the reading that leaves a text as it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import regex

from vivavoce.errors import RequestCancelled
from vivavoce_textnorm.checks import MAX_TEXT_CHARS, check_length
from vivavoce_textnorm.types import Piece, TextRun, original

MAX_BLOCK_CHARS = 500
"""Characters that are read at once; a longer text is read block by block."""

_BETWEEN_TAGS = regex.compile(r"\](?=\[)")
# Ends of blocks, best first. English ones stand before a plain space, for what wetext makes of a line break depends on
# what is around it. A full stop counts after a small word and before a capital only: "No. 5" is to be read as one.
_BLOCK_ENDS: dict[str, tuple[regex.Pattern[str], ...]] = {
    "en": (
        regex.compile(r"""[!?]["”'’)]*(?= )|\p{Ll}{3}\.["”'’)]*(?= \p{Lu})"""),
        regex.compile(r"[,;](?= )"),
        regex.compile(r"\p{L}(?= \p{Ll})"),
        _BETWEEN_TAGS,
    ),
    "zh": (
        regex.compile(r"[。！？]|[!?](?=\s)|\S(?=\n)"),
        regex.compile(r"[，；、]|[,;](?=\s)"),
        regex.compile(r"\p{Han}(?=\p{Han})|\p{L}(?= \p{L})"),
        _BETWEEN_TAGS,
    ),
}
MAX_HELD_WORD = 100
"""Characters of an unfinished word that are held back at most, of a text that is said as it is written."""

_UNFINISHED = regex.compile(r"\s*(?:<(?:\|[\w-]*\|?)?|[¿¡«„]*[\p{L}\p{N}\p{M}'’-]*)\Z")
_NO_SPACES = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}ー\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]\Z")

CancelCheck = Callable[[], bool]
"""Cancellation check, called while a text is read; True ends the reading with RequestCancelled."""


def never_cancelled() -> bool:
    return False


def check_wanted(cancelled: CancelCheck) -> None:
    if cancelled():
        raise RequestCancelled("request: was cancelled")


def blocks(text: str, language: str, most: int = MAX_BLOCK_CHARS) -> Iterator[str]:
    """Cut text into blocks of at most `most` characters, each at the best place in its second half.

    language: "zh" or "en", whose ends of sentences and clauses are the places.
    """
    start = 0
    while len(text) - start > most:
        limit = start + most
        window = start + most // 2, limit
        found = ([m.end() for m in pattern.finditer(text, *window)] for pattern in _BLOCK_ENDS[language])
        end = next((places[-1] for places in found if places), limit)
        yield text[start:end]
        start = end
    yield text[start:]


@dataclass(frozen=True)
class Stretch:
    """Runs of a text that are spoken at one rate; or a pause, in which nothing is spoken.

    rate: times the speed of the request; pause_s: seconds of silence.
    """

    runs: Sequence[TextRun]
    rate: float = 1.0
    pause_s: float = 0.0

    @classmethod
    def whole(cls, text: str) -> Stretch:
        """A text without markup."""
        return cls([TextRun([Piece(0, len(text), text)])])

    @property
    def plain(self) -> str:
        """The text without brackets and tags, which the rules read."""
        return "".join(run.plain for run in self.runs)

    @property
    def language(self) -> str | None:
        """The language that its first words are marked with."""
        return next((run.language for run in self.runs if run.language and run.plain.strip()), None)

    def original(self, at: int) -> int:
        """The character of the whole text that a character of `plain` stands for."""
        pieces = [piece for run in self.runs for piece in run.pieces]
        return pieces[0].start if self.pause_s else original(pieces, at)


class Normalizer(Protocol):
    """Puts a text in words."""

    def stretches(self, text: str) -> list[Stretch]:
        """The stretches of a text, which cover it in order.

        Raises:
            InvalidText: brackets or SSML in it ask for what cannot be.
        """

    def pieces(self, stretch: Stretch, language: str, cancelled: CancelCheck = never_cancelled) -> Iterator[Piece]:
        """The words of a stretch, block by block; places are those of its `plain` text.

        Raises:
            RequestCancelled: `cancelled` said so before a block was read.
        """

    def words(self, pieces: Iterable[str], language: str | None) -> Iterator[tuple[str, int]]:
        """The words of a text that arrives in pieces, each with the number of characters that it covers so far."""


def whole_words(pieces: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Words of a text that arrives, each with the number of characters that had been read by then.

    A last word or tag (`<|en|>`) that may go on, and white space, are held back until what follows is known; joined,
    the words are the pieces joined. Tokenizers write a word with the space before it. Torn elsewhere ("gar", "den" or
    "the ", "garden") it becomes other tokens than those that the model has learned. Scripts without spaces between
    words pass as they come.

    Raises:
        InvalidText: a piece is too long, or no text.
    """
    held, read = "", 0
    for piece in pieces:
        check_length(piece)
        read += len(piece)
        text = held + piece
        if len(text) > MAX_TEXT_CHARS:
            yield held, read
            text = piece
        # The tail alone is looked at: a piece without spaces must not cost more than its length.
        tail = text[-MAX_HELD_WORD - 1 :]
        unfinished = None if _NO_SPACES.search(tail[-1:]) else _UNFINISHED.search(tail)
        length = len(unfinished[0]) if unfinished else 0
        cut = len(text) - length if length <= MAX_HELD_WORD else len(text)
        held = text[cut:]
        if cut:
            yield text[:cut], read
    if held:
        yield held, read


class AsWritten:
    """Leaves texts unchanged."""

    def stretches(self, text: str) -> list[Stretch]:
        return [Stretch.whole(text)]

    def pieces(self, stretch: Stretch, language: str, cancelled: CancelCheck = never_cancelled) -> Iterator[Piece]:
        text = stretch.plain
        yield Piece(0, len(text), text)

    def words(self, pieces: Iterable[str], language: str | None) -> Iterator[tuple[str, int]]:
        return whole_words(pieces)


AS_WRITTEN = AsWritten()
