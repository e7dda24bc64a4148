"""Languages of Europe: nouns of magnitude, genders, a decimal comma. What they say is in tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from vivavoce.service.text.natural.addresses import roman_value
from vivavoce.service.text.natural.grammar import START, Match, any_of, compiled
from vivavoce.service.text.natural.tables import Tables, load_tables
from vivavoce.service.text.natural.values import Forms, Number
from vivavoce.service.text.natural.verbalizer import Rule, Verbalizer

NUMERAL = r"(?=[IVX])X{0,3}(?:IX|IV|V?I{0,3})"
ROMAN = rf"{NUMERAL}(?![\p{{Latin}}\p{{N}}])"
DAY = r"(?:0?[1-9]|[12]\d|3[01])"
HOUR = r"(?:[01]?\d|2[0-4])"
_LAST_WORD = compiled(r"(\p{L}+)[ \u00a0]\Z")
_PAIRS = compiled(r"(?<!\d)\d(?:\d\d)?(?=(?:\d\d)*(?!\d))|\d\d")
_FEMININE = "/f/"


def word_before(found: Match) -> str:
    """The word before what was found, in lower case; "" where a mark stands between."""
    word = _LAST_WORD.search(found.string, max(0, found.start() - 30), found.start())
    return word[1].lower() if word else ""


def following(found: Match) -> str:
    """What follows in the text."""
    return found.string[found.end() : found.end() + 40].lstrip()


def full_stop(found: Match) -> str:
    """The full stop of an abbreviation that ends the text, which is its sentence's too."""
    return "." if found[0].endswith(".") and not found.string[found.end() :].strip() else ""


