"""Readers of the classes that most languages share: amounts, ranges, dates, times, scores, fractions, phone numbers.

A reader gets a place in a text. It returns the end of the item that begins there, the words for the item and the rule's
name, or None if no item of the reader's class begins there. `reader.BY_FIRST` has the order of the readers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from unicodedata import numeric

from vivavoce_textnorm.grammar import DASH, LARGEST, NO_WORD, START, Grammar, Match, compiled, parse_number
from vivavoce_textnorm.tables import Locale
from vivavoce_textnorm.types import Forms, Number
from vivavoce_textnorm.verbalizer import Verbalizer


@dataclass(frozen=True)
class Cursor:
    """A position in a text, where an item may begin; text up to `end` is in the language of the grammar."""

    grammar: Grammar
    text: str
    at: int
    end: int

    @property
    def voice(self) -> Verbalizer:
        return self.grammar.voice

    @property
    def locale(self) -> Locale:
        return self.voice.locale

    def number(self, written: str, negative: bool = False, power: int = 0) -> Number:
        return parse_number(written, self.locale, negative, power)

    def match(self, pattern: Match) -> Match | None:
        return pattern.match(self.text, self.at, self.end)

    def before(self, chars: int = 24) -> str:
        return self.text[max(0, self.at - chars) : self.at].lower()

    def follows(self, cue: str, chars: int = 24) -> bool:
        words, before = self.locale.words.get(cue), self.before(chars)
        before = before[before[:-2].rfind(". ") + 1 :]  # only the text of this sentence
        places = ((before.rfind(word), word) for word in words.split("|")) if words else ()
        return any(at >= 0 and not (before[:at][-1:].isalpha() and word.isascii()) for at, word in places)

    def after(self, at: int) -> str:
        return self.text[at : at + 40].lstrip()


Found = tuple[int, str, str] | None

_DATE = compiled(
    rf"{START}(?:(?P<y>[12]\d{{3}})(?P<s>[-/.])(?P<m>\d\d?)(?P=s)(?P<d>\d\d?)"
    r"|(?P<a>\d\d?)(?P<t>[-/.])(?P<b>\d\d?)(?P=t)(?P<c>(?:1[5-9]|2[01])\d\d|(?<=\d/\d\d?/)\d\d))(?!\d|[-/.:]\d)(?P<clock>T(?=\d\d:))?"
)
_TIME = compiled(
    rf"(?:{START}|(?<=\dT))(?P<h>[01]?\d|2[0-4])(?:[:：]|\.(?=\d\d[ \u00a0]?[AaPp]\.?[Mm]\b))(?P<m>[0-5]\d)"
    r"(?:[:：](?P<s>[0-5]\d(?:\.\d+|,\d{1,3}(?![\d:]))?))?(?![\d]|[:/.]\d|,\d{3})"
    r"(?:[ \u00a0]?(?P<half>[AaPp](?:\.[ \u00a0]?)?[Mm]\.?(?![\p{Latin}\d]))|(?P<zulu>Z)(?!\p{L}))?"
)
_HOUR = compiled(rf"{START}(?P<h>0?[1-9]|1[0-2])[ \u00a0]?(?P<half>[AaPp](?:[Mm]|\.[Mm]\.))(?![\p{{Latin}}\d])")
_BARE_HOUR = compiled(rf"{START}(?:[1-9]|1[0-2])(?=\s?{DASH}\s?\d{{1,2}}(?::\d\d)?\s?[AaPp]\.?[Mm])")
_CLOCK = compiled(
    rf"{START}(?P<h>\d{{1,3}}):(?P<m>[0-5]\d):(?P<s>[0-5]\d(?:\.\d+|,\d{{1,3}}(?![\d:]))?)(?![\d:])"
    r"(?: ?h(?:(?:ou)?rs?)?(?!\p{L}))?"
)
_RATIO = compiled(
    r"(?<!(?<!\p{L})(?:ISBN|ISSN|ISMN|EAN|UPC|GTIN|COVID)[ -])"  # part of a name, as in ISBN-13: 978…
    rf"{START}(?P<a>\d+(?:[.,]\d{{1,2}})?)\s?[:：∶]\s?(?P<b>\d+(?:[.,]\d{{3}})*(?:[.,]\d{{1,2}})?)(?:\s?[:：∶]\s?(?P<c>\d+))?(?![\d]|[:.]\d)"
)
_DASHED = compiled(rf"(?P<space>\s?){DASH}(?P=space)(?=[-−]?[\d$€£¥￥₩.])")
_PHONE = compiled(
    rf"(?:(?<![[\w+]--[\p{{Han}}\p{{Hiragana}}\p{{Katakana}}]])\+(?=(?:[ .()-]*\d){{7}})"
    rf"\d{{1,3}}(?:[ .-]?\(\d{{1,4}}\))?(?:[ .-]?\d{{1,5}}){{1,5}}"
    rf"|(?<!\w)\(\d{{2,5}}\)[ -]?\d{{3,4}}[ .-]?\d{{3,4}}"
    rf"|{START}(?:1[ -])?\d{{3}}(?P<s>[ -])\d{{3}}(?P=s)\d{{4}}|{START}\d{{3}}\.\d{{3}}\.\d{{4}}"
    rf"|{START}1[38]00(?: \d{{3}}){{2}}"
    rf"|{START}0\d{{1,4}}(?:[- /]\d{{6,8}}|(?: \d{{3,4}}){{2}})"
    rf"|{START}[48]00-\d{{3}}-?\d{{4}})(?![\d]|[-.]\d)"
)
_DIGITS = compiled(r"\d+")
# Before these names, "a.m." does not end a sentence: 9 a.m. PT, 9 a.m. Monday, 9 a.m. May 5.
_OF_TIME = compiled(
    r" (?:[ECMP][SD]?T|AK[SD]T|HST|GMT|UTC|BST|CES?T|EES?T|MSK|[IJK]ST|HKT|SGT|A[CEW][SD]T|NZ[SD]T"
    r"|(?:Eastern|Pacific|Central|Mountain)(?= (?:Standard |Daylight )?Time)"
    r"|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day(?=[.,;:!?)]|\s*\Z|,? \d)"
    r"|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\p{Ll}*\.? \d\d?)(?![\p{L}\d])"
)
# The noun after a range and a hyphen: a 5-10-minute walk.
_NOUN = compiled(r"-\p{Ll}{3}")
_NUMERALS = compiled(rf"{START}\d{{3,}}(?: \d{{4}})*+(?!\d|[.,:/]\d|[分个個次场人天元块年])")
_DIGIT_GROUPS = compiled(rf"{START}(?:\d+(?:-[\dX]+){{2,}}|\d{{4}}(?: \d{{4}}){{3}})(?!\d){NO_WORD}")
_FRACTION = compiled(
    rf"{START}(?:(?P<w>\d{{1,3}})[ -](?=\d+[/⁄]))?(?P<n>\d{{1,3}})[/⁄](?P<d>\d{{1,3}}|10{{3,6}}|[1-9]\d0{{3,4}})"
    rf"(?![\d/]|[.,]\d){NO_WORD}"
)
_VULGAR = compiled(r"(?:(?<![\d.,])(?P<w>\d{1,3})\s?)?(?P<v>[½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞⅐⅑⅒])")
_DIMENSIONS = compiled(rf"{START}\d++(?:\.\d++)?(?:(?:[xX×]| [xX×] |[x×] )\d++(?:\.\d++)?){{1,4}}(?!\d|\s?[xX×÷^])")
_VERSION = compiled(
    rf"{START}(?P<v>[vV])?(?P<n>\d{{1,8}}(?:\.\d{{1,8}}){{1,4}})(?:-?(?P<early>alpha|beta|rc|dev|pre|[ab](?=\d))(?:\.?(?P<k>\d{{1,3}}))?)?"
    r"(?![\p{Latin}\d%]|\.\d)"
)
_MATH = "=+×÷≈≠≤≥<>*^²³√"
_MATH_CHARS = frozenset("0123456789.,+-−–*/×÷=≈≠<>≤≥^() xyzabn，；;π²³√")


def read_date(place: Cursor) -> Found:
    """Read a date in digits: 2024-03-05, 12/25/1999, 03.04.2021."""
    found = place.match(_DATE)
    if not found:
        return None
    if found["y"]:
        year, month, day = int(found["y"]), int(found["m"]), int(found["d"])
    else:
        first, second, year = int(found["a"]), int(found["b"]), int(found["c"])
        year += 0 if year > 99 else 1900 if year > 50 else 2000
        # A date with full stops has the day first in any language.
        day_first = first > 12 or ((place.locale.order != "mdy" or found["t"] == ".") and second <= 12)
        day, month = (first, second) if day_first else (second, first)
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    said = place.voice.date(year, month, day, "" if found["y"] else found[0])
    return found.end(), said + (" " if found["clock"] else ""), "date"


def read_named_date(place: Cursor) -> Found:
    """Read a date with a month's name: March 3rd, 1998; 3 March."""
    for pattern in place.grammar.dates:
        if found := place.match(pattern):
            month = place.locale.months[found["month"].lower()]
            year = int(found["year"]) if found["year"] else None
            if place.text[found.start("month")].islower() and found["month"].lower() in ("may", "march", "mar"):
                return None  # a verb: "may", "march"
            said = place.voice.date(year, month, int(found["day"]), found[0])
            article = said.partition(" ")[0] + " "  # the text may have the article already: "the 5th of March"
            return found.end(), said.removeprefix(article) if place.before().endswith(article) else said, "date"
    return None


