"""Values that are passed around: pieces and runs of a text, the choices of a request, and numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from vivavoce_textnorm.lexicon import NO_WORDS, Lexicon


@dataclass(frozen=True)
class Piece:
    """Characters start … end − 1 of a text and what is said for them.

    rule: the name of the rule that changed them; None where they are said as they are written. Pieces of a text cover
    it whole, in order, without gaps; if `spoken` is empty, `rule` gives the reason.
    """

    start: int
    end: int
    spoken: str
    rule: str | None = None


@dataclass(frozen=True)
class NormalizedText:
    """A text with what is said for it; pieces cover the text in order."""

    text: str
    pieces: tuple[Piece, ...]

    @property
    def spoken(self) -> str:
        return "".join(piece.spoken for piece in self.pieces)

    @property
    def changes(self) -> list[Piece]:
        return [piece for piece in self.pieces if piece.rule]


@dataclass(frozen=True)
class Number:
    """A number as it was written.

    whole: the digits before the decimal sign. decimals: the digits after it, as written ("50" in 3.50), or "". power:
    the power of ten that the word after the number means (6 in "2.5 million"), or 0 without such a word.
    """

    whole: int
    decimals: str = ""
    negative: bool = False
    power: int = 0

    @property
    def is_one(self) -> bool:
        return self.whole == 1 and not self.decimals and not self.power


Forms = tuple[str, ...]
"""The forms of a counted noun, from the form for one to the form for many; their number depends on the language."""


@dataclass(frozen=True)
class Settings:
    """The choices of a request, and the abilities of the loaded model.

    named_emojis: emojis are said by their Unicode names, in English, instead of being silent. silent_code: code between
    backticks is left out. marks: the model's tags (`[laughter]`), which stay unchanged and win over every rule.
    lexicon: word → its respelling for the model, in letters or tags. unread: languages that the model does not speak;
    their sentences are read as text that shows no language. day_first: 3/4/2026 is a day of April in English, too.
    """

    named_emojis: bool = False
    silent_code: bool = False
    marks: frozenset[str] = frozenset()
    lexicon: Lexicon = NO_WORDS
    unread: frozenset[str] = frozenset()
    day_first: bool = False


@dataclass(frozen=True)
class Say:
    """Text that is said in the way that a tag names, instead of by the rules.

    how: one of `FORMS`; order: the order of a date's numbers, such as "dmy"; "" if it is not given."""

    how: str
    content: str
    order: str = ""


@dataclass(frozen=True)
class TextRun:
    """Characters of a text with the same language, rate and pause.

    pieces: cover the characters; their `spoken`, joined, is the text that the rules read. said: private-use character
    in that text → the content for which it stands. language: None for the language of the text around the run. rate:
    multiplies the request's speed. pause_s: seconds of silence, if the run is a pause.
    """

    pieces: list[Piece]
    said: Mapping[str, Say] = field(default_factory=dict)
    language: str | None = None
    rate: float = 1.0
    pause_s: float = 0.0

    @property
    def plain(self) -> str:
        return "".join(piece.spoken for piece in self.pieces)


def original(pieces: Sequence[Piece], at: int) -> int:
    """Map a position in the joined words of the pieces to the text; the words' end maps to the last piece's end."""
    offsets = [*accumulate((len(piece.spoken) for piece in pieces), initial=0)]
    if at >= offsets[-1]:
        return pieces[-1].end
    index = bisect_right(offsets, at) - 1
    piece, inside = pieces[index], at - offsets[index]
    return piece.start if not inside else piece.start + inside if piece.rule is None else piece.end
