"""`Normalizer`, the interface that turns a text into words, and `AsWritten`, which leaves a text as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import regex

from vivavoce.errors import RequestCancelled
from vivavoce_textnorm.checks import MAX_TEXT_CHARS, check_length
from vivavoce_textnorm.types import Piece, TextRun, original

MAX_BLOCK_CHARS = 500
"""Maximum number of characters that are read at once; a longer text is read block by block."""

_BETWEEN_TAGS = regex.compile(r"\](?=\[)")
# Ends of blocks, best first. English blocks end before a space, because wetext reads a line break by the text around.
# A full stop counts only between a lower-case word and a capital, so that "No. 5" stays whole.
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
"""Maximum number of characters of an unfinished word that `whole_words` holds back."""

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
    """Cut text into blocks of at most `most` characters, which end at the best place in their second half.

    language: "zh" or "en"; a block ends at a mark with which this language ends a sentence or clause.
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
    """A part of a text that is spoken at one rate, or a pause.

    rate: multiplies the request's speed; pause_s: seconds of silence.
    """

    runs: Sequence[TextRun]
    rate: float = 1.0
    pause_s: float = 0.0

    @classmethod
    def whole(cls, text: str) -> Stretch:
        return cls([TextRun([Piece(0, len(text), text)])])

    @property
    def plain(self) -> str:
        """The text that the rules read, without the tags that control the reading."""
        return "".join(run.plain for run in self.runs)

    @property
    def language(self) -> str | None:
        """The language that tags name for the first words of the stretch; None if no tag names one."""
        return next((run.language for run in self.runs if run.language and run.plain.strip()), None)

    def original(self, at: int) -> int:
        """Map position `at` in `plain` to the position of the same character in the whole text."""
        pieces = [piece for run in self.runs for piece in run.pieces]
        return pieces[0].start if self.pause_s else original(pieces, at)


class Normalizer(Protocol):
    def stretches(self, text: str) -> list[Stretch]:
        """Split a text into stretches, which cover it in order. Raises InvalidText for an invalid tag or SSML."""

    def pieces(self, stretch: Stretch, language: str, cancelled: CancelCheck = never_cancelled) -> Iterator[Piece]:
        """Yield the stretch's words, block by block; start and end of a piece are positions in `stretch.plain`."""

    def words(self, pieces: Iterable[str], language: str | None) -> Iterator[tuple[str, int]]:
        """Yield the words of a text that arrives in pieces, with the number of characters read so far."""


def whole_words(pieces: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield the text of pieces again, cut between words, with the number of characters that have been read so far.

    White space at the end, and a last word or tag (`<|en|>`) that may continue, wait for the next piece. This is
    necessary because a tokenizer joins a word and the space before it: text that is cut elsewhere ("gar", "den" or
    "the ", "garden") gives tokens that the model has not learned. Scripts without spaces between words do not wait.

    Raises:
        InvalidText: a piece is too long, or not a string.
    """
    held, read = "", 0
    for piece in pieces:
        check_length(piece)
        read += len(piece)
        text = held + piece
        if len(text) > MAX_TEXT_CHARS:
            yield held, read
            text = piece
        # Only the tail is searched, so that the time stays proportional to the length of a text without spaces.
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
    def stretches(self, text: str) -> list[Stretch]:
        return [Stretch.whole(text)]

    def pieces(self, stretch: Stretch, language: str, cancelled: CancelCheck = never_cancelled) -> Iterator[Piece]:
        text = stretch.plain
        yield Piece(0, len(text), text)

    def words(self, pieces: Iterable[str], language: str | None) -> Iterator[tuple[str, int]]:
        return whole_words(pieces)


AS_WRITTEN = AsWritten()
