"""English, as most of its speakers read numbers out: "two hundred and five", "March fifth, twenty twenty four"."""

from __future__ import annotations

from vivavoce.service.text.natural.grammar import Match, any_of, compiled, parse_number
from vivavoce.service.text.natural.tables import load_tables
from vivavoce.service.text.natural.values import Number
from vivavoce.service.text.natural.verbalizer import Rule, Verbalizer
from vivavoce.service.text.natural.written import written_rules

TABLES = load_tables("en")
LOCALE = TABLES.locale
_SMALL, _TENS, _THOUSANDS = map(TABLES.words, ("small", "tens", "thousands"))
_ORDINALS = TABLES.pairs("ordinals")
_YEAR_CUES, _NUMBER_CUES, _NOT_YEARS = map(TABLES.words, ("year_cues", "number_cues", "not_years"))


def _below_thousand(value: int, joint: str) -> str:
    hundreds, rest = divmod(value, 100)
    said = f"{_SMALL[hundreds]} hundred" if hundreds else ""
    if not rest:
        return said
    tens = _SMALL[rest] if rest < 20 else f"{_TENS[rest // 10]} {_SMALL[rest % 10] if rest % 10 else ''}".rstrip()
    return f"{said}{joint}{tens}" if said else tens


class English(Verbalizer):
    """English."""

    locale = LOCALE

    def cardinal(self, value: int, after: str = "") -> str:
        """2024 is "two thousand and twenty four": the last three digits alone have an "and"; there are no hyphens."""
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

    def year(self, value: int) -> str:
        """1905 is "nineteen oh five", 2005 "two thousand five", 2024 "twenty twenty four"."""
        century, rest = divmod(value, 100)
        if not 1000 <= value < 10_000 or (century % 10 == 0 and rest < 10):
            return self.cardinal(value).replace(" and ", " ") if value >= 1000 else self.cardinal(value)
        if not rest:
            return f"{self.cardinal(century)} hundred"
        return f"{self.cardinal(century)} {'oh ' if rest < 10 else ''}{self.cardinal(rest)}"

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
        said = self.cardinal(hour)
        if minute or second:
            said = f"{said} {'oh ' if minute < 10 else ''}{self.cardinal(minute)}"
        elif not half:
            said = "midnight" if hour in (0, 24) else f"{said} o'clock" if hour < 13 else f"{said} hundred"
        if second:
            said = f"{said} and {self.unit(Number(second), ('second', 'seconds'))}"
        return self.join(said, half.upper())

    def duration(self, hours: int, minutes: int, seconds: int) -> str:
        """ "one hour, two minutes and three seconds"."""
        named = ((hours, "hour"), (minutes, "minute"), (seconds, "second"))
        said = [self.unit(Number(value), (name, f"{name}s")) for value, name in named]
        return f"{said[0]}, {said[1]} and {said[2]}"

    def money(self, number: Number, currency: str) -> str:
        """$3.50 is "three dollars and fifty cents"."""
        main, minor = self.locale.currencies[currency]
        if len(number.decimals) == 2 and minor and not number.power and number.whole and int(number.decimals):
            cents = self.unit(Number(int(number.decimals)), minor)
            return f"{self.unit(Number(number.whole, negative=number.negative), main)} and {cents}"
        return super().money(number, currency)

    def fraction(self, whole: int, numerator: int, denominator: int) -> str:
        """1/2 is "one half", 3/4 "three quarters", 8/10 "eight out of ten", 1 1/2 "one and a half"."""
        if numerator + denominator == 100 and numerator >= denominator:
            return f"{self.cardinal(numerator)} {self.cardinal(denominator)}"
        if denominator in (10, 100) and not whole and 1 < numerator <= denominator:
            return f"{self.cardinal(numerator)} out of {self.cardinal(denominator)}"
        if (denominator > 20 and denominator not in (32, 64, 100)) or numerator > denominator:
            said = f"{self.cardinal(numerator)} over {self.cardinal(denominator)}"
            return f"{self.cardinal(whole)} and {said}" if whole else said
        name = {2: "half", 4: "quarter"}.get(denominator) or self.ordinal(denominator)
        if numerator != 1:
            name = "halves" if name == "half" else f"{name}s"
        said = f"{self.cardinal(numerator)} {name}"
        return f"{self.cardinal(whole)} and {said.replace('one half', 'a half')}" if whole else said

    def reign(self, value: int) -> str:
        """Louis XIV is "Louis the fourteenth"."""
        return f"the {self.ordinal(value)}"

    def pairs(self, digits: str) -> str:
        """The number of a house or a room: 1600 is "sixteen hundred", 221 "two twenty one"."""
        value = int(digits)
        if len(digits) not in (3, 4) or digits[0] == "0":
            return self.digits(digits) if len(digits) > 4 else self.cardinal(value)
        high, low = divmod(value, 100)
        if not low:
            return f"{self.cardinal(high)} hundred" if high % 10 else self.cardinal(value)
        return f"{self.cardinal(high)} {'oh ' if low < 10 else ''}{self.cardinal(low)}"