def read_time(place: Cursor) -> Found:
    """Read a time, a range of two times, or a duration: 14:30, 9:05 a.m., 9-5pm, 1:02:03."""
    one = _read_time(place)
    start = one[0] if one else (hour.end() if (hour := place.match(_BARE_HOUR)) else 0)
    dash = _DASHED.match(place.text, start, place.end) if start else None
    two = _read_time(replace(place, at=dash.end())) if dash else None
    if not two:
        return one
    low = one[1] if one else place.voice.cardinal(int(place.text[place.at : start]))
    return two[0], place.voice.range(low, two[1]), "range"


def _read_time(place: Cursor) -> Found:
    if place.follows("ratio_cue"):
        return None
    found, count = place.match(_TIME) or place.match(_HOUR), place.match(_CLOCK)
    voice = place.voice
    if count and (not found or (found["h"][1:] == "" and not found["half"]) or place.follows("duration_cue")):
        return count.end(), voice.duration(int(count["h"]), int(count["m"]), _seconds(count["s"])), "duration"
    if not found:
        return None
    parts = found.groupdict()
    half = "".join(filter(str.isalpha, parts["half"] or "")).lower()
    hour, minute, second = int(parts["h"]), int(parts.get("m") or 0), _seconds(parts.get("s") or "0")
    if half and not 1 <= hour <= 12:
        return None
    said = voice.time(hour, minute, second if second != Number(0) else None, half)
    if parts.get("zulu"):
        said = f"{said} UTC"
    end: int = found.end()
    # The full stop of "a.m." also ends the sentence if nothing or a capital letter follows.
    after = place.text[end : end + 3].strip()
    if place.text[end - 1] == "." and (not after or (after[0].isupper() and not _OF_TIME.match(place.text, end))):
        end -= 1
    return end, said, "time"


