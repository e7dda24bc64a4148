"""What German, French, Italian, Russian and Spanish share: nouns of magnitude, genders, a decimal comma."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import ClassVar

from vivavoce.service.text.natural.addresses import roman_value
from vivavoce.service.text.natural.grammar import START, Match, any_of, compiled
from vivavoce.service.text.natural.tables import Fixes, Tables
from vivavoce.service.text.natural.values import Forms, Number
from vivavoce.service.text.natural.verbalizer import Rule, Verbalizer

ROMAN = r"(?=[IVX])X{0,3}(?:IX|IV|V?I{0,3})(?![\p{Latin}\p{N}])"
DAY = r"(?:0?[1-9]|[12]\d|3[01])"
HOUR = r"(?:[01]?\d|2[0-4])"
_LAST_WORD = compiled(r"(\p{L}+)[ \u00a0]\Z")


def word_before(found: Match) -> str:
    """The word before what was found, in lower case; "" where a mark stands between."""
    word = _LAST_WORD.search(found.string, max(0, found.start() - 30), found.start())
    return word[1].lower() if word else ""


def full_stop(found: Match, written: str) -> str:
    """The full stop of an abbreviation that ends the text, which is its sentence's too."""
    return "." if written.endswith(".") and not found.string[found.end() :].strip() else ""