def _decade(voice: English, found: Match) -> str:
    digits = found["d"]
    last = voice.cardinal(int(digits[-2:])) if digits[-2:] != "00" else ""
    plural = f"{last[:-1]}ies" if last.endswith("y") else f"{last}s"
    if len(digits) == 2 and last:
        return plural
    if last:
        return f"{voice.cardinal(int(digits[:2]))} {plural}"
    return "two thousands" if digits in ("00", "2000") else f"{voice.cardinal(int(digits[:2]))} hundreds"


def _year(voice: English, found: Match) -> str | None:
    """A number of four digits is a year unless a noun in the plural, or a word before it, shows that it counts."""
    before = found.string[max(0, found.start() - 16) : found.start()].lower().split()
    after = found.string[found.end() : found.end() + 20]
    word = after.strip().split(" ")[0].strip(".,;:!?)\"'’”")
    plural = len(word) > 3 and word[-1] == "s" and word[-2] not in "suia"
    counted = after[:1] == " " and word.islower() and (plural or word in _NOT_YEARS)
    cue = before[-1].strip("(") if before else ""
    if cue not in _YEAR_CUES and (counted or cue in _NUMBER_CUES or found[0] < "1100"):
        return None
    return voice.year(int(found[0]))


def _street(voice: English, found: Match) -> str:
    """St. is a street behind a name, else a saint; Dr. a drive behind one unless a name follows it."""
    named, before = found["name"] is not None, found["before"] is not None
    if found["short"] == "St":
        said = "Street" if before else "Saint"
    else:
        said = "Drive" if before and not named else "Doctor"
    return said + ("" if found.string[found.end() :].strip() else ".")


def _inches(voice: English, found: Match) -> str | None:
    """6.1" is in inches unless the sign closes a quotation."""
    line = found.string[found.string.rfind("\n", 0, found.start()) + 1 : found.start()]
    if found["sign"] == '"' and (line.count('"') - len(_INCH.findall(line))) % 2:
        return None
    if found["n"] is None:
        return voice.fraction(int(found["w"] or 0), int(found["a"]), int(found["b"])) + " inch"
    number = parse_number(found["n"], LOCALE)
    singular = _NOUN.match(found.string, found.end())
    forms = ("inch",) if singular else ("inch", "inches")
    return voice.join(
        voice.number(parse_number(found["m"], LOCALE)) + " to" if found["m"] else "", voice.unit(number, forms)
    )


def _european(voice: English, found: Match) -> str:
    """10.000,00 €: with the signs of the continent."""
    number = parse_number(found["n"].translate(_SWAPPED), LOCALE)
    currency = found["a"] or found["b"]
    return voice.money(number, currency) if currency else voice.number(number)


def _short_date(voice: English, found: Match) -> str | None:
    """12/3 is a date behind a word such as "on", or "by" where it could hardly be a fraction."""
    month, day = int(found["m"]), int(found["d"])
    sure = found["sure"] is not None or found["m"][0] == "0" or month >= day
    return voice.date(None, month, day) if sure or (day > 12 and day not in (16, 32)) else None