class European(Verbalizer):
    """A language of Europe; numerals end where its `powers` do, and larger ones are said digit by digit."""

    def __init__(self, language: str) -> None:
        tables = load_tables(language)
        self.tables, self.locale, words = tables, tables.locale, tables.locale.words
        self._glue, self._step = words.get("glue", " ").strip("|"), int(words.get("step", 3))
        self._small, self._tens = self.tables.words("small"), ("", "", *self.tables.words("tens"))
        self._hundreds = ("", *self.tables.words("hundreds"))
        thousand, *large = self.tables.forms("powers")
        self.powers: dict[int, Forms] = {3: thousand} | {6 + self._step * at: names for at, names in enumerate(large)}
        self._feminine, self._neuter = (compiled(self.tables.pattern(name)) for name in ("feminine", "neuter"))
        self._no_nouns, self._ordinals = tables.words("no_nouns"), tables.pairs("ordinals")
        self._fixes = {name: tables.fixes(name) for name in tables.sections if name.endswith("_fixes")}
        self.numeral = lru_cache(maxsize=4096)(self._numeral)
        self.rules = (*self.rules, *table_rules(self.tables), *shared_rules(self.tables))

    def _numeral(self, value: int) -> str:
        """A number with nothing behind it."""
        if value >= 10 ** (max(self.powers) + self._step):
            return self.digits(str(value))
        return self._fixed(" ".join(self._groups(value)).rstrip(), "cardinal_fixes").rstrip()

    def _groups(self, value: int) -> Iterator[str]:
        for power in sorted(self.powers, reverse=True)[:-1]:
            if group := value // 10**power % 10**self._step:
                yield f"{' '.join(self._groups(group))} {self.form(Number(group), self.powers[power])}"
        thousands, rest = divmod(value % 10**6, 1000)
        said = [self._below(thousands), self.form(Number(thousands), self.powers[3])] if thousands else []
        yield self._glue.join([*said, self._below(rest)] if rest or not value else said)

    def _below(self, value: int) -> str:
        hundreds, rest = divmod(value, 100)
        tens, ones = self._tens[rest // 10], rest % 10
        if rest < len(self._small):
            low = self._small[rest] if rest or not hundreds else ""
        else:  # French has no word for 70
            ones += 10 * (tens == self._tens[rest // 10 - 1])
            low = self._fixed(f"{tens} {self._small[ones]}" if ones else tens, "tens_fixes")
        return self._glue.join(filter(None, (self._hundreds[hundreds], low)))

    def form(self, number: Number, forms: Forms) -> str:
        """The form of a noun that goes with the number; French has the singular below two: 1,5 million."""
        below_two = "below_two" in self.locale.words and number.whole < 2 and not number.power
        return forms[0] if below_two else super().form(number, forms)

    def cardinal(self, value: int, after: str = "") -> str:
        """A number, in the gender of the noun behind it where its last word has one."""
        return self.counted(self.numeral(value), after) if after else self.numeral(value)

    def counted(self, said: str, after: str) -> str:
        """The words of a number as they are before what follows: "un" and "una"."""
        return self._formed(said, "counted_fixes", f"/{self.gender(after)}/{after}")

    def ordinal(self, value: int, after: str = "") -> str:
        """The place in an order, in the gender of the noun behind it."""
        return self.place(value, f"/{self.gender(after)}/{after}")

    def place(self, value: int, noun: str = "") -> str:
        """The place in an order; noun: "/gender/word" of what is in that place."""
        said = self.numeral(value)
        return self._formed(self._ordinals.get(said) or self._fixed(said, "ordinal_fixes", 1), "place_fixes", noun)

    def _formed(self, said: str, fixes: str, noun: str) -> str:
        return self._fixed(f"{said}{noun}", fixes).partition("/")[0]

    def _fixed(self, said: str, fixes: str, most: int = 0) -> str:
        """Patterns of a section with what takes their place; most: how many of them, and how often; 0: all."""
        for pattern, instead in self._fixes.get(fixes, ()):
            said, count = pattern.subn(instead, said, count=most)
            if most and count:
                break
        return said

    def gender(self, after: str) -> str:
        """Of the noun that follows: "m", "f" or "n"; "" where no word follows that may be counted."""
        word = compiled(r"\p{L}{2,}").match(after)
        if not word or word[0] in self._no_nouns:
            return ""
        return "n" if self._neuter.match(after) else "f" if self._feminine.match(after) else "m"

    def magnitude(self, number: Number) -> str:
        """The noun of a magnitude: "Millionen"."""
        return self.form(Number(number.whole, number.decimals), self.powers[number.power])

    def decimals(self, digits: str) -> str:
        """3,14 is "quatorze" where a language says pairs, 0,05 "zéro cinq"."""
        pair = "decimal_pairs" in self.locale.words and len(digits) == 2 and digits[0] != "0"
        return self.numeral(int(digits)) if pair else self.digits(digits)

    def number(self, number: Number, after: str = "") -> str:
        """A number with sign, decimals and magnitude."""
        noun = self.magnitude(number) if number.power else ""
        said = self.cardinal(number.whole, "" if number.decimals else noun or after)
        if number.decimals:
            said = self.join(said, self.locale.words["point"], self.decimals(number.decimals))
        elif number.power == 3 and number.whole == 1:
            said = ""
        return self.join(self.locale.words["minus"] if number.negative else "", said, noun)

    def unit(self, number: Number, forms: Forms) -> str:
        """A number with what it counts: "un millón de euros"."""
        form, of = self.form(number, forms), self.locale.words.get("of_many", "")
        said = self.number(number, form)
        millions = number.whole and not number.whole % 10**6 and not number.decimals
        if not of or not (number.power >= 6 or millions):
            return self.join(said, form)
        return f"{said} d'{form}" if of == "d'" and form[0] in "aehiou" else f"{said} {of.replace(chr(39), 'e')} {form}"

    def money(self, number: Number, currency: str) -> str:
        """3.50 with hundredths: "tres euros con cincuenta céntimos"."""
        main, minor = self.locale.currencies[currency]
        cents = Number(int(number.decimals or 0))
        if len(number.decimals) != 2 or not minor or number.power:
            return self.unit(number, main)
        said = self.unit(Number(number.whole, "", number.negative), main) if number.whole or not cents.whole else ""
        joint = self.locale.words.get("cents", "") if said else ""
        return self.join(said, joint, self.unit(cents, minor)) if cents.whole else said

    def date(self, year: int | None, month: int | None, day: int | None, written: str = "") -> str:
        """ "tre marzo duemilaventiquattro"; the word `date_of` joins the parts where there is one."""
        said_year = self.year(year) if year is not None else ""
        parts = (self.day(day) if day else "", self.locale.month_names[month - 1] if month else "", said_year)
        joint = self.locale.words.get("date_of")
        return f" {joint} ".join(filter(None, parts)) if joint else self.join(*parts)

    def day(self, day: int) -> str:
        """The day in a date; the first has a name of its own where `first` is one."""
        return (day == 1 and self.locale.words.get("first")) or self.numeral(day)

    def time(self, hour: int, minute: int, second: int | None = None, half: str = "") -> str:
        """A time, with the language's word between hours and minutes."""
        words, units, one_word = self.locale.words, self.locale.units, "o_clock" in self.locale.words
        noun = self.form(Number(hour), tuple(words["o_clock"].split("/")) if one_word else units["h"])
        said = self.join(self.cardinal(hour, noun), noun if one_word else "")
        if minute:
            joint = words.get("time_and", "") or (words.get("time_and_few", "") if minute < 10 else "")
            after = "" if one_word else self.form(Number(minute), units["min"])
            said = self.join(said, joint, self.cardinal(minute, after))
        late = "pm_late" if half == "pm" and 7 <= hour < 12 else half
        said = self.join(said, words.get(late, half.upper()))
        return self.join(said, f"{words['and']} {self.unit(Number(second), units['s'])}" if second else "")

    def duration(self, hours: int, minutes: int, seconds: int) -> str:
        """Hours, minutes and seconds by name."""
        named = ((hours, "h"), (minutes, "min"), (seconds, "s"))
        return ", ".join(self.unit(Number(value), self.locale.units[name]) for value, name in named)

    def fraction(self, whole: int, numerator: int, denominator: int) -> str:
        """2/3 is "dos tercios": the parts have names, or those of ordinals."""
        words, part = self.locale.words, self.part(denominator)
        many = part if numerator == 1 else self._fixed(part, "parts_fixes")
        said = f"{self.cardinal(numerator, 'parte' if part[-1] == 'a' else part)} {many}"
        if (numerator, denominator) == (1, 2) and (whole or "half_alone" in words):
            said = part
        return f"{self.numeral(whole)} {words['and']} {said}" if whole else said

    def part(self, denominator: int) -> str:
        """A part of so many."""
        return self.locale.words.get(f"part_{denominator}") or self.ordinal(denominator)

    def reign(self, value: int, name: str = "") -> str:
        """The number of a king: an ordinal up to `reign_to`, a cardinal from there on."""
        queen = compiled(self.tables.pattern("queens")).fullmatch(name)
        ordinal = value <= int(self.locale.words["reign_to"])
        return self.place(value, _FEMININE if queen else "") if ordinal else self.numeral(value)

    def spelled(self, digits: str) -> str:
        """A phone number: groups of digits, digit by digit or in pairs (three first where they are odd)."""
        pairs = "phone_pairs" in self.locale.words
        parts = (_PAIRS if pairs else compiled(r"\d+")).findall(digits)
        said = (
            self.numeral(int(one)) if pairs and len(one) == 2 and one[0] != "0" else self.digits(one) for one in parts
        )
        return self.join(self.locale.signs["+"] if digits[0] == "+" else "", ", ".join(said))


def _clock(voice: European, found: Match) -> str:
    """14h30; 9-17 Uhr; de 9 a 17 h."""
    parts, words = found.groupdict(), voice.locale.words
    said = voice.time(int(parts["h"]), int(parts["m"] or 0))
    if parts.get("h2"):
        low = said.removesuffix(f" {words.get('o_clock', '').partition('/')[0]}") if "clock_once" in words else said
        said = voice.range(low, voice.time(int(parts["h2"]), int(parts["m2"] or 0)))
    if "hours_follow" in words and (parts.get("h2") or not parts["m"]):
        said = f"{said} {voice.form(Number(int(parts['h'])), voice.locale.units['h'])}"
    return said + full_stop(found)


def _place(voice: European, found: Match) -> str:
    """2.ª; XXe siècle; f: it is feminine; noun: what follows shows its gender; s: a century, abbreviated."""
    parts = found.groupdict()
    value = roman_value(parts["r"]) if parts.get("r") else int(parts["n"])
    after = following(found) if "noun" in parts else ""
    said = voice.place(value, _FEMININE) if parts.get("f") else voice.ordinal(value, after)
    return f"{voice.locale.words['century']} {said}" if parts.get("s") else said


def _reign(voice: European, found: Match) -> str:
    said = voice.reign(roman_value(found["r"]), word_before(found))
    return f"{voice.locale.words['century']} {said}" if found.groupdict().get("s") else said


def _year(voice: European, found: Match) -> str:
    """1999, with an ending behind it: 80er."""
    digits = compiled(r"\d+").match(found[0])[0]
    return voice.year(int(digits)) + found[0][len(digits) :]


def _elision(voice: European, found: Match) -> str:
    """L'ing.; dell'art. 3."""
    short = {**voice.locale.abbreviations, **voice.tables.pairs("numbered")}
    return f"{found['elided']}{short[found['short']]}{full_stop(found)}"


_KINDS: dict[str, tuple[str, Callable[[Any, Match], str | None]]] = {
    "ordinal": ("digit letter", _place),
    "reign": ("letter", _reign),
    "time": ("digit", _clock),
    "phone": ("digit sign", lambda voice, found: voice.spelled(found[0])),
    "digits": ("digit", lambda voice, found: voice.digits(found[0])),
    "year": ("digit", _year),
    "elision": ("letter", _elision),
}


def table_rules(tables: Tables) -> Iterator[Rule]:
    """The rows of `rules`: a kind and a pattern, or "written", a pattern and what is said for it."""
    locale = tables.locale
    names = {"NUMERAL": NUMERAL, "ROMAN": ROMAN, "HOUR": HOUR, "MONTH": any_of(locale.months)}
    names |= {"SHORT": any_of([*locale.abbreviations, *tables.pairs("numbered")])}
    for row in tables.sections.get("rules", "").splitlines():
        kind, pattern, *said = (part.replace("_", " ") for part in row.split(" "))
        for name, instead in names.items():
            pattern = pattern.replace(name, instead)
        first, say = _KINDS.get(kind) or ("letter sign", _expanding(" ".join(said)))
        yield Rule(kind, pattern, say, first)


def _expanding(said: str) -> Callable[[Any, Match], str]:
    return lambda voice, found: found.expand(said) + full_stop(found)


def version(voice: European, found: Match) -> str:
    """2.0.1, part by part."""
    parts = found[0].split(".")
    said = (voice.digits(one) if one[0] == "0" or len(one) > 3 else voice.numeral(int(one)) for one in parts)
    return f" {voice.locale.words['version']} ".join(said)


def account(voice: European, found: Match) -> str:
    """A number of a bank account, by its groups."""
    groups = (
        voice.join(*(voice.digits(one) if one.isdecimal() else one for one in part)) for part in found["rest"].split()
    )
    return f"{found['land']} {', '.join(groups)}"


def shared_rules(tables: Tables) -> tuple[Rule, ...]:
    """Rules whose words are in the tables: `numbered` has abbreviations before a number only ("S. 5")."""
    locale, words, numbered = tables.locale, tables.locale.words, tables.pairs("numbered")
    day, grouped = any_of(locale.weekdays), r"\d{1,3}(?:\.\d{3})+(?!\d|\.\d)" if "." in locale.group else "(?!)"
    times = tuple(words["times"].split("/"))

    def weekdays(voice: European, found: Match) -> str:
        return voice.range(locale.weekdays[found["a"]], locale.weekdays[found["b"]]) + full_stop(found)

    def length(voice: European, found: Match) -> str:
        return f"{voice.unit(Number(int(found['m'])), locale.units['m'])} {voice.numeral(int(found['c']))}"

    return (
        Rule("digits", r"(?<![\p{L}\p{N}])(?P<land>[A-Z]{2})(?P<rest>\d\d(?: ?[\dA-Z]{4}){2,7}"
         r"(?: ?[\dA-Z]{1,3})?)(?![\p{L}\p{N}])", account, "letter"),
        Rule("years", r"(?<![\d.,:/-])(?P<a>1[1-9]\d\d|20\d\d) ?[-–—] ?(?P<b>1[1-9]\d\d|20\d\d)(?!\d|[-.,/]\d)",
         lambda voice, found: voice.range(voice.year(int(found["a"])), voice.year(int(found["b"])))),
        Rule("version", rf"(?<![\d.,])(?!{grouped}|{DAY}\.\d\d?\.\d{{4}}(?!\d))\d{{1,8}}(?:\.\d{{1,8}})+(?!,?\d|\.\d)",
         version),
        Rule("division", r"(?<=\d[ )]?)[/:÷](?= \d)", lambda voice, found: words["over"], "sign"),
        Rule("product", r"(?<=\d ?)[·∙](?= ?\d)", lambda voice, found: locale.signs["×"], "sign"),
        Rule("times", r"(?<![\d.,])(?P<n>\d{1,3}) ?[xх×](?= \p{Ll}{2})",
             lambda voice, found: voice.unit(Number(int(found["n"])), times)),
        Rule("length", r"(?<![\d.,])(?P<m>\d{1,2})m(?P<c>\d\d)(?![\p{L}\d])", length),
        Rule("per", rf"(?<=[\d€$] ?)/ ?(?={words['per_time']})", lambda voice, found: f"{words['per']} ", "sign"),
        Rule("numbered", rf"{START}(?P<short>{any_of(numbered)})\s?(?=\d|[IVX]+\b)",
             lambda voice, found: f"{numbered[found['short']]} ", "letter"),
        Rule("weekday", rf"(?<![\p{{L}}.])(?P<a>{day})\.?(?=,? \d\d?[. /])",
             lambda voice, found: locale.weekdays[found["a"]], "letter"),
        Rule("date", rf"(?<=(?<!\p{{L}})(?i:{words.get('date_cue', '(?!)')}) )(?P<d>{DAY})/"
         rf"(?P<m>0?[1-9]|1[0-2])(?![\d/,]|\.\d| d[eiu'’])",
             lambda voice, found: voice.date(None, int(found["m"]), int(found["d"]))),
        Rule("weekdays", rf"(?<![\p{{L}}.])(?P<a>{day})\.?(?:\s?[-–—]\s?| {words['to']} )(?P<b>{day})"
         rf"(?!\p{{L}})\.?(?=\s?\d|\s\p{{Ll}}|[.,]?\Z)", weekdays, "letter"),
        Rule("reign", rf"(?<=(?<!\p{{L}})(?:{tables.pattern('kings')}) )(?P<r>{ROMAN})(?:\.(?= \p{{Ll}}|,))?",
             _reign, "letter"),
        Rule("money", r"(?<=\d (?:de |d['’])?|\p{L} (?:de |di )|d['’])[€$£¥₽](?!\d)",
             lambda voice, found: locale.currencies[found[0]][0][-1], "sign"),
    )  # fmt: skip