class European(Verbalizer):
    """A language of Europe; `tables` has what it says.

    glue: between the words of a number; step: how many powers of ten each noun of magnitude is apart; numerals end
    where these do, and larger ones are said digit by digit.
    """

    tables: ClassVar[Tables]
    glue: ClassVar[str] = " "
    step: ClassVar[int] = 3

    def __init__(self) -> None:
        self._small, self._hundreds = self.tables.words("small"), ("", *self.tables.words("hundreds"))
        thousand, *large = self.tables.forms("powers")
        self.powers: dict[int, Forms] = {3: thousand} | {6 + self.step * at: names for at, names in enumerate(large)}
        self._cardinal_fixes, self._ordinal_fixes = map(self.tables.fixes, ("cardinal_fixes", "ordinal_fixes"))
        self._feminine, self._no_nouns = compiled(self.tables.pattern("feminine")), self.tables.words("no_nouns")
        self.numeral = lru_cache(maxsize=4096)(self._numeral)

    def _numeral(self, value: int) -> str:
        """A number with nothing behind it."""
        if value >= 10 ** (max(self.powers) + self.step):
            return self.digits(str(value))
        return _fixed(" ".join(self._groups(value)).rstrip(), self._cardinal_fixes, once=False).rstrip()

    def _groups(self, value: int) -> Iterator[str]:
        for power in sorted(self.powers, reverse=True)[:-1]:
            if group := value // 10**power % 10**self.step:
                forms = self.powers[power]
                yield f"{' '.join(self._groups(group))} {self.form(Number(group), forms)}"
        thousands, rest = divmod(value % 10**6, 1000)
        said = [self._below(thousands), self.form(Number(thousands), self.powers[3])] if thousands else []
        if rest or not value:
            said.append(self._below(rest))
        yield self.glue.join(said)

    def _below(self, value: int) -> str:
        hundreds, rest = divmod(value, 100)
        return self.glue.join(
            filter(None, (self._hundreds[hundreds], self._small[rest] if rest or not hundreds else ""))
        )

    def cardinal(self, value: int, after: str = "") -> str:
        """A number, in the gender of the noun behind it where its last word has one."""
        return self.counted(self.numeral(value), after) if after else self.numeral(value)

    def counted(self, said: str, after: str) -> str:
        """The words of a number in the form that they have before what follows."""
        return said

    def is_noun(self, after: str) -> bool:
        """Whether a word follows that may be counted."""
        word = compiled(r"\p{L}{2,}").match(after)
        return bool(word) and word[0] not in self._no_nouns

    def is_feminine(self, after: str) -> bool:
        """Whether a noun of that gender follows."""
        return self.is_noun(after) and bool(self._feminine.match(after))

    def ordinal(self, value: int, after: str = "") -> str:
        """The place in an order."""
        return _fixed(self.numeral(value), self._ordinal_fixes, once=True)

    def magnitude(self, number: Number) -> str:
        """The noun of a magnitude: "Millionen"."""
        return self.form(Number(number.whole, number.decimals), self.powers[number.power])

    def decimals(self, digits: str) -> str:
        """3,14 is "quatorze", 0,05 "zéro cinq"."""
        return self.numeral(int(digits)) if len(digits) == 2 and digits[0] != "0" else self.digits(digits)

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
        if len(number.decimals) != 2 or not minor or number.power:
            return self.unit(number, main)
        cents = int(number.decimals)
        said = self.unit(Number(number.whole, negative=number.negative), main) if number.whole or not cents else ""
        if not cents:
            return said
        return self.join(said, self.locale.words.get("cents", "") if said else "", self.unit(Number(cents), minor))

    def date(self, year: int | None, month: int | None, day: int | None, written: str = "") -> str:
        """ "tre marzo duemilaventiquattro"; the word `of` joins the parts where there is one."""
        parts = (
            self.day(day) if day else "",
            self.locale.month_names[month - 1] if month else "",
            self.year(year) if year is not None else "",
        )
        joint = self.locale.words.get("date_of", "")
        return f" {joint} ".join(filter(None, parts)) if joint else self.join(*parts)

    def day(self, day: int) -> str:
        """The day in a date; the first has a name of its own where `first` is one."""
        return self.locale.words.get("first", "") if day == 1 and "first" in self.locale.words else self.numeral(day)

    def time(self, hour: int, minute: int, second: int | None = None, half: str = "") -> str:
        """A time, with the language's word between hours and minutes."""
        words, (hours, minutes, seconds) = self.locale.words, self.tables.forms("hms")
        said = self.join(
            self.cardinal(hour, hours[hour > 1]),
            words.get("o_clock", "").replace("heure", self.form(Number(hour), hours)),
        )
        joint = words.get("time_and", "") or (words.get("time_and_few", "") if minute < 10 else "")
        said = (
            self.join(said, joint, self.cardinal(minute, minutes[minute > 1] if "o_clock" not in words else ""))
            if minute
            else said
        )
        late = "pm_late" if 7 <= hour < 12 else "pm"
        said = self.join(said, words.get(late if half == "pm" else half, half.upper()) if half else "")
        return self.join(said, f"{words['and']} {self.unit(Number(second), seconds)}" if second else "")

    def duration(self, hours: int, minutes: int, seconds: int) -> str:
        """Hours, minutes and seconds by name."""
        named = zip((hours, minutes, seconds), self.tables.forms("hms"), strict=True)
        return ", ".join(self.unit(Number(value), forms) for value, forms in named)

    def fraction(self, whole: int, numerator: int, denominator: int) -> str:
        """2/3 is "dos tercios": the parts have names, or those of ordinals."""
        part = self.locale.words.get(f"part_{denominator}") or self.ordinal(denominator)
        many = self.locale.words.get(f"parts_{denominator}") or self.parts(part)
        said = f"{self.cardinal(numerator, 'parte' if part[-1] == 'a' else part)} {part if numerator == 1 else many}"
        if (numerator, denominator) == (1, 2) and (whole or "half_alone" in self.locale.words):
            said = part
        return f"{self.numeral(whole)} {self.locale.words['and']} {said}" if whole else said

    def parts(self, part: str) -> str:
        """More than one part."""
        return part if part.endswith("s") else f"{part}s"

    def spelled(self, digits: str) -> str:
        """Digits of a phone number in pairs, three first where they are odd; a zero at the beginning is said."""
        said = []
        for group in "".join(one if one.isdigit() else " " for one in digits).split():
            first = 3 if len(group) % 2 else 2
            parts = [group[:first], *(group[at : at + 2] for at in range(first, len(group), 2))]
            said += [
                self.digits(part) if part[0] == "0" or len(part) > 2 else self.numeral(int(part)) for part in parts
            ]
        return ("" if digits[0] != "+" else self.locale.signs["+"] + " ") + ", ".join(said)


def _fixed(said: str, fixes: Fixes, *, once: bool) -> str:
    for pattern, instead in fixes:
        said, count = pattern.subn(instead, said, count=1 if once else 0)
        if once and count:
            break
    return said


def version(voice: European, found: Match) -> str:
    """2.0.1, part by part."""
    parts = found[0].split(".")
    said = (voice.digits(one) if one[0] == "0" or len(one) > 3 else voice.numeral(int(one)) for one in parts)
    return f" {voice.locale.words['version']} ".join(said)