def _attributive(voice: English, found: Match) -> str:
    """A 3€ coffee: what is counted stands before a noun, and is singular."""
    number = parse_number(found["n"], LOCALE, power=LOCALE.magnitudes[found["mag"]] if found["mag"] else 0)
    forms = LOCALE.units.get(found["unit"] or "") or LOCALE.currencies[found["sign"] or found["unit"]][0]
    return voice.unit(number, (forms[0],))


_SWAPPED = str.maketrans(".,", ",.")
_NOUN = compiled(r" (?!(?:x|by|long|wide|tall|deep|thick|high|and|of|in|or|at|to|is|on|from)\b)\p{L}")
_INCH = compiled(r"(?<=\d)\"")
_PRICES = any_of(sign for sign in LOCALE.currencies if not sign.isalnum())
_WHOLE = r"(?<![\d.,:/$€£¥₹#@_\p{L}-])"
_NO_YEAR = (
    r"[\d%\p{L}°]|[.,:/-]\d|:[\da-f]*:|\s?[-–—]\s?\d|\s?(?:[%€]|k?m\b|km|kg|USD|EUR|million|billion|dollars|euros)"
)
_NOT_NOUN = TABLES.pattern("not_nouns")
English.rules = (
    Rule("decade", r"(?:(?<!\w)['’‘])?(?<!\d)(?P<d>(?:1[1-9]|20)?\d0)['’]?s(?!\p{L})", _decade, "digit sign"),
    Rule("date", r"(?<![\d.,/])(?P<m>1[0-2]|0?[1-9])/(?P<d>3[01]|[12]\d|0?[1-9])"
         r"(?![\d/]|[.,]\d|[ -]\p{L}+ (?:cups?|of))"
         rf"(?:(?P<sure>(?<=(?i:\b(?:on|due|dated|since|until|till)|{any_of(LOCALE.weekdays)})\.?,? [\d/]+))"
         r"|(?<=(?i:\b(?:by|of|from|before|after|through|to|the)) [\d/]+)|(?<=0\d/[\d]+))", _short_date),
    Rule("year", rf"{_WHOLE}(?:1\d\d\d|20\d\d)(?!{_NO_YEAR})", _year),
    Rule("inches", r"(?<![\d./$-])(?:(?:(?P<m>\d+)[-–])?(?P<n>\d+(?:\.\d+)?)|(?:(?P<w>\d+)[ -])?(?P<a>\d)/(?P<b>\d\d?))"
         r"(?P<sign>[\"”″])", _inches),
    Rule("number", r"(?:(?P<a>€) ?)?(?<![\d.,])(?P<n>\d{1,3}(?:\.\d{3})+,\d\d|(?<=€ ?)\d+,\d\d|\d+,\d\d(?= ?€))(?!\d)"
         r"(?: ?(?P<b>€))?", _european, "digit sign"),
    Rule("street", r"(?P<before>(?<=\p{Lu}\p{L}+ |\d(?:st|nd|rd|th) ))?(?<![\p{L}.])(?P<short>St|Dr)\.(?![\p{L}\d])"
         r"(?P<name>(?= \p{Lu}))?", _street, "letter"),
    Rule("money", r"(?<=\b(?i:an?|the|this|that|its|his|her|their|our|your) )"
         rf"(?:(?P<sign>{_PRICES})(?P<n>\d{{1,3}}(?:,\d{{3}})+|\d{{1,9}}(?:\.\d(?!0\b)\d?)?)(?:\.00)?(?![\d.,])"
         r"(?: ?(?P<mag>thousand|million|billion|trillion|bn|[kmMB])\b)?"
         rf"|(?P<n>\d{{1,9}})[ -]?(?P<unit>{_PRICES}|{any_of(LOCALE.units)}))(?=[ -](?!{_NOT_NOUN}\b)\p{{L}}{{2}})",
         _attributive, "digit sign"),
    *written_rules(TABLES),
)  # fmt: skip
VERBALIZER = English()
