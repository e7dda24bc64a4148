"""Values of the natural reading: pieces of a text with what is said for them, numbers, and the facts of a language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
class Reading:
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


@dataclass(frozen=True)
class Locale:
    """How a language writes and names things. All of it is data: rules that know no language read it.

    decimal: the sign before decimals; group: characters that may stand between thousands (a blank for all blanks);
    order: of day, month and year where all are numbers, such as "mdy"; joint: between spoken words, "" in scripts
    without spaces; digits: the names of 0 to 9, and phone_digits where those differ.

    months: names and abbreviations in lower case without a full stop → 1 to 12; magnitudes: written words and letters
    behind a number → power of ten; units: written symbols ("km/h", "°C") → forms; currencies: signs and codes
    ("$", "USD") → forms of the currency and of its hundredth part (() for none); abbreviations: written with their full
    stop → said; signs: single characters (`@`, `/`, `+`, `=`, `≤`, `&`) → said; words: what glues together, by the keys
    that `Verbalizer` names; idioms: whole tokens that are read by heart ("24/7").
    """

    language: str
    decimal: str = "."
    group: str = ","
    order: str = "dmy"
    joint: str = " "
    digits: Forms = ()
    phone_digits: Forms = ()
    months: Mapping[str, int] = field(default_factory=dict)
    month_names: Forms = ()
    weekdays: Mapping[str, str] = field(default_factory=dict)
    magnitudes: Mapping[str, int] = field(default_factory=dict)
    units: Mapping[str, Forms] = field(default_factory=dict)
    currencies: Mapping[str, tuple[Forms, Forms]] = field(default_factory=dict)
    abbreviations: Mapping[str, str] = field(default_factory=dict)
    signs: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    idioms: Mapping[str, str] = field(default_factory=dict)