def shared_rules(tables: Tables) -> tuple[Rule, ...]:
    """Rules whose words are in the tables: `numbered` has abbreviations before a number only ("S. 5")."""
    locale, numbered = tables.locale, tables.pairs("numbered")
    day, grouped = any_of(locale.weekdays), r"\d{1,3}(?:\.\d{3})+(?!\d|\.\d)" if "." in locale.group else "(?!)"

    def currency(voice: European, found: Match) -> str:
        return locale.currencies[found[0]][0][-1]

    def weekdays(voice: European, found: Match) -> str:
        return voice.range(locale.weekdays[found["a"]], locale.weekdays[found["b"]])

    def account(voice: European, found: Match) -> str:
        groups = (
            voice.join(*(voice.digits(one) if one.isdecimal() else one for one in part))
            for part in found["rest"].split()
        )
        return f"{found['land']} {', '.join(groups)}"

    def years(voice: European, found: Match) -> str:
        return voice.range(voice.year(int(found["a"])), voice.year(int(found["b"])))

    return (
        Rule("digits", r"(?<![\p{L}\p{N}])(?P<land>[A-Z]{2})(?P<rest>\d\d(?: ?[\dA-Z]{4}){2,7}"
         r"(?: ?[\dA-Z]{1,3})?)(?![\p{L}\p{N}])",
             account, "letter"),
        Rule("years", r"(?<![\d.,:/-])(?P<a>1[1-9]\d\d|20\d\d) ?[-–—] ?(?P<b>1[1-9]\d\d|20\d\d)(?!\d|[-.,/]\d)", years),
        Rule("version", rf"(?<![\d.,])(?!{grouped}|{DAY}\.\d\d?\.\d{{4}}(?!\d))\d{{1,8}}(?:\.\d{{1,8}})+(?!,?\d|\.\d)",
         version),
        Rule("division", r"(?<=\d[ )]?)[/:÷](?= \d)", lambda voice, found: locale.words["over"], "sign"),
        Rule("product", r"(?<=\d ?)[·∙](?= ?\d)", lambda voice, found: locale.signs["×"], "sign"),
        Rule("times", r"(?<![\d.,])(?P<n>\d{1,3}) ?[xх×](?= \p{Ll}{2})",
             lambda voice, found: voice.unit(Number(int(found["n"])), tables.forms("times")[0])),
        Rule("per", r"(?<=[\d€$] ?)/ ?(?=Monat|mes\b|mois|mese|мес|Jahr|año|an\b|anno)",
             lambda voice, found: f"{locale.words['per']} ", "sign"),
        Rule("numbered", rf"{START}(?P<short>{any_of(numbered)})\s?(?=\d|[IVX]+\b)",
             lambda voice, found: f"{numbered[found['short']]} ", "letter"),
        Rule("weekday", rf"(?<![\p{{L}}.])(?P<a>{day})\.?(?=,? \d\d?[. /])",
             lambda voice, found: locale.weekdays[found["a"]], "letter"),
        Rule("date", rf"(?<=(?<!\p{{L}})(?i:{locale.words.get('date_cue', '(?!)')}) )(?P<d>{DAY})/"
         rf"(?P<m>0?[1-9]|1[0-2])(?![\d/,]|\.\d| d[eiu'’])",
             lambda voice, found: voice.date(None, int(found["m"]), int(found["d"]))),
        Rule("weekdays", rf"(?<![\p{{L}}.])(?P<a>{day})\.?(?:\s?[-–—]\s?| {locale.words['to']} )(?P<b>{day})"
         rf"(?!\p{{L}})\.?"
         rf"(?=\s?\d|\s\p{{Ll}}|[.,]?\Z)",
             weekdays, "letter"),
        Rule("roman", rf"(?<=(?<!\p{{L}})(?:{tables.pattern('kings')}) ){ROMAN}",
             lambda voice, found: voice.reign(roman_value(found[0]), word_before(found)), "letter"),
        Rule("money", r"(?<=\d (?:de |d['’])?|\p{L} (?:de |di )|d['’])[€$£¥₽](?!\d)", currency, "sign"),
    )  # fmt: skip
