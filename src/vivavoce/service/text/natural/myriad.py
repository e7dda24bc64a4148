"""What Japanese and Korean share: numbers in groups of four digits, and dates and times of counted parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from vivavoce.service.text.natural.tables import Tables
from vivavoce.service.text.natural.values import Forms, Number
from vivavoce.service.text.natural.verbalizer import Verbalizer


class Myriad(Verbalizer):
    """A language that counts in myriads; `tables` has what it says."""

    tables: ClassVar[Tables]

    def cardinal(self, value: int, after: str = "") -> str:
        """1500 is "千五百"."""
        if not value:
            return self.locale.digits[0]
        said: list[str] = []
        for place, name in enumerate(("", *self.tables.words("groups"))):
            if group := value // 10_000**place % 10_000:
                said.insert(0, self.group(group, place, value) + name)
        return self.join(*said)

    def group(self, group: int, place: int, value: int) -> str:
        """Four digits of a number."""
        said = ""
        for power, name in zip((1000, 100, 10, 1), (*self.tables.words("places"), ""), strict=True):
            if digit := group // power % 10:
                said += ("" if digit == 1 and power > 1 else self.locale.digits[digit]) + name
        return said

    def ordinal(self, value: int, after: str = "") -> str:
        """3rd is "三番目"."""
        return self.join(self.cardinal(value, self.locale.words["ordinal"]), self.locale.words["ordinal"])

    def magnitude(self, number: Number) -> str:
        """万, 億 and what they make."""
        return next(word for word, power in self.locale.magnitudes.items() if power == number.power)

    def parts(self, named: Sequence[tuple[int | None, str]]) -> str:
        """Numbers, each with the word that counts it; those that are None are left out."""
        words = self.locale.words
        return self.join(
            *(self.join(self.cardinal(one, words[name]), words[name]) for one, name in named if one is not None)
        )

    def date(self, year: int | None, month: int | None, day: int | None, written: str = "") -> str:
        """ "二千二十四年三月五日"."""
        return self.parts(((year, "year"), (month, "month"), (day, "day")))

    def time(self, hour: int, minute: int, second: int | None = None, half: str = "") -> str:
        """14:30 is "十四時三十分", 9:00 "九時"."""
        said = self.parts(
            ((hour, "hour"), (minute or (second and minute) or None, "minute"), (second or None, "second"))
        )
        return self.join(self.locale.words[half] if half else "", said)

    def duration(self, hours: int, minutes: int, seconds: int) -> str:
        """ "一時間二分三秒"."""
        return self.parts(((hours, "hours"), (minutes, "minute"), (seconds, "second")))

    def unit(self, number: Number, forms: Forms) -> str:
        """120km/h is "時速百二十キロ"."""
        before, slot, after = forms[0].partition("{}")
        return self.join(before.strip(), self.number(number), after) if slot else super().unit(number, forms)

    def fraction(self, whole: int, numerator: int, denominator: int) -> str:
        """1/2 is "二分の一", 1½ "一と二分の一"."""
        said = self.join(self.cardinal(denominator), self.locale.words["of_parts"], self.cardinal(numerator))
        return self.join(self.cardinal(whole) + self.locale.words["and"], said) if whole else said

    def reign(self, value: int) -> str:
        """XIV is "十四世"."""
        return self.join(self.cardinal(value), self.locale.words["reign"])