def _seconds(written: str) -> Number:
    """Parse seconds such as 45 or 45.678; the decimal sign is a point or a comma in any language."""
    whole, _, decimals = written.replace(",", ".").partition(".")
    return Number(int(whole), decimals)


def read_span(place: Cursor) -> Found:
    """Read a duration (1:30 h, 3:45 min); in hours, read a time of the day after "at" or from 6:00 h on."""
    if not (found := place.match(place.grammar.span)):
        return None
    first, second = int(found["a"]), int(found["b"])
    rest = place.after(end := found.end())
    end -= found[0][-1] == "." and (not rest or rest[0].isupper())  # the full stop also ends the sentence
    if found["min"]:
        return end, place.voice.duration(None, first, Number(second)), "duration"
    cue, short = place.locale.words.get("clock_cue", "(?!)"), (found["h"] or "").rstrip(".") in ("h", "hs", "ч")
    at = compiled(rf"(?i:(?<!\p{{L}})(?:{cue})[ \u00a0]|{DASH}\s?)\Z").search(
        place.text, max(0, place.at - 12), place.at
    )
    if at or (short and 6 <= first <= 24 and not place.follows("duration_cue")):
        return (end, place.voice.time(first, second), "time") if short and first <= 24 else None
    return end, place.voice.duration(first, second, None), "duration"


