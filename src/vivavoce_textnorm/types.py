"""Values of the natural reading: pieces of a text with what is said for them, and numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    """Characters start … end − 1 of a text and what is said for them.

    rule: the name of the rule that changed them; None where they are said as they are written. Pieces of a text cover
    it whole, in order, without gaps; an empty `spoken` has a rule that says why.
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
        """All that is said."""
        return "".join(piece.spoken for piece in self.pieces)

    @property
    def changes(self) -> list[Piece]:
        """The pieces that are said otherwise than they are written."""
        return [piece for piece in self.pieces if piece.rule]


@dataclass(frozen=True)
class Number:
    """A number as it was written.

    whole: digits before the decimal sign; decimals: digits after it, as written ("50" of 3.50), "" for none;
    power: that of ten of a word of magnitude that stood with it (6 for "2.5 million"), 0 for none.
    """

    whole: int
    decimals: str = ""
    negative: bool = False
    power: int = 0

    @property
    def is_one(self) -> bool:
        """Whether it is 1 exactly, so that what is counted is singular where a language has that."""
        return self.whole == 1 and not self.decimals and not self.power and not self.negative


Forms = tuple[str, ...]
"""Of a noun that is counted, from the form for one to that for many; how many there are is up to the language."""
