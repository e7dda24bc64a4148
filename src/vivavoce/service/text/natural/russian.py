"""Russian: "третьего марта", "две книги", "в двадцать первом веке"."""

from __future__ import annotations

from collections.abc import Sequence

from vivavoce.service.text.natural.addresses import roman_value
from vivavoce.service.text.natural.european import DAY, HOUR, ROMAN, European, following, full_stop, word_before
from vivavoce.service.text.natural.grammar import Match, any_of, compiled
from vivavoce.service.text.natural.tables import load_tables
from vivavoce.service.text.natural.values import Forms, Number
from vivavoce.service.text.natural.verbalizer import Rule

_TABLES = load_tables("ru")
# Cases: n(ominative), g(enitive), d(ative), i(nstrumental), p(repositional), a(ccusative, where it is not nominative).
_DECLINED = {one: dict(zip("gdip", rest.split(), strict=True)) for one, rest in _TABLES.pairs("declined").items()}
_ENDINGS = {one: dict(zip("ngdipa", rest.split(), strict=True)) for one, rest in _TABLES.pairs("endings").items()}
_THIRD, _NOUNS, _NAMES = map(_TABLES.pairs, ("third", "nouns", "names"))
_CASES, _SUFFIXES = _TABLES.fixes("case_fixes"), _TABLES.fixes("suffix_fixes")
_NAMED = compiled(rf"(?:(?P<m>{_TABLES.pattern('kings')})|{_TABLES.pattern('queens')})(?P<end>\p{{Ll}}{{0,2}}) \Z")
_ONES = {"f": ("одна", "две"), "n": ("одно", "два")}
_LOCALE = _TABLES.locale
_PERCENT = ("процент", "процента", "процентов")
_COUNTED = any_of((*_LOCALE.units, *_LOCALE.currencies, *_LOCALE.magnitudes))
_MONTH = any_of(_LOCALE.months)
_ADJECTIVES = compiled(r"(?:\p{L}+(?:ых|их|ые|ие) )+(?=\p{L})")


def plural(value: int) -> int:
    """Which of three forms of a noun goes with the number: for 1, for 2 to 4, for many."""
    return 2 if value % 100 in range(11, 20) else 0 if value % 10 == 1 else 1 if value % 10 in (2, 3, 4) else 2


def _told(rows: Sequence[tuple[Match, str]], context: str) -> str:
    """What the first row says whose pattern fits the context; "n" where none does."""
    return next((said for pattern, said in rows if pattern.match(context)), "n")


