"""Verbalizer of Russian: "третьего марта", "две книги", "в двадцать первом веке"."""

from __future__ import annotations

from collections.abc import Sequence

from vivavoce_textnorm.grammar import Match, compiled, parse_number, roman_value
from vivavoce_textnorm.romance import European, word_before
from vivavoce_textnorm.rules import following, full_stop
from vivavoce_textnorm.tables import Fixes
from vivavoce_textnorm.types import Forms, Number

_ONES = {"f": ("одна", "две"), "n": ("одно", "два")}
_ADJECTIVES = compiled(r"(?:\p{L}+(?:ых|их|ые|ие) )+(?=\p{L})")


def plural(value: int) -> int:
    """Return the index of a noun's form after a number: 0 as after 1, 1 as after 2 to 4, 2 as after 5."""
    return 2 if value % 100 in range(11, 20) else 0 if value % 10 == 1 else 1 if value % 10 in (2, 3, 4) else 2


def _first_fitting(rows: Fixes, context: str) -> str:
    """Return the letters of the first row with a pattern that matches the context; "n" if no row matches."""
    return next((said for pattern, said in rows if pattern.match(context)), "n")


def _noun(after: str) -> str:
    """Return the first word of the text after a number, in lower case; skip adjectives in the plural ("новых")."""
    return compiled(r"\p{L}*").match(_ADJECTIVES.sub("", after.lower(), 1) if after[:2].isalpha() else "")[0]


