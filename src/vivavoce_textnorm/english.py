"""English, as most of its speakers read numbers out: "two hundred and five", "March fifth, twenty twenty four"."""

from __future__ import annotations

from vivavoce_textnorm.romance import European
from vivavoce_textnorm.types import Number


class English(European):
    def __init__(self, language: str) -> None:
        super().__init__(language)
        self.year_cues, self.number_cues, self.not_years = map(
            self.locale.list, ("year_cues", "number_cues", "not_years")
        )

    def year(self, value: int) -> str:
        """1905 is "nineteen oh five", 2005 "two thousand five", 2024 "twenty twenty four"."""
        century, rest = divmod(value, 100)
        if not 1000 <= value < 10_000 or (century % 10 == 0 and rest < 10):
            return self.numeral(value).replace(" and ", " ") if value >= 1000 else self.numeral(value)
        return self.pairs(str(value))

    def pairs(self, digits: str) -> str:
        """The number of a house or a room: 1600 is "sixteen hundred", 221 "two twenty one"."""
        value = int(digits)
        if len(digits) not in (3, 4) or digits[0] == "0":
            return self.digits(digits) if len(digits) > 4 else self.numeral(value)
        high, low = divmod(value, 100)
        if not low:
            return f"{self.numeral(high)} hundred" if high % 10 else self.numeral(value)
        return f"{self.numeral(high)} {'oh ' if low < 10 else ''}{self.numeral(low)}"

    def date(self, year: int | None, month: int | None, day: int | None, written: str = "") -> str:
        """ "March fifth, twenty twenty four"; "the fifth of March, …" where the day is written before the name."""
        name = self.locale.month_names[month - 1] if month else ""
        said = self.ordinal(day) if day else ""
        if day and month:
            day_first = written[:1].isdigit() and any(map(str.isalpha, written.replace("th", "").replace("st", "")))
            said = f"the {said} of {name}" if day_first else f"{name} {said}"
        return ", ".join(filter(None, (said or name, self.year(year) if year is not None else "")))

    def time(self, hour: int, minute: int, second: int | None = None, half: str = "") -> str:
        """9:05 is "nine oh five", 9:00 "nine o'clock", 14:00 "fourteen hundred", 0:00 "midnight"."""
        said = self.numeral(hour)
        if minute or second:
            said = f"{said} {'oh ' if minute < 10 else ''}{self.numeral(minute)}"
        elif not half:
            said = "midnight" if hour in (0, 24) else f"{said} o'clock" if hour < 13 else f"{said} hundred"
        if second:
            said = f"{said} and {self.unit(Number(second), self.locale.units['s'])}"
        return self.join(said, half.upper())

    def fraction(self, whole: int, numerator: int, denominator: int) -> str:
        """1/2 is "one half", 3/4 "three quarters", 8/10 "eight out of ten", 1 1/2 "one and a half"."""
        above, below = self.numeral(numerator), self.numeral(denominator)
        if numerator + denominator == 100 and numerator >= denominator:
            return f"{above} {below}"
        if denominator in (10, 100) and not whole and 1 < numerator <= denominator:
            return f"{above} out of {below}"
        if (denominator > 20 and denominator not in (32, 64, 100)) or numerator > denominator:
            said = f"{above} over {below}"
        else:
            name = self.locale.words.get(f"part_{denominator}") or self.ordinal(denominator)
            said = f"{above} {name if numerator == 1 else 'halves' if name == 'half' else f'{name}s'}"
        return f"{self.numeral(whole)} and {said.replace('one half', 'a half')}" if whole else said

    def reign(self, value: int, name: str = "") -> str:
        """Louis XIV is "Louis the fourteenth"."""
        return f"the {self.ordinal(value)}"