def read_ratio(place: Cursor) -> Found:
    """Read a ratio: 10:1, 3:2."""
    if not (found := place.match(_RATIO)):
        return None
    sides = [place.voice.number(place.number(side)) for side in found.group("a", "b", "c") if side]
    if found[0][len(found["a"])].isspace() and "÷" in place.locale.signs and in_formula(place, found.end()):
        return found.end(), f" {place.locale.signs['÷']} ".join(sides), "formula"
    return found.end(), place.voice.ratio(sides), "ratio"


def read_phone(place: Cursor) -> Found:
    """Read a phone number such as +1 (555) 123-4567, or a short number after a word such as "call"."""
    found = place.match(_PHONE)
    if not found:
        if not place.follows("phone_cue", 12):
            return None
        found = place.match(_NUMERALS)
        if not found or (len(found[0]) > 6) < (place.after(found.end())[:1].islower()):
            return None
    plus = place.locale.signs.get("lone +") or place.locale.signs.get("+", "") if found[0].startswith("+") else ""
    said = place.voice.one_by_one(" ".join(_DIGITS.findall(found[0])), phone=True)
    return found.end(), place.voice.join(plus, said), "phone"


def read_digit_groups(place: Cursor) -> Found:
    """Read groups of digits one by one: 978-3-16-148410-0."""
    found = place.match(_DIGIT_GROUPS)
    if not found or in_formula(place, found.end()):
        return None
    return found.end(), place.voice.one_by_one(found[0]), "digits"


def read_fraction(place: Cursor) -> Found:
    """Read a fraction: 1/2, 1 1/2, ½, 50/50."""
    voice = place.voice
    if found := place.match(_VULGAR):
        value = Fraction(numeric(found["v"])).limit_denominator(10)
        return _of_unit(place, found, voice.fraction(int(found["w"] or 0), value.numerator, value.denominator))
    found = place.match(_FRACTION)
    if not found or int(found["d"]) < 2:
        return None
    whole, numerator, denominator = int(found["w"] or 0), int(found["n"]), int(found["d"])
    divided = numerator >= denominator and in_formula(place, found.end())
    if divided or numerator == denominator:
        by = place.locale.signs.get("÷", "") if divided else ""
        said = voice.join(voice.cardinal(numerator), by, voice.cardinal(denominator))
        return found.end(), said, "formula" if divided else "fraction"
    return _of_unit(place, found, voice.fraction(whole, numerator, denominator))


def _of_unit(place: Cursor, found: Match, said: str) -> Found:
    unit = place.grammar.unit.match(place.text, found.end(), place.end)
    if not unit:
        return found.end(), said, "fraction"
    forms = place.locale.units[unit["unit"]]
    many = found["w"] or ("n" in found.groupdict() and int(found["n"]) > int(found["d"]))
    form, joined = forms[{3: 1, 4: 3}.get(len(forms), -1 if many else 0)], place.voice.join if many else place.voice.of
    return unit.end(), joined(said, form), "unit"


def read_dimensions(place: Cursor) -> Found:
    """Read dimensions (1920x1080, 3 × 4 m) without the last number, which `read_amount` reads with its unit."""
    found, by = place.match(_DIMENSIONS), place.locale.words["by"]
    if not found:
        return None
    by = place.locale.signs.get("×", by) if in_formula(place, found.end(), _MATH.replace("×", "")) else by
    *sides, last = compiled(r"[\d.]+").finditer(found[0])
    words = place.voice.join(*(word for side in sides for word in (place.voice.number(place.number(side[0])), by)))
    return found.start() + last.start(), words + place.locale.joint, "dimensions"


