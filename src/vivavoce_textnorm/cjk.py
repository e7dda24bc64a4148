"""Verbalizers of Chinese, Cantonese, Japanese and Korean. They say numbers in groups of four digits, and each part of a
date or time as a number with its unit.

Japanese counters stay as they are written ("三個", "一人"), so that the model chooses the pronunciation. Cantonese uses
the tables of Mandarin and some further words, in traditional characters.
"""

from __future__ import annotations

from vivavoce_textnorm.grammar import compiled
from vivavoce_textnorm.types import Number
from vivavoce_textnorm.verbalizer import Verbalizer


class EastAsian(Verbalizer):
    """Verbalizer of a language that groups digits by ten thousand."""

    def __init__(self, language: str) -> None:
        super().__init__(language)
        self._traditional = str.maketrans(*(self.locale.list("traditional") or ("", "")))

    def join(self, *words: str) -> str:
        """Join the words, in traditional characters if the language's table asks for them."""
        said = super().join(*words)
        return said.translate(self._traditional) if self._traditional else said

    def _numeral(self, value: int) -> str:
        """Say each digit with the word for its place (十, 百), an empty place as 0; fixes then drop silent parts."""
        digits, places = self.locale.digits, (*self.locale.list("places"), "")
        said: list[str] = []
        for name in ("", *self.locale.list("groups")):
            value, group = divmod(value, 10_000)
            named = zip(f"{group:04}", places, strict=True)
            words = "".join(digits[int(digit)] + place if digit != "0" else "0" for digit, place in named)
            said.insert(0, words + (name if group else ""))
            if not value:
                break
        return self.join(self._fixed(self.join(*said), "cardinal_fixes") or digits[0])

    def number(self, number: Number, after: str = "") -> str:
        """Regroup the digits by ten thousand: 3.5 million is "三百五十万"."""
        if number.power % 4:
            places = number.decimals.ljust(number.power, "0")
            whole = int(f"{number.whole}{places[: number.power]}")
            number = Number(whole, places[number.power :], number.negative)
        return super().number(number, after)

    def ordinal(self, value: int, after: str = "") -> str:
        """3rd is "第三" in Chinese and "三番目" in Japanese."""
        before, _, noun = self.locale.words["ordinal"].partition("{}")
        return self.join(before, self.cardinal(value, noun), noun)

    def parts(self, *named: tuple[int | str | None, str]) -> str:
        """Say each number with its unit; skip a number that is None. Hours alone may have native Korean numerals."""
        words = self.locale.words
        said = ((self.cardinal(one, words[name] * ("hour" in name)) if isinstance(one, int) else one, words[name])
                for one, name in named if one is not None)  # fmt: skip
        return self.join(*(word for pair in said for word in pair))

    def date(self, year: int | None, month: int | None, day: int | None, written: str = "") -> str:
        """Say a date such as "二千二十四年三月五日"; Chinese says the digits of the year one by one."""
        said_year = self.year(year) if year is not None else None
        return self._fixed(self.parts((said_year, "year"), (month, "month"), (day, "day")), "date_fixes")

    def time(self, hour: int, minute: int, second: Number | None = None, half: str = "") -> str:
        """14:30 is "十四時三十分", 9:00 "九時", 9:05 in Chinese 九点零五分."""
        few = "few" in self.locale.words  # the language says 0 before minutes below ten
        past = f"{self.locale.digits[0]}{self.numeral(minute)}" if few and 0 < minute < 10 else minute
        shown = past if minute or (few and second) else None
        said = self.parts((hour, "hour"), (shown, "minute"), (self.number(second) if second else None, "second"))
        return self.join(self.locale.words[half] if half else "", said)

    def duration(self, hours: int | None, minutes: int, seconds: Number | None) -> str:
        """1:02:03 is "一時間二分三秒"."""
        shown = None if hours is not None and seconds is None and not minutes else minutes
        last = None if seconds is None or (hours is None and seconds == Number(0)) else self.number(seconds)
        return self.parts((hours, "hours"), (shown, "minute"), (last, "second"))

    def fraction(self, whole: int, numerator: int, denominator: int) -> str:
        """1/2 is "二分の一", 1½ "一と二分の一"; Chinese says the numerator of 120/80 first."""
        words, above, below = self.locale.words, self.cardinal(numerator), self.cardinal(denominator)
        if numerator > denominator and "over" in words:
            return f"{above}{words['over']}{below}"
        said = self._fixed(self.join(below, words["of_parts"], above), "fraction_fixes")
        return self.join(self.cardinal(whole) + words["and"], said) if whole else said

    def reign(self, value: int) -> str:
        """XIV is "十四世"."""
        return self.join(self.cardinal(value), self.locale.words["reign"])


class Korean(EastAsian):
    """Verbalizer of Korean: native numerals before most counters ("세 개"), else Sino-Korean numerals ("삼 층")."""

    def __init__(self, language: str) -> None:
        super().__init__(language)
        self._native, self._tens = (("", *self.locale.list(name)) for name in ("native", "native_tens"))
        self._counters = compiled(self.locale.pattern("counters"))

    def digits(self, digits: str, phone: bool = False) -> str:
        """Say digits one by one, without spaces between them."""
        return super().digits(digits, phone).replace(" ", "")

    def cardinal(self, value: int, after: str = "") -> str:
        """3 is "세" before a native counter, else "삼"; 1st is "첫 번째"."""
        counter = self._counters.match(after) if 0 < value < 100 else None
        if not counter or (counter[0] == "시" and value > 12):
            return self.numeral(value)
        if value == 1 and after.startswith("번째"):
            return "첫"
        return "스무" if value == 20 else self._tens[value // 10] + self._native[value % 10]

    def range(self, low: str, high: str) -> str:
        """Write the particle of the range without a space before it."""
        return f"{low}{self.locale.words['to']} {high}"
