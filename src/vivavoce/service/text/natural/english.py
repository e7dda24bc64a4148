"""English, as most of its speakers read numbers out: "two hundred and five", "March fifth, twenty twenty four"."""

from __future__ import annotations

from typing import ClassVar

from vivavoce.service.text.natural.values import Locale
from vivavoce.service.text.natural.verbalizer import Verbalizer

_NAMES = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen / zero ten twenty thirty forty fifty sixty seventy eighty ninety / thousand million billion trillion
quadrillion quintillion sextillion septillion octillion nonillion decillion
"""
_SMALL, _TENS, _THOUSANDS = (part.split() for part in _NAMES.split("/"))
_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"}

LOCALE = Locale(
    language="en",
    order="mdy",
    digits=tuple(_SMALL[:10]),
    words={"point": "point", "minus": "minus", "to": "to", "score": "to", "ratio": "to", "percent": "percent"},
)


def _below_thousand(value: int, joint: str) -> str:
    hundreds, rest = divmod(value, 100)
    said = f"{_SMALL[hundreds]} hundred" if hundreds else ""
    if not rest:
        return said
    tens = _SMALL[rest] if rest < 20 else f"{_TENS[rest // 10]} {_SMALL[rest % 10] if rest % 10 else ''}".rstrip()
    return f"{said}{joint}{tens}" if said else tens


class English(Verbalizer):
    """English."""

    locale: ClassVar[Locale] = LOCALE

    def cardinal(self, value: int, after: str = "") -> str:
        """2024 is "two thousand and twenty four"; only the last three digits have an "and", and there are no hyphens."""
        if value == 0:
            return _SMALL[0]
        said: list[str] = []
        rest, place = divmod(value, 1000)
        if place:
            said = ["and" if rest and place < 100 else "", _below_thousand(place, " and ")]
        for power in _THOUSANDS:
            rest, group = divmod(rest, 1000)
            if group:
                said = [_below_thousand(group, " "), power, *said]
        return " ".join(word for word in said if word)

    def ordinal(self, value: int, after: str = "") -> str:
        """21 is "twenty first"."""
        said = self.cardinal(value)
        cut = said.rfind(" ") + 1
        last = said[cut:]
        if last in _ORDINALS:
            return said[:cut] + _ORDINALS[last]
        return said[:cut] + (f"{last[:-1]}ie" if last.endswith("y") else last.replace("twelve", "twelf")) + "th"

    def fraction(self, whole: int, numerator: int, denominator: int) -> str:
        """1/2 is "one half", 3/4 "three quarters", 22/100 "twenty two hundredths"."""
        name = {2: "half", 4: "quarter"}.get(denominator) or self.ordinal(denominator)
        if numerator != 1:
            name = "halves" if name == "half" else f"{name}s"
        said = f"{self.cardinal(numerator)} {name}"
        return f"{self.cardinal(whole)} and {said.replace('one half', 'a half')}" if whole else said


VERBALIZER = English()
