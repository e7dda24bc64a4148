"""Values that the other modules exchange: pieces and runs of a text, the settings of a request, and numbers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from vivavoce_textnorm.lexicon import NO_WORDS, Lexicon


@dataclass(frozen=True)
class Piece:
    """Characters start … end − 1 of a text, and `spoken`, the text that is said for them.

    rule: the name of the rule that changed the characters; None if they are said as they are written. The pieces of a
    text cover it in order, without gaps. If `spoken` is empty, `rule` gives the reason.
    """

    start: int
    end: int
    spoken: str
    rule: str | None = None


@dataclass(frozen=True)
class NormalizedText:
    """A text and its pieces, which cover the text in order."""

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

    whole: the number before the decimal sign. decimals: the digits after the decimal sign, as written ("50" in 3.50),
    or "". power: the power of ten that a word after the number adds (6 in "2.5 million"), or 0 without such a word.
    """

    whole: int
    decimals: str = ""
    negative: bool = False
    power: int = 0

    @property
    def is_one(self) -> bool:
        return self.whole == 1 and not self.decimals and not self.power


Forms = tuple[str, ...]
"""The forms of a noun, from the form after 1 to the form after large numbers; how many depends on the language."""


@dataclass(frozen=True)
class Settings:
    """The settings of a request, and the abilities of the loaded model.

    named_emojis: emojis are said by their Unicode names, in English, instead of being silent. silent_code: code between
    backticks is left out. marks: the model's tags (`[laughter]`), which no rule changes. lexicon: word → its respelling
    for the model, in letters or tags. unread: languages that the model does not speak; their sentences are read in the
    language of the request. day_first: in English too, 3/4/2026 is the third of April.
    """

    named_emojis: bool = False
    silent_code: bool = False
    marks: frozenset[str] = frozenset()
    lexicon: Lexicon = NO_WORDS
    unread: frozenset[str] = frozenset()
    day_first: bool = False


@dataclass(frozen=True)
class Say:
    """The content of a tag such as `[spell: NASA]`, which is said in the tag's way instead of by the rules.

    how: a key of `inline_tags.FORMS`; order: the order of a date's numbers, such as "dmy", or "" if it is not given."""

    how: str
    content: str
    order: str = ""


@dataclass(frozen=True)
class TextRun:
    """Characters of a text with the same language, rate and pause.

    pieces: cover the characters; their `spoken`, joined, is the text that the rules read. said: private-use character
    in that text → the tag's content for which it stands. language: None if the run has the language of the text around
    it. rate: multiplies the request's speed. pause_s: seconds of silence; 0 if the run is not a pause.
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
    """Map a position in the joined `spoken` of the pieces to a position in the text; the end to the last end."""
    offsets = [*accumulate((len(piece.spoken) for piece in pieces), initial=0)]
    if at >= offsets[-1]:
        return pieces[-1].end
    index = bisect_right(offsets, at) - 1
    piece, inside = pieces[index], at - offsets[index]
    return piece.start if not inside else piece.start + inside if piece.rule is None else piece.end
