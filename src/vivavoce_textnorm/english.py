"""Verbalizer of English: "two hundred and five", "March fifth, twenty twenty four"."""

from __future__ import annotations

from dataclasses import replace

from vivavoce_textnorm.grammar import Match, compiled, parse_number
from vivavoce_textnorm.romance import European
from vivavoce_textnorm.types import Number

_SWAPPED = str.maketrans(".,", ",.")
_ERA = compiled(r"\s?(?:A\.?D|B\.?C\.?(?:E)?|C\.?E)\b")
_INCH = compiled(r"(?<=\d)\"")


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
        """Say digits in pairs, as in the number of a room: 1600 is "sixteen hundred", 221 "two twenty one"."""
        value = int(digits)
        if len(digits) not in (3, 4) or digits[0] == "0":
            return self.digits(digits) if len(digits) > 4 else self.numeral(value)
        high, low = divmod(value, 100)
        if not low:
            return f"{self.numeral(high)} hundred" if high % 10 else self.numeral(value)
        return f"{self.numeral(high)} {'oh ' if low < 10 else ''}{self.numeral(low)}"

    def date(self, year: int | None, month: int | None, day: int | None, written: str = "") -> str:
        """Say "March fifth, twenty twenty four", or "the fifth of March, …" if the text or locale puts the day
        first."""
        name = self.locale.month_names[month - 1] if month else ""
        said = self.ordinal(day) if day else ""
        if day and month:
            named = any(map(str.isalpha, written.replace("th", "").replace("st", "")))
            day_first = written[:1].isdigit() if named else self.locale.order == "dmy"
            said = f"the {said} of {name}" if day_first else f"{name} {said}"
        return ", ".join(filter(None, (said or name, self.year(year) if year is not None else "")))

    def time(self, hour: int, minute: int, second: Number | None = None, half: str = "") -> str:
        """9:05 is "nine oh five", 9:00 "nine o'clock", 14:00 "fourteen hundred", 0:00 "midnight"."""
        said = self.numeral(hour)
        if minute or second:
            said = f"{said} {'oh ' if minute < 10 else ''}{self.numeral(minute)}"
        elif not half:
            said = "midnight" if hour in (0, 24) else f"{said} o'clock" if hour < 13 else f"{said} hundred"
        if second:
            said = f"{said} and {self.unit(second, self.locale.units['s'])}"
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

    def _decade(self, found: Match) -> str:
        """Read a decade (1990s, '80s) or a number in the plural (B-52s, under-6s)."""
        digits = found["d"]
        last = self.numeral(int(digits[-2:])) if digits[-2:] != "00" else ""
        plural = f"{last[:-1]}ies" if last.endswith("y") else f"{last}es" if last.endswith("x") else f"{last}s"
        if len(digits) < 3 and last:
            return plural
        if len(digits) == 3:
            return f"{self.numeral(int(digits))}s"
        if last:
            return f"{self.numeral(int(digits[:2]))} {plural}"
        return "two thousands" if digits in ("00", "2000") else f"{self.numeral(int(digits[:2]))} hundreds"

    def _year(self, found: Match) -> str | None:
        """Read four digits as a year; None if a plural noun after them, or a word before them, shows a count."""
        before = found.string[max(0, found.start() - 16) : found.start()].lower().split()
        after = found.string[found.end() : found.end() + 20]
        word = after.strip().split(" ")[0].strip(".,;:!?)\"'’”")
        plural = len(word) > 3 and word[-1] == "s" and word[-2] not in "suia"
        counted = after[:1] == " " and word.islower() and (plural or word in self.not_years)
        cue = before[-1].strip("(") if before else ""
        era = _ERA.match(after) or found.string[: found.start()].endswith("AD ")
        if cue not in self.year_cues and not era and (counted or cue in self.number_cues or found[0] < "1100"):
            return None
        return self.year(int(found[0]))

    def _inches(self, found: Match) -> str | None:
        """Read 6.1" as inches; None if the sign " closes a quotation."""
        line = found.string[found.string.rfind("\n", 0, found.start()) + 1 : found.start()]
        if found["sign"] == '"' and (line.count('"') - len(_INCH.findall(line))) % 2:
            return None
        if found["n"] is None:
            return self.fraction(int(found["w"] or 0), int(found["a"]), int(found["b"])) + " inch"
        said = self.unit(parse_number(found["n"], self.locale), ("inch",) if found["noun"] else ("inch", "inches"))
        return self.join(self.number(parse_number(found["m"], self.locale)) + " to" if found["m"] else "", said)

    def _continental(self, found: Match) -> str:
        """Read a number with continental European separators: 10.000,00 €, 1,5 km."""
        number = parse_number(found["n"].translate(_SWAPPED), self.locale)
        sign = found["a"] or found["b"]
        if sign in self.locale.units:
            return self.unit(number, self.locale.units[sign])
        return self.money(number, sign) if sign else self.number(number)

    def _spaced(self, found: Match) -> str:
        """Read a number with spaces or apostrophes between thousands: 1 000 000, 1'000'000 francs, $10 000."""
        number = parse_number(found["number"] + (found["decimals"] or ""), self.locale)
        if found["sign"]:
            return self.money(number, found["sign"])
        return self.unit(number, self.locale.units[found["unit"]]) if found["unit"] else self.number(number)

    def _fraction_or_date(self, found: Match) -> str | None:
        """Read 12/3 as a date after a word such as "on"; after others such as "by", only if no fraction is likely."""
        first, second = int(found["m"]), int(found["d"])
        sure = found["sure"] is not None or found["m"][0] == "0" or first >= second
        day_first = first > 12 or (self.locale.order == "dmy" and second <= 12)
        day, month = (first, second) if day_first else (second, first)
        if month > 12 or not (sure or (second > 12 and second not in (16, 32))):
            return None
        return self.date(None, month, day)

    def _attributive(self, found: Match) -> str:
        """Read an amount before a noun, where its unit or currency is singular: "a 3€ coffee"."""
        power = self.locale.magnitudes[found["mag"]] if found["mag"] else 0
        forms = self.locale.units.get(found["unit"] or "") or self.locale.currencies[found["sign"] or found["unit"]][0]
        number = parse_number(found["n"], self.locale, power=power)
        cents = number.decimals if found["sign"] and not power and len(number.decimals) == 2 else ""
        said = self.unit(replace(number, decimals="") if cents else number, (forms[0],))
        return self.join(said, "oh" * cents.startswith("0"), self.numeral(int(cents)) if cents else "")

    def _street(self, found: Match) -> str:
        """Read "St." as street after a name, otherwise as saint; "Dr." as drive after a name, unless a name follows."""
        named, before = found["name"] is not None, found["before"] is not None
        if found["short"] == "St":
            said = "Street" if before else "Saint"
        else:
            said = "Drive" if before and not named else "Doctor"
        return said + ("" if found.string[found.end() :].strip() else ".")