def read_amount(place: Cursor) -> Found:
    """Read a number, with or without a unit or currency, or a range: -3, $2.5 billion, 5 km/h, 12.5%, 5-10 km."""
    one = place.match(place.grammar.amount)
    if not one or (one["minus"] and _goes_on(place)):
        return None
    if place.text[place.at - 1 : place.at] == "^":  # an exponent, as in $x^2$
        said = place.voice.number(place.number(one["num"], bool(one["minus"])))
        if place.text[place.at - 2 : place.at - 1].isdigit() and one["unit"]:  # a unit, as in 10^24 kg
            return one.end(), place.voice.join(said, place.locale.units[one["unit"]][-1].replace("{}", "")), "number"
        return one.end("num"), said, "number"
    dash = _DASHED.match(place.text, one.end(), place.end)
    two = place.grammar.amount.match(place.text, dash.end(), place.end) if dash else None
    if two and one["front"] and not (two["front"] or two["back"]):
        return _prices(place, one, dash.end())
    end, said, rule = (dash and two and _range(place, one, two, dash)) or (one.end(), *_say_amount(place, one))
    rest = place.after(end)
    begins = compiled(place.locale.words.get("begins", r"\p{Lu}")).match(rest)  # German nouns have capitals
    line = place.text[end : end + 1] == "\n" and not rest[:1].islower()
    stop = place.text[end - 1] == "." and (not rest or begins or line)  # the unit's full stop also ends the sentence
    return end - bool(stop), said, rule


def _prices(place: Cursor, one: Match, at: int) -> Found:
    """Read a range of prices whose currency stands only before the first number: $5-10k."""
    sign = one["front"]
    two = place.grammar.amount.match(sign + place.text[at : at + 40])
    low, high = place.voice.number(place.number(one["num"])), _say_amount(place, two)[0]
    return at + two.end() - len(sign), place.voice.range(low, high), "range"


def _goes_on(place: Cursor) -> bool:
    before = place.text[place.at - 1 : place.at] if place.at else ""
    return bool(compiled(r"[A-Za-z\p{Cyrillic}\d)\]]").match(before))


def _range(place: Cursor, one: Match, two: Match, dash: Match) -> Found:
    voice, end = place.voice, two.end()
    before = place.text[place.at - 1 : place.at] if place.at else ""
    if (
        before == "-"
        or (before.isascii() and before.isalpha())
        or (one["num"][0] == "0" and one["num"][1:].isdecimal())
    ):
        return None  # parts of names: Llama-3.1-8B, i7-13700K, 0041-22B
    if (two["minus"] and dash[0].strip() in "-−") or (
        place.text[end : end + 1] in ("-", "–") and (len(two[0]) - len(one[0]) > 1 or not _NOUN.match(place.text, end))
    ):
        return None
    if (one["back"] or one["percent"] or one["unit"]) and two.end() == two.end("num") and not one["percent"]:
        return None
    if in_formula(place, end) or (dash["space"] and dash[0].strip() in "-−" and one.end() == one.end("num")):
        said = voice.join(_say_amount(place, one)[0], place.locale.signs.get("-", place.locale.words["minus"]))
        return dash.end(), f"{said}{place.locale.joint}", "formula"
    score = place.locale.words.get("score_cue")
    bare = one[0].isdecimal() and two[0].isdecimal()
    around = place.before() + place.after(end)[:8].lower()
    if bare and score and len(one[0]) < 4 and any(word in around for word in score.split("|")):
        return end, voice.score((int(one[0]), int(two[0]))), "score"
    if bare and voice.locale.joint and len(one[0]) == 4 and len(two[0]) in (2, 4) and one[0][0] in "12":
        high = two[0] if len(two[0]) == 4 else two[0].lstrip("0")
        said = voice.year(int(high)) if len(two[0]) == 4 else voice.cardinal(int(high or 0))
        return end, voice.range(voice.year(int(one[0])), said), "range"
    low, high = _say_amount(place, one, beside=two)[0], _say_amount(place, two)[0]
    if "bare_range" in place.locale.words and compiled(place.locale.words["bare_range"]).search(place.before()):
        return end, f"{low}, {high}", "range"
    front = 0 if one["unit"] else len(place.locale.units.get(two["unit"], ("",))[-1].rpartition("{}")[0])
    return end, high[:front] + voice.range(low, high[front:]), "range"  # as in 每秒十到十五米


