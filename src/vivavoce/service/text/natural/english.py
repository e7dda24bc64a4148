"""English, as most of its speakers read numbers out: "two hundred and five", "March fifth, twenty twenty four"."""

from __future__ import annotations

from typing import ClassVar

from vivavoce.service.text.natural.grammar import Match, any_of, parse_number
from vivavoce.service.text.natural.tables import load_tables
from vivavoce.service.text.natural.values import Locale, Number
from vivavoce.service.text.natural.verbalizer import Rule, Verbalizer

LOCALE = load_tables("en").locale
_NAMES = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen / zero ten twenty thirty forty fifty sixty seventy eighty ninety / thousand million billion trillion
quadrillion quintillion sextillion septillion octillion nonillion decillion
"""
_SMALL, _TENS, _THOUSANDS = (part.split() for part in _NAMES.split("/"))
_ORDINALS = {"one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth"}
_NOT_YEARS = ("people", "men", "women", "children", "copies")
_CUES = """
in since until till by from of year before after during circa around early late mid summer winter spring fall autumn ©
were are was is has have over about than x * = + room costs there only exactly some all nearly
"""
_YEAR_CUES, _NUMBER_CUES = map(str.split, _CUES.strip().splitlines())


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
        if denominator in (10, 100) and not whole and numerator > 1:
            return f"{self.cardinal(numerator)} out of {self.cardinal(denominator)}"
        if (denominator > 20 and denominator != 100) or numerator > denominator * 10:
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
            return (
                f"{self.cardinal(high)} {'hundred' if value % 1000 else 'thousand'}"
                if high % 10
                else self.cardinal(value)
            )
        return f"{self.cardinal(high)} {'oh ' if low < 10 else ''}{self.cardinal(low)}"


def _decade(voice: English, found: Match) -> str:
    digits = found["d"]
    last = voice.cardinal(int(digits[-2:])) if digits[-2:] != "00" else ""
    plural = f"{last[:-1]}ies" if last.endswith("y") else f"{last}s"
    if len(digits) == 2:
        return plural
    if last:
        return f"{voice.cardinal(int(digits[:2]))} {plural}"
    return "two thousands" if digits == "2000" else f"{voice.cardinal(int(digits[:2]))} hundreds"


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


def _ordinal(voice: English, found: Match) -> str:
    return voice.ordinal(int(found["n"].replace(",", "")))


def _street(voice: English, found: Match) -> str:
    """St. is a street behind a name, else a saint; Dr. a drive behind one unless a name follows it."""
    named, before = found["name"] is not None, found["before"] is not None
    if found["short"] == "St":
        said = "Street" if before else "Saint"
    else:
        said = "Drive" if before and not named else "Doctor"
    return said + ("" if found.string[found.end() :].strip() else ".")


def _house(voice: English, found: Match) -> str:
    return voice.join(voice.pairs(found["n"]), found["letter"] or "")


def _feet(voice: English, found: Match) -> str:
    feet = voice.unit(Number(int(found["f"])), ("foot", "feet"))
    return f"{feet} {voice.unit(Number(int(found['i'])), ('inch', 'inches'))}" if found["i"] else feet


def _hours(voice: English, found: Match) -> str:
    hours = voice.unit(Number(int(found["h"])), ("hour", "hours"))
    return f"{hours} and {voice.unit(Number(int(found['m'])), ('minute', 'minutes'))}"


def _weekdays(voice: English, found: Match) -> str:
    return f"{LOCALE.weekdays[found['a']]} to {LOCALE.weekdays[found['b']]}"


def _emergency(voice: English, found: Match) -> str | None:
    before = found.string[max(0, found.start() - 60) : found.start()].lower()
    return voice.digits(found[0]) if any(cue in before for cue in ("call", "dial", "phone", "emergency")) else None


def _digits(voice: English, found: Match) -> str:
    groups = found[0].replace(" ", "-").split("-")
    return ", ".join(" ".join(voice.digits(one) if one.isdigit() else one for one in group) for group in groups)


def _attributive(voice: English, found: Match) -> str:
    """A 3€ coffee: what is counted stands before a noun, and is singular."""
    forms = LOCALE.units.get(found["unit"] or "") or LOCALE.currencies[found["sign"] or found["unit"]][0]
    return f"{voice.cardinal(int(found['n']))} {forms[0]}"


_STREETS = "St|Street|Ave|Avenue|Rd|Road|Blvd|Boulevard|Ln|Lane|Dr|Drive|Way|Court|Ct|Place|Pl|Square|Sq|Hwy|Highway"
_PER = {"mo": "month", "yr": "year", "hr": "hour", "day": "day", "month": "month", "year": "year", "week": "week"}
_DAY = any_of(LOCALE.weekdays)
_PRICES = any_of(sign for sign in LOCALE.currencies if not sign.isalnum())
_COUNTED = rf"{_PRICES}|{any_of(LOCALE.units)}"
_WHOLE = r"(?<![\d.,:/$€£¥₹#@_\p{L}-])"
_NO_YEAR = (
    r"[\d%\p{L}°]|[.,:/-]\d|:[\da-f]*:|\s?[-–—]\s?\d|\s?(?:[%€]|k?m\b|km|kg|USD|EUR|million|billion|dollars|euros)"
)
English.rules = (
    Rule("decade", r"(?:(?<!\w)['’‘])?(?<!\d)(?P<d>(?:1[1-9]|20)?\d0)['’]?s(?!\p{L})", _decade, "digit sign"),
    Rule("ordinal", r"(?<![\p{L}\d.,])(?P<n>\d{1,3}(?:,\d{3})+|\d{1,12})(?:st|nd|rd|th)(?![\p{L}\d])"
         rf"(?! (?:of )?(?i:{any_of(LOCALE.months)})\b)", _ordinal),
    Rule("emergency", rf"{_WHOLE}(?:911|999|112)(?![\d%]|[.,:]\d|\s\p{{Ll}})", _emergency),
    Rule("address", r"(?<![\p{L}\d.,:$-])(?P<n>\d{1,5})(?P<letter>[A-Z])?(?= (?:(?:[NSEW]\.?|North|South|East|West) )?"
         rf"(?:\p{{Lu}}\p{{L}}+\.? ){{1,3}}(?:{_STREETS})\b)", _house),
    Rule("ZIP code", r"(?<=(?<!\p{L})[A-Z]{2},? )\d{5}(?:-\d{4})?(?!\d|[.,]\d)", _digits),
    Rule("ISBN", r"(?<=(?:ISBN|ISSN)(?:-1[03])?:? ?)\d[\d -]{6,15}[\dX](?!\d)", _digits),
    Rule("year", rf"{_WHOLE}(?:1\d\d\d|20\d\d)(?!{_NO_YEAR})", _year),
    Rule("feet", r"(?<![\d.,])(?P<f>\d{1,2})['′](?:\s?(?P<i>\d{1,2})(?:[\"″”]|''))", _feet),
    Rule("feet", r"(?<![\d.,])(?P<f>\d{1,2})\s?ft\.?\s(?P<i>\d{1,2})\s?in\b\.?(?!\s\p{Ll}\p{Ll})", _feet),
    Rule("weekdays", rf"(?<!\p{{L}})(?P<a>{_DAY})\.?\s?[-–]\s?(?P<b>{_DAY})(?!\p{{L}})"
         r"(?:\.(?=,|\s[\d\p{Ll}]))?", _weekdays, "letter"),
    Rule("weekdays", rf"(?<!\p{{L}})(?P<a>{_DAY})(?<!day)"
         rf"(?:\.(?=,? [\p{{Lu}}\d])|(?=, (?i:{any_of(LOCALE.months)})\b))",
         lambda voice, found: LOCALE.weekdays[found["a"]], "letter"),
    Rule("street", r"(?P<before>(?<=\p{Lu}\p{L}+ |\d(?:st|nd|rd|th) ))?(?<![\p{L}.])(?P<short>St|Dr)\.(?![\p{L}\d])"
         r"(?P<name>(?= \p{Lu}))?", _street, "letter"),
    Rule("number", r"(?<!\p{L})(?:[Nn]os?\.|N[oº]\.?|№)\s?(?=\d)", lambda voice, found: "number ", "letter"),
    Rule("page", r"(?<!\p{L})(?:pp|p)\.\s?(?=\d)",
         lambda voice, found: "pages " if "pp" in found[0] else "page ", "letter"),
    Rule("times", r"(?<![\p{L}\d.,])(?P<n>\d+(?:\.\d+)?)[x×](?=\s\p{Ll}|[.,;!?)]|\Z)",
         lambda voice, found: f"{voice.number(parse_number(found['n'], LOCALE))} times"),
    Rule("identifier", r"(?<=(?<!\p{L})[A-Z]{2})[1-9]\d{2,3}(?![\p{L}\d]|[.,-]\d)",
         lambda voice, found: voice.pairs(found[0])),
    Rule("identifier", r"(?<=\b(?i:code|pin|otp|passcode|password|account)(?: is| no\.?|:)? )\d{4,}(?![\d.,:/-]\d)",
         lambda voice, found: voice.digits(found[0])),
    Rule("room", r"(?<=\b(?i:room|suite|flight|gate|route|highway|bus)(?: [A-Z]{2})? )[1-9]\d{2,3}(?![\d.,:/-]\d|\d)",
         lambda voice, found: voice.pairs(found[0])),
    Rule("standard", r"(?<!\p{L})(?P<l>\p{Lu})\.(?P<n>\d{3})(?!\d)",
         lambda voice, found: f"{found['l']} {voice.pairs(found['n'])}", "letter"),
    Rule("duration", r"(?<![\d.,:])(?P<h>\d{1,3})\s?h(?:rs?)?\s?(?P<m>[0-5]?\d)\s?m(?:in)?(?!\p{L})", _hours),
    Rule("number", r"(?<![\p{L}\d.,-])(?P<n>\d[\d,.]*)(?P<m>[kMB])(?=\+?\s\p{Ll}{3})",
         lambda voice, found: voice.number(parse_number(found["n"], LOCALE, power=LOCALE.magnitudes[found["m"]]))),
    Rule("per", rf"(?<=\d|(?:million|billion|[kKM]))/(?P<unit>{any_of(_PER)})(?!\p{{L}})",
         lambda voice, found: f"per {_PER[found['unit']]}", "sign"),
    Rule("money", rf"(?<=\b[Aa]n? )(?:(?P<sign>{_PRICES})(?P<n>\d{{1,9}})(?:\.00)?(?![\d.,])"
         rf"|(?P<n>\d{{1,9}})[ -]?(?P<unit>{_COUNTED}))(?=[ -]\p{{Ll}})", _attributive, "digit sign"),
)  # fmt: skip
VERBALIZER = English()