class Russian(European):
    """Russian."""

    def form(self, number: Number, forms: Forms) -> str:
        """For 1, 2 to 4, or many; a part of one has that for 2: "пять десятых метра"."""
        if len(forms) < 3 or number.power:
            return forms[-1]
        part = number.decimals and (number.decimals != "5" or number.whole < 2)
        return forms[1 if part else plural(number.whole)]

    def say(self, value: int, case: str = "n", gender: str = "m") -> str:
        """A number in a case and a gender."""
        head, _, last = self.numeral(value).rpartition(" ")
        if last in ("один", "два"):
            last = _ONES.get(gender, ("один", "два"))[last == "два"]
            last = "одну" if case == "a" and last == "одна" else last
        words = f"{head} {last}".split()
        if case == "a" and words[0] == "тысяча":
            words[0] = "тысячу"
        return " ".join(words if case in "na" else (_decline(word, case) for word in words))

    def rank(self, value: int, case: str = "n", gender: str = "m") -> str:
        """A place in an order; its last word alone is inflected."""
        stem, ending = super().place(value), _ENDINGS[gender][case]
        if stem.endswith("трет"):
            return stem + _THIRD[ending]
        stressed = ending == "ый" and compiled(r".*(?:втор|(?<!ст)шест|седьм|восьм|сороков|нулев)\Z").match(stem)
        return stem + ("ой" if stressed else ending)

    def place(self, value: int, noun: str = "") -> str:
        """ "двадцать первый"."""
        return self.rank(value, "n", "f" if noun.startswith("/f/") else "m")

    def counted(self, said: str, after: str) -> str:
        """2 is "две" before a feminine noun."""
        head, _, last = said.rpartition(" ")
        gender = self.noun_gender(after, last == "два")
        return self.join(head, _ONES[gender][last == "два"]) if last in ("один", "два") and gender in _ONES else said

    def noun_gender(self, after: str, few: bool = False, oblique: bool = False) -> str:
        """The gender of the noun that follows; few: it stands as behind 2 to 4, in the genitive."""
        noun = _noun(after)
        if few or oblique:
            return "f" if noun.endswith(("ы", "и") if few else ("ы", "и", "ой", "ей", "е")) and len(noun) > 1 else "m"
        if noun.endswith(("о", "е", "ё")) and len(noun) > 2 and noun != "евро":
            return "n"
        return "f" if len(noun) > 2 and self._feminine.match(noun) else "m"

    def case(self, value: int, before: str, after: str) -> str:
        """The case of a number, by the word before it, its form of a noun, and that noun."""
        return _told(_CASES, f"{before} {plural(value)} {_noun(after)} {after}")

    def number(self, number: Number, after: str = "") -> str:
        """3,14 is "три целых четырнадцать сотых", 2,5 "два с половиной"."""
        digits, whole = number.decimals, number.whole
        if not digits or len(digits) > 3:
            return super().number(number, after)
        noun = self.form(Number(whole, digits), self.powers[number.power]) if number.power else ""
        if digits == "5" and whole > 1:
            said = f"{self.cardinal(whole, noun or after)} с половиной"
        else:
            part, end = int(digits), "ая" if plural(int(digits)) == 0 and int(digits) else "ых"
            name = ("десят", "сот", "тысячн")[len(digits) - 1] + end
            said = f"{self.wholes(whole)} {self.say(part, 'n', 'f')} {name}"
        return self.join("минус" if number.negative else "", said, noun)

    def wholes(self, whole: int) -> str:
        """ "одна целая", "две целых"."""
        return f"{self.say(whole, 'n', 'f')} {'целая' if plural(whole) == 0 else 'целых'}"

    def ratio(self, sides: Sequence[str]) -> str:
        """3:1 is "три один"; a scale has a rule of its own."""
        return " ".join(sides)

    def percent(self, number: Number) -> str:
        """ "двадцать один процент"."""
        return self.unit(number, _PERCENT)

    def day(self, day: int) -> str:
        """ "третьего": a date stands in the genitive."""
        return self.rank(day, "g", "n")

    def year(self, value: int) -> str:
        """ "две тысячи пятого года"."""
        return f"{self.rank(value, 'g')} года"

    def time(self, hour: int, minute: int, second: int | None = None, half: str = "") -> str:
        """14:30 is "четырнадцать тридцать", 9:05 "девять ноль пять", 9:00 "девять часов"."""
        said = self.spelled(f"{hour} {minute:02}").replace(",", "") if minute else ""
        said = said or self.unit(Number(hour), self.locale.units["h"])
        said = self.join(said, {"am": "утра", "pm": "вечера" if 4 < hour < 12 else "дня"}.get(half, ""))
        return self.join(said, self.unit(Number(second), self.locale.units["s"]) if second else "")

    def fraction(self, whole: int, numerator: int, denominator: int) -> str:
        """1/2 is "одна вторая", 2/3 "две третьих"."""
        part = self.rank(denominator, "n", "f") if plural(numerator) == 0 else self.rank(denominator, "g", "pl")
        said = f"{self.say(numerator, 'n', 'f')} {part}"
        return f"{self.wholes(whole)} и {said}" if whole else said

    def spelled(self, digits: str) -> str:
        """Groups of a phone number as numbers."""
        parts = ((len(part) - len(part.lstrip("0")), part) for part in compiled(r"\d+").findall(digits))
        said = (self.join(*["ноль"] * zeros, self.numeral(int(part)) if int(part) else "") for zeros, part in parts)
        return ("плюс " if digits[0] == "+" else "") + ", ".join(said)


def _decline(word: str, case: str) -> str:
    if word in _DECLINED:
        return _DECLINED[word][case]
    if word.endswith("десят"):
        return f"{_decline(word[:-5], case)}десят{'ью' if case == 'i' else 'и'}"
    if word.endswith("сот"):
        return _decline(word[:-3], case) + {"g": "сот", "d": "стам", "i": "стами", "p": "стах"}[case]
    return f"{word}ю" if case == "i" else f"{word[:-1]}и"


def _noun(after: str) -> str:
    """The first word of what follows in lower case, without adjectives in the plural ("новых")."""
    return compiled(r"\p{L}*").match(_ADJECTIVES.sub("", after.lower(), 1) if after[:2].isalpha() else "")[0]


def _suffixed(voice: Russian, found: Match) -> str:
    """5-го, 2-я, 1990-е."""
    told = _told(_SUFFIXES, f"{word_before(found)} {found['s']} {following(found)}")
    return voice.rank(int(found["n"]), told[0], told[1:])


