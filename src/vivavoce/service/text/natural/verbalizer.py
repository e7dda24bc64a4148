"""What a language has to know to say a class of written things: one `Verbalizer` for each language."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from vivavoce.service.text.natural.values import Forms, Locale, Number

MODULES = {
    "en": "english",
    "zh": "chinese",
    "yue": "cantonese",
    "ja": "japanese",
    "ko": "korean",
    "de": "german",
    "es": "european",
    "fr": "european",
    "it": "european",
    "ru": "russian",
}
"""A language → its module beside this one, which has a `VERBALIZER`."""


@dataclass(frozen=True)
class Rule:
    """A class of written things that one language alone has, such as English decades; tried before all others.

    pattern: of the package `regex` (VERSION1), matched where a number, a word of letters or a sign begins; it may look
    behind that place. say: gets the verbalizer and the match, and returns what is said, or None: it is none of these.
    first: with which of "digit", "letter" and "sign" it begins; a word of letters alone is tried only if it is one of
    `Locale.words["heads"]`, an abbreviation or the like.
    """

    name: str
    pattern: str
    say: Callable[[Any, Any], str | None]
    first: str = "digit"


class Verbalizer(ABC):
    """Says the classes of one language. `cardinal` and `ordinal` are a language's own; the rest has a default that is
    composed of them and of `locale`, which is right for some languages and is overridden by others.

    `after` is what follows in the text (up to 40 characters, blanks stripped), for gender and case; "" where that is
    known to be nothing. Words of `locale.words`: point, minus, to (range), score, ratio, percent, and the keys that a
    language's own methods use.
    """

    locale: Locale
    rules: tuple[Rule, ...] = ()

    @abstractmethod
    def cardinal(self, value: int, after: str = "") -> str:
        """A whole number of at most 36 digits, 0 or more: "2024" counted, not as a year."""

    @abstractmethod
    def ordinal(self, value: int, after: str = "") -> str:
        """The place in an order: 3rd."""

    def join(self, *words: str) -> str:
        """Words one after the other, without empty ones."""
        return self.locale.joint.join(word for word in words if word)

    def form(self, number: Number, forms: Forms) -> str:
        """The form of a noun that goes with the number."""
        return forms[0] if number.is_one else forms[-1]

    def digits(self, digits: str, phone: bool = False) -> str:
        """Digits one by one; phone: as in a telephone number, where a language has other words for that (Chinese 1)."""
        names = (phone and self.locale.phone_digits) or self.locale.digits
        return self.join(*(names[int(digit)] for digit in digits))

    def number(self, number: Number, after: str = "") -> str:
        """A number with its sign, decimals and magnitude."""
        said = self.cardinal(number.whole, after)
        if number.decimals:
            said = self.join(said, self.locale.words["point"], self.digits(number.decimals))
        if number.power:
            said = self.join(said, self.magnitude(number))
        return self.join(self.locale.words["minus"], said) if number.negative else said

    def magnitude(self, number: Number) -> str:
        """The word for 10 to the power of `number.power`, in the form that the number needs."""
        return next(word for word, power in self.locale.magnitudes.items() if power == number.power and len(word) > 2)

    def year(self, value: int) -> str:
        """A year of the calendar."""
        return self.cardinal(value)

    def date(self, year: int | None, month: int | None, day: int | None, written: str = "") -> str:
        """A date, of which parts may be missing; written: what stood there, for its order where month names did."""
        parts = (
            self.ordinal(day) if day else "",
            self.locale.month_names[month - 1] if month else "",
            self.year(year) if year is not None else "",
        )
        return self.join(*parts)

    def time(self, hour: int, minute: int, second: int | None = None, half: str = "") -> str:
        """A time of the day; half: "am" or "pm" where the text has it in any form, else ""."""
        return self.join(self.cardinal(hour), self.cardinal(minute), "" if second is None else self.cardinal(second))

    def duration(self, hours: int, minutes: int, seconds: int) -> str:
        """Hours, minutes and seconds on a clock that counts: 1:02:03."""
        return self.time(hours, minutes, seconds)

    def money(self, number: Number, currency: str) -> str:
        """An amount; currency: a key of `locale.currencies`. 3.50 has whole units and hundredths where these exist."""
        main, minor = self.locale.currencies[currency]
        if len(number.decimals) == 2 and minor and not number.power:
            cents = Number(int(number.decimals))
            whole = Number(number.whole, negative=number.negative)
            said = self.unit(whole, main) if number.whole or not cents.whole else ""
            return self.join(said, self.unit(cents, minor) if cents.whole else "")
        return self.unit(number, main)

    def percent(self, number: Number) -> str:
        """A number with %."""
        return self.join(self.number(number), self.locale.words["percent"])

    def unit(self, number: Number, forms: Forms) -> str:
        """A number with what it counts: forms of `locale.units`, or of a currency."""
        form = self.form(number, forms)
        return self.join(self.number(number, form), form)

    @abstractmethod
    def fraction(self, whole: int, numerator: int, denominator: int) -> str:
        """1/2, or with a whole number before it, 1½ (0: none)."""

    def range(self, low: str, high: str) -> str:
        """From one to the other; both are said already."""
        return self.join(low, self.locale.words["to"], high)

    def score(self, sides: Sequence[int]) -> str:
        """Points of two or more sides: 3-2."""
        return f" {self.locale.words['score']} ".join(map(self.cardinal, sides)).replace(" ", self.locale.joint or "")

    def ratio(self, sides: Sequence[str]) -> str:
        """1:10, each side said already."""
        return f"{self.locale.joint}{self.locale.words['ratio']}{self.locale.joint}".join(sides)

    def reign(self, value: int) -> str:
        """The number behind the name of a king or a pope: Louis XIV."""
        return self.ordinal(value)


@cache
def load_verbalizer(language: str) -> Verbalizer | None:
    """The verbalizer of a language, which is imported here; None where there is none."""
    name = MODULES.get(language)
    try:
        module = import_module(f"{__package__}.{name}")
    except ModuleNotFoundError as error:
        if name is None or error.name == f"{__package__}.{name}":
            return None
        raise
    # What has no code of its own is all tables.
    found: Verbalizer = module.European(language) if name == "european" else module.VERBALIZER
    return found