class Russian(European):
    """Verbalizer of Russian. The cases are n(ominative), g(enitive), d(ative), i(nstrumental), p(repositional) and
    a(ccusative, where it differs from the nominative).
    """

    def __init__(self, language: str) -> None:
        super().__init__(language)
        locale = self.locale
        declined, endings = locale.pairs("declined").items(), locale.pairs("endings").items()
        self._declined = {one: dict(zip("gdip", rest.split(), strict=True)) for one, rest in declined}
        self._endings = {one: dict(zip("ngdipa", rest.split(), strict=True)) for one, rest in endings}
        self._third, self._nouns, self._names = map(locale.pairs, ("third", "nouns", "names"))
        self._short = {**locale.abbreviations, **locale.pairs("numbered"), **self._names}
        self._cases, self._suffixes = locale.fixes("case_fixes"), locale.fixes("suffix_fixes")
        kings, queens = locale.pattern("kings"), locale.pattern("queens")
        self._named = compiled(rf"(?:(?P<m>{kings})|{queens})(?P<end>\p{{Ll}}{{0,2}}) \Z")

    def form(self, number: Number, forms: Forms) -> str:
        """Return the noun's form after the number; after decimals, the form is as after 2: "пять десятых метра"."""
        if len(forms) < 3 or number.power:
            return forms[-1]
        part = number.decimals and (number.decimals != "5" or number.whole < 2)
        return forms[1 if part else plural(number.whole)]

    def say(self, value: int, case: str = "n", gender: str = "m") -> str:
        """Say a number in a case and a gender."""
        head, _, last = self.numeral(value).rpartition(" ")
        if last in ("один", "два"):
            last = _ONES.get(gender, ("один", "два"))[last == "два"]
            last = "одну" if case == "a" and last == "одна" else last
        words = f"{head} {last}".split()
        if case == "a" and words[0] == "тысяча":
            words[0] = "тысячу"
        return " ".join(words if case in "na" else (self._decline(word, case) for word in words))

    def rank(self, value: int, case: str = "n", gender: str = "m") -> str:
        """Say an ordinal in a case and a gender; only its last word is inflected."""
        stem, ending = super().place(value), self._endings[gender][case]
        if stem.endswith("трет"):
            return stem + self._third[ending]
        stressed = ending == "ый" and compiled(r".*(?:втор|(?<!ст)шест|седьм|восьм|сороков|нулев)\Z").match(stem)
        return stem + ("ой" if stressed else ending)

    def place(self, value: int, noun: str = "") -> str:
        """Say an ordinal in the nominative, such as "двадцать первый"."""
        return self.rank(value, "n", "f" if noun.startswith("/f/") else "m")

    def cardinal(self, value: int, after: str = "") -> str:
        """2 is "две" before a feminine noun."""
        said = self.numeral(value)
        head, _, last = said.rpartition(" ")
        gender = self.noun_gender(after, last == "два") if after else ""
        return self.join(head, _ONES[gender][last == "два"]) if last in ("один", "два") and gender in _ONES else said

    def noun_gender(self, after: str, few: bool = False, oblique: bool = False) -> str:
        """Return the gender of the next noun. few: it is in the genitive, as after 2; oblique: it is not nominative."""
        noun = _noun(after)
        if few or oblique:
            return "f" if noun.endswith(("ы", "и") if few else ("ы", "и", "ой", "ей", "е")) and len(noun) > 1 else "m"
        if noun.endswith(("о", "е", "ё")) and len(noun) > 2 and noun != "евро":
            return "n"
        return "f" if len(noun) > 2 and self._feminine.match(noun) else "m"

    def case(self, value: int, before: str, after: str) -> str:
        """Return the case of a number, by the word before it, `plural(value)` and the text after it."""
        return _first_fitting(self._cases, f"{before} {plural(value)} {_noun(after)} {after}")

    def number(self, number: Number, after: str = "", case: str = "n") -> str:
        """3,14 is "три целых четырнадцать сотых", 2,5 "два с половиной"."""
        digits, whole = number.decimals, number.whole
        if not digits or len(digits) > 3:
            return super().number(number, after)
        noun = self.form(Number(whole, digits), self.powers[number.power]) if number.power else ""
        if digits == "5" and whole == 1 and (name := _noun(noun or after)):
            said = "полторы" if name[-1] in "ыи" else "полтора" if name[-1] in "аяо" and case != "g" else "полутора"
        elif digits == "5" and whole > 1:
            said = f"{self.say(whole, case) if case == 'g' else self.cardinal(whole, noun or after)} с половиной"
        else:
            part, one = int(digits), {"g": "ой", "a": "ую"}.get(case, "ая")
            name = ("десят", "сот", "тысячн")[len(digits) - 1] + (one if plural(part) == 0 and part else "ых")
            said = f"{self.wholes(whole, case)} {self.say(part, case, 'f')} {name}"
        return self.join("минус" if number.negative else "", said, noun)

    def wholes(self, whole: int, case: str = "n") -> str:
        return f"{self.say(whole, case, 'f')} цел{'ых' if plural(whole) else {'g': 'ой', 'a': 'ую'}.get(case, 'ая')}"

    def ratio(self, sides: Sequence[str]) -> str:
        """3:1 is "три один"; `_scale` reads the scale of a map."""
        return " ".join(sides)

    def day(self, day: int) -> str:
        return self.rank(day, "g", "n")

    def year(self, value: int) -> str:
        """Say a year in the genitive, such as "две тысячи пятого года"."""
        return f"{self.rank(value, 'g')} года"

    def time(self, hour: int, minute: int, second: Number | None = None, half: str = "") -> str:
        """14:30 is "четырнадцать тридцать", 9:05 "девять ноль пять", 9:00 "девять часов"."""
        said = self.phone(f"{hour} {minute:02}").replace(",", "") if minute else ""
        said = said or self.unit(Number(hour), self.locale.units["h"])
        said = self.join(said, {"am": "утра", "pm": "вечера" if 4 < hour < 12 else "дня"}.get(half, ""))
        return self.join(said, self.unit(second, self.locale.units["s"]) if second else "")

    def fraction(self, whole: int, numerator: int, denominator: int) -> str:
        """1/2 is "одна вторая", 2/3 "две третьих"."""
        part = self.rank(denominator, "n", "f") if plural(numerator) == 0 else self.rank(denominator, "g", "pl")
        said = f"{self.say(numerator, 'n', 'f')} {part}"
        return f"{self.wholes(whole)} и {said}" if whole else said

    def phone(self, written: str) -> str:
        parts = ((len(part) - len(part.lstrip("0")), part) for part in compiled(r"\d+").findall(written))
        said = (self.join(*["ноль"] * zeros, self.numeral(int(part)) if int(part) else "") for zeros, part in parts)
        return ("плюс " if written[0] == "+" else "") + ", ".join(said)

    def _decline(self, word: str, case: str) -> str:
        if word in self._declined:
            return self._declined[word][case]
        if word.endswith("десят"):
            return f"{self._decline(word[:-5], case)}десят{'ью' if case == 'i' else 'и'}"
        if word.endswith("сот"):
            return self._decline(word[:-3], case) + {"g": "сот", "d": "стам", "i": "стами", "p": "стах"}[case]
        return f"{word}ю" if case == "i" else f"{word[:-1]}и"

    def _suffixed(self, found: Match) -> str:
        """Read a number with an ending: 5-го, 2-я, 1990-е."""
        value, decade = int(found["n"]), "0" if found["s"] == "е" and found["n"][1:].endswith("0") else ""
        if found["s"] == "ти" or (found["s"] == "х" and value < 5):
            return self.say(value, "g")
        told = _first_fitting(self._suffixes, f"{word_before(found)} {decade}{found['s']} {following(found)}")
        return self.rank(value, told[0], told[1:])

    def _weekday(self, found: Match) -> str:
        """Say a weekday in the case that its preposition requires: "по вторникам и четвергам", "в субботу"."""
        return self._fixed(f"{(found['to'] or '').lower()} {self.locale.weekdays[found['d']]}", "weekday_fixes", 1)

    def _noun(self, found: Match) -> str:
        """Say an abbreviated noun in the case that its preposition requires: "на улице", "см. главу"."""
        return self._fixed(f"{(found['p'] or '').lower()} {self._short[found['k']]}", "short_fixes", 1) + " "

    def _joined(self, found: Match) -> str:
        """10-летний is "десятилетний"."""
        return self._fixed(self.say(int(found["n"]), "g").replace(" ", ""), "joined_fixes") + str(found["w"])

    def _floor(self, found: Match) -> str | None:
        """Read the ordinal of a floor or a seat: "на третьем этаже"."""
        gender = "n" if found["s"].startswith("мест") else "f" if found["f"] else "m"
        before, end = word_before(found), found["end"]
        case = "n" if not end else "p" if end == "е" or (end == "и" and before == "на") else "g"
        if case == "g" and before not in ("с", "со", "из", "до", "от", "около", "после", "для"):
            return None  # a count of floors, not an ordinal
        return self.rank(roman_value(found["n"]), case, gender) + " "

    def _year(self, found: Match) -> str | None:
        noun, before = found["noun"].rstrip("."), word_before(found)
        era = following(found).startswith(("до н", "н. э", "н.э"))
        if len(found["n"]) < 3 and not era and noun not in ("году", "веке"):
            return None
        if noun in ("г", "гг"):
            inside = before in ("в", "во")
            one = "году" if inside else "год" if before == "по" else "года"
            until = "год" if noun == "г" and "по" in (found["to"] or "") else "годы"
            noun = ("годах" if inside else until) if found["a"] else one
        case = "d" if before in ("к", "ко") and noun == "году" else self._nouns[noun]
        low = self.rank(int(found["a"]), "g" if before in ("с", "со") else case) if found["a"] else ""
        low += (" по " if found["to"].strip() == "по" else ", ") if low else ""
        return f"{low}{self.rank(int(found['n']), case)} {noun}{full_stop(found)}"

    def _date(self, found: Match) -> str:
        before = word_before(found)
        month = self.locale.months[found["name"].lower()] if found["name"] else int(found["m"])
        to = (found["and"] or " по") if found["from"] else ""
        case = "n" if to == " по" or before in ("по", "на") else "d" if before in ("к", "ко") else "g"
        low = f"{self.day(int(found['from']))}{to}" if found["from"] else ""
        year = self.year(int(found["y"])) if found["y"] else ""
        said = self.join(low, self.rank(int(found["d"]), case, "n"), self.locale.month_names[month - 1], year)
        return said + full_stop(found)

    def _clock(self, found: Match) -> str:
        hour, minute = int(found["h"]), int(found["m"])
        before = word_before(found)
        case = "g" if before in ("с", "со") else self.case(hour, before, following(found)[:12])
        if case != "g":
            return self.time(hour, minute) if minute or case != "d" else f"{self.say(hour, 'd')} часам"
        hours = "часа" if plural(hour) == 0 else "часов"
        after = self.join("ноль" * (minute < 10), self.say(minute, "g")) if minute else hours
        return f"{self.say(hour, 'g')} {after}"

    def _cased(self, found: Match) -> str | None:
        """Read a number that is not in the nominative; None for the nominative, which the common rules read."""
        value, after = int("".join(filter(str.isdigit, found["n"]))), following(found)
        case = self.case(value, word_before(found), after)
        gender = self.noun_gender(after, case in "na" and plural(value) == 1, oblique=case not in "na")
        if case == "n" and not found["c"]:
            return None
        return self.between([self.say(int(one), case, gender) for one in (found["c"], value) if one], "to")

    def _counted(self, found: Match) -> str | None:
        """Read a number with a unit in the case that its preposition requires: "до пятидесяти процентов"."""
        sign, number, locale = found["unit"], parse_number(found["n"], self.locale), self.locale
        forms = locale.currencies[sign][0] if sign in locale.currencies else locale.units.get(sign)
        forms = forms or tuple(locale.words["percent"].split("/"))
        if sign in locale.magnitudes:
            of = locale.units[found["of"]][-1] if found["of"] else ""
            forms = tuple(self.join(one, of) for one in self.powers[locale.magnitudes[sign]])
        before, after, value, digits = word_before(found), following(found), number.whole, number.decimals
        inside = before == "при" or (before == "в" and after.partition(" ")[0] == "от")
        case = "p" if inside else "d" if before == "по" else self.case(value, before, after if before == "с" else "")
        low = f"{self.say(int(found['c']), case)} — " if found["c"] else ""
        if case in "pd" and before != "по" and forms[-1][-2:] == "ов" and plural(value) and not digits:
            return f"{low}{self.say(value, case)} {forms[-1][:-2]}а{'х' if inside else 'м'}{full_stop(found)}"
        if case in "ad" and plural(value) == 0 and forms[0][-1] == "а" and not digits:
            return f"{self.say(value, case, 'f')} {forms[0][:-1]}{'у' if case == 'a' else 'е'}{full_stop(found)}"
        if case not in ("ga" if digits else "g") or len(forms) < 3:
            return None
        if digits:
            noun = self.form(number, forms) if case == "a" else forms[1 + (digits == "5" and value > 0)]
            return f"{low}{self.number(number, noun, case)} {noun}{full_stop(found)}"
        said = self.say(value, "g", self.noun_gender(forms[0]))
        return f"{low}{said} {forms[2 if plural(value) else 1]}{full_stop(found)}"

    def _part(self, found: Match) -> str | None:
        """1/2 after a verb is "одну вторую", 2/3 after "около" "двух третьих"."""
        before, value, part = word_before(found), int(found["n"]), int(found["d"])
        if self.case(5, before, "") == "g":
            return f"{self.say(value, 'g', 'f')} {self.rank(part, 'g', 'pl' if plural(value) else 'f')}"
        verb = compiled(r".*(?:те|ть|ти|л|ла|ли|ем|им|ю|ит|ет|на|в)\Z").match(before)
        return f"одну {self.rank(part, 'a', 'f')}" if verb and value == 1 else None

    def _scale(self, found: Match) -> str:
        return f"{self.numeral(int(found['a']))} к {self.say(int(''.join(filter(str.isdigit, found['b']))), 'd')}"

    def _century(self, found: Match) -> str:
        noun, before = found["noun"], word_before(found)
        if noun[-1] == ".":
            noun = "веке" if before in ("в", "во", "о") else "век" if not before else "века"
        low = self.rank(roman_value(found["a"]), self._nouns[noun]) if found["a"] else ""
        low += (found["to"] if len(found["to"]) > 2 else ", ") if low else ""
        noun = {"век": "века", "веке": "веках"}.get(noun, noun) if found["noun"] == "вв." else noun
        case = "p" if noun == "веках" else self._nouns[noun]
        return f"{low}{self.rank(roman_value(found['r']), case)} {noun}{full_stop(found)}"

    def _reign(self, found: Match) -> str | None:
        named = self._named.search(found.string, max(0, found.start() - 24), found.start())
        if not named:
            return None
        gender = "m" if named["m"] else "f"
        return self.rank(roman_value(found["r"]), self._names.get(gender + named["end"], "n"), gender).title()