def _floor(voice: Russian, found: Match) -> str:
    """ "на третьем этаже"."""
    return voice.rank(int(found["n"]), "p" if found["end"] else "n", "n" if found["s"] == "место" else "m") + " "


def _year(voice: Russian, found: Match) -> str | None:
    noun, before = found["noun"].rstrip("."), word_before(found)
    era = following(found).startswith(("до н", "н. э", "н.э"))
    if len(found["n"]) < 3 and not era and noun not in ("году", "веке"):
        return None
    if noun in ("г", "гг"):
        inside = before in ("в", "во")
        one = "году" if inside else "год" if before == "по" else "года"
        noun = ("годах" if inside else "годы") if found["a"] else one
    case = "d" if before in ("к", "ко") and noun == "году" else _NOUNS[noun]
    low = voice.rank(int(found["a"]), "g" if before in ("с", "со") else case) if found["a"] else ""
    low += (" по " if found["to"].strip() == "по" else ", ") if low else ""
    return f"{low}{voice.rank(int(found['n']), case)} {noun}{full_stop(found)}"


def _date(voice: Russian, found: Match) -> str:
    before = word_before(found)
    month = voice.locale.months[found["name"].lower()] if found["name"] else int(found["m"])
    case = "n" if found["from"] or before in ("по", "на") else "d" if before in ("к", "ко") else "g"
    low = f"{voice.day(int(found['from']))} по" if found["from"] else ""
    year = voice.year(int(found["y"])) if found["y"] else ""
    said = voice.join(low, voice.rank(int(found["d"]), case, "n"), voice.locale.month_names[month - 1], year)
    return said + full_stop(found)


def _clock(voice: Russian, found: Match) -> str:
    hour, minute = int(found["h"]), int(found["m"])
    if voice.case(hour, word_before(found), following(found)[:12]) != "g":
        return voice.time(hour, minute)
    after = voice.spelled(found["m"]) if minute else "часа" if plural(hour) == 0 else "часов"
    return f"{voice.say(hour, 'g')} {after}"


def _number(voice: Russian, found: Match) -> str | None:
    """A number in another case than the nominative, which is left to the rules of all languages."""
    value, after = int("".join(filter(str.isdigit, found["n"]))), following(found)
    case = voice.case(value, word_before(found), after)
    few = case == "a" and plural(value) == 1
    return None if case == "n" else voice.say(value, case, voice.noun_gender(after, few, oblique=case != "a"))


def _counted(voice: Russian, found: Match) -> str | None:
    """ "до пятидесяти процентов": a number with its unit behind a preposition of the genitive."""
    sign, value, locale = found["unit"], int(found["n"]), voice.locale
    forms = locale.currencies[sign][0] if sign in locale.currencies else locale.units.get(sign, _PERCENT)
    if sign in locale.magnitudes:
        forms = voice.powers[locale.magnitudes[sign]]
    if voice.case(value, word_before(found), "") != "g" or len(forms) < 3:
        return None
    return f"{voice.say(value, 'g', voice.noun_gender(forms[0]))} {forms[2 if plural(value) else 1]}{full_stop(found)}"


def _part(voice: Russian, found: Match) -> str | None:
    """1/2 after a verb is "одну вторую", 2/3 after "около" "двух третьих"."""
    before, value, part = word_before(found), int(found["n"]), int(found["d"])
    if voice.case(5, before, "") == "g":
        return f"{voice.say(value, 'g', 'f')} {voice.rank(part, 'g', 'pl' if plural(value) else 'f')}"
    verb = compiled(r".*(?:те|ть|ти|л|ла|ли|ем|им|ю|ит|ет|на|в)\Z").match(before)
    return f"одну {voice.rank(part, 'a', 'f')}" if verb and value == 1 else None


def _goals(voice: Russian, found: Match) -> str:
    return f"{voice.numeral(int(found['a']))} {voice.cardinal(int(found['b']), following(found))}"


def _century(voice: Russian, found: Match) -> str:
    noun, before = found["noun"], word_before(found)
    if noun[-1] == ".":
        noun = "веке" if before in ("в", "во", "о") else "век" if not before else "века"
    two = (
        voice.rank(roman_value(found["a"]), _NOUNS[noun]) + (" и " if found["to"] == " и " else ", ")
        if found["a"]
        else ""
    )
    noun = {"век": "века", "веке": "веках"}.get(noun, noun) if found["noun"] == "вв." else noun
    return (
        f"{two}{voice.rank(roman_value(found['r']), 'p' if noun == 'веках' else _NOUNS[noun])} {noun}{full_stop(found)}"
    )