def _say_amount(place: Cursor, found: Match, beside: Match | None = None) -> tuple[str, str]:
    """Return an amount's words and the rule's name. beside: the second amount of a range, which may name the unit."""
    voice, locale = place.voice, place.locale
    whole = (written := found["num"]).partition(locale.decimal)[0]
    if len(whole) > LARGEST or (written[0] == "0" and written.isdecimal() and len(written) > 1):
        forms: Forms = tuple(locale.words["percent"].split("/")) if found["percent"] else ("",)
        forms = locale.currencies.get(found["front"] or found["back"], (forms,))[0]
        before, _, noun = locale.units.get(found["unit"], forms)[-1].rpartition("{}")
        return voice.join(before, voice.one_by_one("".join(filter(str.isdecimal, written))), noun), "digits"
    power = locale.magnitudes[found["mag"]] if found["mag"] else 0
    number = place.number(written, bool(found["minus"] or found["inner"]), power)
    if currency := found["front"] or found["back"]:
        if beside and (beside["mag"] and not power):
            return voice.number(number), "money"
        return voice.money(number, currency), "money"
    # Say "percent" at both ends of a range: 百分之六十到七十 would be misunderstood.
    percent = found["percent"] or (beside and locale.words["percent"].endswith("{}") and beside["percent"])
    if percent:
        per_mille = percent == "‰" and locale.words.get("per_mille")
        return (voice.unit(number, (per_mille,)) if per_mille else voice.percent(number)), "percent"
    if found["unit"]:
        return voice.unit(number, locale.units[found["unit"]]), "unit"
    name = compiled(r"[A-Za-z]").match(place.text, max(0, found.start() - 1), found.start())  # as in A1
    counted = beside and (locale.units.get(beside["unit"]) or locale.currencies.get(beside["back"], ((),))[0])
    # The low end of a range agrees with the noun that the high end names: "une à deux heures".
    after = f"{voice.form(number, counted)}," if counted else place.after((beside or found).end())
    return voice.number(number, "" if name else after), "number"


def in_formula(place: Cursor, end: int, signs: str = _MATH) -> bool:
    """Return whether numbers, signs and letters such as x around the item include a mathematical sign."""
    text, low, high = place.text, place.at, end
    while low > max(0, place.at - 40) and text[low - 1] in _MATH_CHARS:
        low -= 1
    while high < min(len(text), end + 40) and text[high] in _MATH_CHARS and text[high : high + 2] != ", ":
        high += 1
    return any(sign in signs for sign in text[low : place.at] + text[end:high])


def read_version(place: Cursor) -> Found:
    """Read a version: 2.0.1, v2.0, or 3.11 after a name such as Python."""
    found = place.match(_VERSION)
    if not found or place.locale.decimal == ",":  # points separate thousands; the language has its own rule
        return None
    behind = place.grammar.version_cue.search(place.text, max(0, place.at - 24), place.at)
    if found["n"].count(".") < 2 and not (found["v"] or behind or found["early"]):
        return None
    name = place.locale.words.get("version", "") if found["v"] else ""
    name = "" if place.before().rstrip().endswith(name) else name
    early = (found["early"] or "", place.voice.cardinal(int(found["k"])) if found["k"] else "")
    said = place.voice.join(name, place.voice.version(found["n"]))
    return found.end(), " ".join(filter(None, (said, *early))), "version"
