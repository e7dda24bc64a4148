"""Puts numbers, dates, times and amounts in words; each language has its own `Verbalizer`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache
from importlib import import_module

from vivavoce_textnorm.grammar import compiled
from vivavoce_textnorm.rules import bind
from vivavoce_textnorm.tables import load_locale
from vivavoce_textnorm.types import Forms, Number

VERBALIZERS = {
    "en": "english.English",
    "zh": "cjk.EastAsian",
    "yue": "cjk.EastAsian",
    "ja": "cjk.EastAsian",
    "ko": "cjk.Korean",
    "de": "german.German",
    "es": "romance.European",
    "fr": "romance.European",
    "it": "romance.European",
    "ru": "russian.Russian",
}

_GROUP = compiled(r"[^ -]+")
_RUN = compiled(r"\d+|\p{L}+")
_RUN_OR_SIGN = compiled(r"\d+|\p{L}+|.")
_LONG = compiled(r"(?<!\d)\d{8,}[Xx]?(?!\d)")
# Cuts long numbers into groups: 138 1234 5678, 400 820 8820, 110101 1990 0307 888X; other numbers into fours.
_PAUSED = compiled(
    r"\A\d{3}(?=\d{6,8}\Z)|(?<=\A\d{3})\d{3}(?=\d{3,4}\Z)|\A\d{6}(?=\d{11}.\Z)|[\dXx]{4}(?=[\dXx]{3})|[\dXx]+"
)


class Verbalizer(ABC):
    """Puts numbers, dates, times and amounts of one language in words, by the language's tables.

    In all methods, `after` is the text that follows the number (up to 40 characters, without blanks before it), which
    decides gender and case; "" if nothing follows. The keys of `locale.words` are point, minus, to (in a range), score,
    ratio, percent, and others that a language's own methods use.
    """

    def __init__(self, language: str) -> None:
        self.locale = load_locale(language)
        self.rules = bind(self.locale)
        self._fixes = {name: self.locale.fixes(name) for name in self.locale.sections if name.endswith("_fixes")}
        self.numeral = lru_cache(maxsize=4096)(self._numeral)

    @abstractmethod
    def _numeral(self, value: int) -> str:
        """Say a cardinal number of at most 36 digits without a noun after it; 2024 is not said as a year."""

    @abstractmethod
    def ordinal(self, value: int, after: str = "") -> str: ...

    @abstractmethod
    def time(self, hour: int, minute: int, second: Number | None = None, half: str = "") -> str:
        """Say a time of the day. second: None for 0; half: "am" or "pm" if the text names it in any form, else ""."""

    @abstractmethod
    def fraction(self, whole: int, numerator: int, denominator: int) -> str:
        """Say a fraction such as 1/2, or 1½ if `whole`, the number before the fraction, is not 0."""

    def cardinal(self, value: int, after: str = "") -> str:
        return self._formed(self.numeral(value), "counted_fixes", after) if after else self.numeral(value)

    def gender(self, after: str) -> str:
        return ""

    def _formed(self, said: str, fixes: str, after: str) -> str:
        return self._fixed(f"{said}/{self.gender(after)}/{after}", fixes).partition("/")[0]

    def _fixed(self, said: str, fixes: str, most: int = 0) -> str:
        for pattern, instead in self._fixes.get(fixes, ()):
            said, count = pattern.subn(instead, said, count=most)
            if most and count:
                break
        return said

    def join(self, *words: str) -> str:
        return self.locale.joint.join(word for word in words if word)

    def between(self, sides: Sequence[str], word: str) -> str:
        return f"{self.locale.joint}{self.locale.words[word]}{self.locale.joint}".join(sides)

    def form(self, number: Number, forms: Forms) -> str:
        """Return the form of a noun after the number; French uses the singular below 2: 1,5 million."""
        below_two = "below_two" in self.locale.words and number.whole < 2 and not number.power
        return forms[0] if number.is_one or below_two else forms[-1]

    def digits(self, digits: str, phone: bool = False) -> str:
        """Say digits one by one; phone: with the words for telephone numbers, if the language has them (Chinese 1)."""
        names = (phone and self.locale.phone_digits) or self.locale.digits
        return self.join(*(names[int(digit)] for digit in digits))

    def one_by_one(self, written: str, phone: bool = False) -> str:
        """Say digits by name, keep letters, and set pauses between groups; cut long numbers into groups."""
        written = _LONG.sub(lambda found: " ".join(_PAUSED.findall(found[0])), written)
        said = (
            self.join(*(self.digits(one, phone) if one.isdecimal() else one for one in _RUN.findall(group)))
            for group in _GROUP.findall(written)
        )
        tight = "，" if sum(map(str.isalnum, written)) > 6 else ""  # 021-5555: a short number has no pauses
        return (", " if self.locale.joint else tight).join(said)

    def secret(self, written: str) -> str:
        """Say a password such as aB3#: letters as they are, digits one by one, signs by name."""
        names = self.locale.signs
        parts = ((one, names.get(f"address {one}") or names.get(one, one)) for one in _RUN_OR_SIGN.findall(written))
        return self.join(*(self.digits(one) if one.isdecimal() else said for one, said in parts))

    def phone(self, written: str) -> str:
        return self.one_by_one(written, phone=True)

    def version(self, written: str) -> str:
        """Say 2.0.1 part by part; a language without spaces between words says 3.11 as a decimal number."""
        decimals = not self.locale.joint
        said = [
            self.digits(part)
            if len(part) > (2 if place else 3) or (len(part) > 1 and (part[0] == "0" or (place and decimals)))
            else self.numeral(int(part))
            for place, part in enumerate(written.split("."))
        ]  # fmt: skip
        return self.between(said, "point" if self.locale.decimal == "." else "version")

    def decimals(self, digits: str) -> str:
        """Say decimals by digits; in some languages two decimals are one number: 3,14 has "quatorze"."""
        pair = "decimal_pairs" in self.locale.words and len(digits) == 2 and digits[0] != "0"
        return self.numeral(int(digits)) if pair else self.digits(digits)

    def number(self, number: Number, after: str = "") -> str:
        noun = self.magnitude(number) if number.power else ""
        said = self.cardinal(number.whole, "" if number.decimals else noun or after)
        if number.decimals:
            said = self.join(said, self.locale.words["point"], self.decimals(number.decimals))
        if noun:
            said = self._fixed(self.join(said, noun), "magnitude_fixes")
        return self.join(self.locale.words["minus"] if number.negative else "", said)

    def magnitude(self, number: Number) -> str:
        """Return the table's first word for 10 to the power of `number.power`, such as "million"."""
        return next(word for word, power in self.locale.magnitudes.items() if power == number.power)

    def year(self, value: int) -> str:
        return self.digits(str(value)) if "year_digits" in self.locale.words else self.numeral(value)

    def day(self, day: int) -> str:
        return (day == 1 and self.locale.words.get("first")) or self.numeral(day)

    def date(self, year: int | None, month: int | None, day: int | None, written: str = "") -> str:
        said_year = self.year(year) if year is not None else ""
        parts = (self.day(day) if day else "", self.locale.month_names[month - 1] if month else "", said_year)
        joint = self.locale.words.get("date_of")
        return f" {joint} ".join(filter(None, parts)) if joint else self.join(*parts)

    def duration(self, hours: int | None, minutes: int, seconds: Number | None) -> str:
        """Say a duration such as 1:02:03. If `hours` or `seconds` is None, the last part is left out if it is 0."""
        parts = ((None if hours is None else Number(hours), "h"), (Number(minutes), "min"), (seconds, "s"))
        named = [(value, name) for value, name in parts if value is not None]
        said = [self.unit(value, self.locale.units[name]) for value, name in named]
        if len(said) == 2 and named[1][0] == Number(0):
            return said[0]
        return self.join(*(f"{one}," for one in said[:-2]), said[-2], self.locale.words["and"], said[-1])

    def money(self, number: Number, currency: str) -> str:
        """Say an amount; currency: a key of `locale.currencies`. 3.50 is said in units and, if there are any, cents."""
        main, minor = self.locale.currencies[currency]
        if not minor:
            number = replace(number, decimals=number.decimals.rstrip("0"))
        cents = Number(int(number.decimals[:2] or 0))
        if len(number.decimals) != 2 or not minor or number.power:
            return self.unit(number, main)
        said = self.unit(replace(number, decimals=""), main) if number.whole or not cents.whole else ""
        joint = self.locale.words.get("cents", "") if said else ""
        return self.join(said, joint, self.unit(cents, minor)) if cents.whole else said

    def percent(self, number: Number) -> str:
        said = self.unit(replace(number, negative=False), tuple(self.locale.words["percent"].split("/")))
        return self.join(self.locale.words["minus"] if number.negative else "", said)

    def unit(self, number: Number, forms: Forms) -> str:
        """Say a number with its unit: "un millón de euros". In the form "每小时{}公里", the number replaces {}."""
        before, _, form = self.form(number, forms).rpartition("{}")
        said, millions = self.number(number, form), number.whole and not number.whole % 10**6 and not number.decimals
        many = "of_many" in self.locale.words and (number.power >= 6 or millions)
        return self.of(said, form) if many else self.join(before.strip(), said, form)

    def of(self, said: str, form: str) -> str:
        """Join millions, or a fraction, with a unit: "un millón de euros"."""
        of = self.locale.words.get("of_many", "")
        return f"{said} d'{form}" if of == "d'" and form[0] in "aehiou" else self.join(said, of.replace("'", "e"), form)

    def range(self, low: str, high: str) -> str:
        return self.join(low, self.locale.words["to"], high)

    def score(self, sides: Sequence[int]) -> str:
        return self.between([*map(self.cardinal, sides)], "score")

    def ratio(self, sides: Sequence[str]) -> str:
        return self.between(sides, "ratio")

    def reign(self, value: int) -> str:
        """Say the number after the name of a king or a pope: Louis XIV."""
        return self.locale.words["reign"].format(self.ordinal(value))


@cache
def load_verbalizer(language: str, day_first: bool = False) -> Verbalizer | None:
    """Import and return the verbalizer of a language; None for a language that has no verbalizer.

    day_first: 3/4/2026 is the third of April, even if the language's table has the month first.
    """
    if language not in VERBALIZERS:
        return None
    module, name = VERBALIZERS[language].split(".")
    found: Verbalizer = getattr(import_module(f"{__package__}.{module}"), name)(language)
    if day_first:
        found.locale = replace(found.locale, order="dmy")
    return found