def _reign(voice: Russian, found: Match) -> str | None:
    named = _NAMED.search(found.string, max(0, found.start() - 24), found.start())
    if not named:
        return None
    gender = "m" if named["m"] else "f"
    return voice.rank(roman_value(found["r"]), _NAMES.get(gender + named["end"], "n"), gender).title()


Russian.rules = (
    Rule("date", rf"(?<![\d.,:/-])(?:(?P<from>{DAY})(?: по |\s?[-–—]\s?))?(?P<d>{DAY})(?: (?P<name>"
         rf"(?i:{_MONTH}))(?!\p{{L}})(?: (?P<y>\d{{4}})(?!\d))?"
         r"|\.(?P<m>0[1-9]|1[0-2])(?=[ ,]\p{L})(?<!\p{L} \d{1,2}\.\d\d)|"
         r"\.(?P<m>0[1-9]|1[0-2])\.(?P<y>\d{4})(?![\d.]\d))(?P<year> ?(?:года|г\.|г))?(?!\p{L})", _date),
    Rule("ordinal", r"(?<![\d.,:/-])(?P<n>\d{1,3}) (?=(?P<s>"
         r"(?:этаж|класс|курс|ряд|квартал|тур|канал|вагон|место|подъезд)(?P<end>е?))(?!\p{L}))", _floor),
    Rule("ordinal", r"(?<![\d.,])(?P<n>\d{1,4})-(?P<s>[ыои]?й|я|[ео]?е|о?го|о?му|о?м|ы?х|ми|у?ю|ые|ым)(?!\p{L})",
         _suffixed),
    Rule("year", rf"(?<![\d.,:-])(?:(?P<a>\d{{3,4}})(?P<to> ?[-–—] ?| по ))?(?P<n>\d{{1,4}}) ?(?P<noun>"
         rf"(?:{any_of(_NOUNS)})(?!\p{{L}})|г{{1,2}}\.)(?! ?\p{{Lu}}\p{{Ll}}+,)", _year),
    Rule("ratio", r"(?<=(?i:масштаб|соотношени|пропорци|отношени)\p{Ll}*(?: \p{L}+){0,2} )(?P<a>\d+):(?P<b>\d+)"
         r"(?![\d:])",
         lambda voice, found: f"{voice.numeral(int(found['a']))} к {voice.say(int(found['b']), 'd')}"),
    Rule("score", r"(?<=(?i:выигр|проигр|сч[её]т|побед|матч|законч|сыгра|обыгра|ничь)\p{Ll}*(?: \p{L}+){0,2} )"
         r"(?P<a>\d{1,3})[:-](?P<b>\d{1,3})(?!\d)", _goals),
    Rule("time", rf"(?<![\d.,:])(?P<h>{HOUR})(?::|(?<=(?<!\p{{L}})(?:в|до|с|к|около) \d\d?)\.)(?P<m>[0-5]\d)"
         r"(?![\d:]|\.\d)", _clock),
    Rule("fraction", r"(?<![\d.,/])(?P<n>\d{1,2})/(?P<d>[2-9]|1\d)(?![\d/.])", _part),
    Rule("range", r"(?<![\d.,])(?P<a>\d{1,3})\s?[-–—]\s?(?P<b>\d{1,3})(?= \p{Ll})", _goals),
    Rule("unit", rf"(?<=\p{{L}} )(?P<n>\d+) ?(?P<unit>%|{_COUNTED})(?![\p{{L}}/])", _counted),
    Rule("number", r"(?<![\d.,:/-])(?P<n>\d{1,3}(?:[ \u00a0]\d{3})+|\d+)(?!\d|[.,:/]\d|[-–]\d|[-–]\p{L})"
         r"(?= ?\p{Ll}| ?[(,;.]|\Z)"
         rf"(?! ?(?:{any_of((*_LOCALE.magnitudes, *_LOCALE.units, 'руб', 'коп', 'долл'))})(?!\p{{L}}))", _number),
    Rule("roman", rf"(?<!\p{{L}})(?:(?P<a>[IVX]+)(?P<to>[-–—]| и |, ))?(?P<r>{ROMAN}) (?P<noun>век(?:а|е|у|ом)?"
         rf"(?!\p{{L}})|в?в\.(?! ?до))", _century, "letter"),
    Rule("roman", rf"(?<=\p{{Ll}} )(?P<r>{ROMAN})", _reign, "letter"),
)  # fmt: skip
VERBALIZER = Russian("ru")
