"""Russian: "третьего марта", "две книги", "в двадцать первом веке"."""

from __future__ import annotations

from collections.abc import Sequence

from vivavoce.service.text.natural.addresses import roman_value
from vivavoce.service.text.natural.european import DAY, HOUR, ROMAN, European, full_stop, shared_rules, word_before
from vivavoce.service.text.natural.grammar import Match, any_of, compiled
from vivavoce.service.text.natural.tables import load_tables
from vivavoce.service.text.natural.values import Forms, Number
from vivavoce.service.text.natural.verbalizer import Rule

_TABLES = load_tables("ru")
# Cases: n(ominative), g(enitive), d(ative), i(nstrumental), p(repositional), a(ccusative, where it is not nominative).
_CASES = "gdip"
_PERCENT = ("процент", "процента", "процентов")
_DECLINED = {
    one: dict(zip(_CASES, rest, strict=True))
    for one, *rest in map(str.split, _TABLES.sections["declined"].splitlines())
}
_ENDINGS = {
    one: dict(zip("ngdipa", rest, strict=True))
    for one, *rest in map(str.split, _TABLES.sections["endings"].splitlines())
}
_THIRD, _SUFFIXES, _NOUNS, _NAMES = map(_TABLES.pairs, ("third", "suffixes", "nouns", "name_cases"))
_GENITIVE, _DATIVE = _TABLES.words("genitive"), _TABLES.words("dative")
_ONES = {"f": ("одна", "две"), "n": ("одно", "два")}
_NAMED = compiled(
    rf"(?:(?P<m>{_TABLES.pattern('kings')})|(?P<f>{_TABLES.pattern('queens')}))(?P<end>\p{{Ll}}{{0,2}}) \Z"
)
_MANY = compiled(r"\p{L}*(?:[оеё]в|ей|[аеё]к|ок|ий|лет|раз|книг|стран|минут|секунд|недель|сил|рук|ног|штук)\Z")
_COUNTED = any_of((*_TABLES.locale.units, *_TABLES.locale.currencies, *_TABLES.locale.magnitudes))
_MONTH, _STRESSED = any_of(_TABLES.locale.months), ("втор", "шест", "седьм", "восьм", "сороков", "нулев")


def plural(value: int) -> int:
    """Which of three forms of a noun goes with the number: for 1, for 2 to 4, for many."""
    return 2 if value % 100 in range(11, 20) else 0 if value % 10 == 1 else 1 if value % 10 in (2, 3, 4) else 2


class Russian(European):
    """Russian."""

    tables, locale = _TABLES, _TABLES.locale

    def form(self, number: Number, forms: Forms) -> str:
        """For 1, 2 to 4, or many; a part of one has that for 2: "пять десятых метра"."""
        if len(forms) < 3 or number.power:
            return forms[-1]
        return (
            forms[1]
            if number.decimals and (number.decimals != "5" or number.whole < 2)
            else forms[plural(number.whole)]
        )

    def say(self, value: int, case: str = "n", gender: str = "m") -> str:
        """A number in a case and a gender."""
        head, _, last = self.numeral(value).rpartition(" ")
        if last in ("один", "два"):
            last = _ONES.get(gender, ("один", "два"))[last == "два"]
            last = "одну" if case == "a" and last == "одна" else last
        words = f"{head} {last}".split()
        if case == "a" and words[0] == "тысяча":
            words[0] = "тысячу"
        return " ".join(words) if case in "na" else " ".join(_decline(word, case) for word in words)

    def rank(self, value: int, case: str = "n", gender: str = "m") -> str:
        """A place in an order; its last word alone is inflected."""
        stem, ending = super().ordinal(value), _ENDINGS[gender][case]
        if stem.endswith("трет"):
            return stem + _THIRD[ending]
        return stem + ("ой" if ending == "ый" and stem.endswith(_STRESSED) and "ст" not in stem[-4:] else ending)

    def counted(self, said: str, after: str) -> str:
        """2 is "две" before a feminine noun."""
        head, _, last = said.rpartition(" ")
        gender = self.gender(after, last == "два")
        return self.join(head, _ONES[gender][last == "два"]) if last in ("один", "два") and gender in _ONES else said

    def gender(self, after: str, few: bool = False, oblique: bool = False) -> str:
        """The gender of the noun that follows; few: it stands as behind 2 to 4, in the genitive."""
        noun = (_nouns(after) or [""])[0]
        if few or oblique:
            return "f" if noun.endswith(("ы", "и") if few else ("ы", "и", "ой", "ей", "е")) and len(noun) > 1 else "m"
        if noun.endswith(("о", "е", "ё")) and len(noun) > 2 and noun != "евро":
            return "n"
        return "f" if len(noun) > 2 and self._feminine.match(noun) else "m"

    def case(self, value: int, before: str, after: str) -> str:
        """The case of a number, by the word before it and the noun behind it."""
        noun = (_nouns(after) or [""])[0]
        one = plural(value) == 0
        if one and before != "по" and len(noun) > 3 and noun.endswith(("у", "ю")):
            return "a"
        if one and before == "по" and noun.endswith(("е", "и", "у", "ю")):
            return "d"
        if one and (before in ("с", "со") or noun.endswith(("ом", "ем", "ой"))) and before not in _GENITIVE:
            return "i"
        there = before in ("о", "в", "на", "при")
        if one and len(noun) > 3 and noun.endswith("е") and (there or noun[-2] not in "ильрцф"):
            return "p"
        if before in ("на", "за", "через", "про") and not noun.endswith(("ах", "ях", "ами", "ями")):
            return "a"
        if before in _GENITIVE or (before in ("с", "со") and " до " in f" {after}"):
            return "g"
        if before in _DATIVE or (len(noun) > 4 and noun.endswith(("ам", "ям"))):
            return "d"
        if before in ("между", "над", "под", "перед") or (len(noun) > 5 and noun.endswith(("ами", "ями", "ьми"))):
            return "i"
        if len(noun) > 4 and noun.endswith(("ах", "ях")):
            return "p"
        return "g" if plural(value) == 1 and _MANY.match(noun) and noun != "человек" else "n"

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
            one = "целая" if whole and plural(whole) == 0 else "целых"
            name = ("десят", "сот", "тысячн")[len(digits) - 1] + end
            said = f"{self.say(whole, 'n', 'f')} {one} {self.say(part, 'n', 'f')} {name}"
        return self.join("минус" if number.negative else "", said, noun)

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
        said = self.numeral(hour) if minute else self.unit(Number(hour), self.tables.forms("hms")[0])
        said = self.join(said, "ноль" if 0 < minute < 10 else "", self.numeral(minute) if minute else "")
        said = self.join(said, {"am": "утра", "pm": "вечера" if 4 < hour < 12 else "дня"}.get(half, ""))
        return self.join(said, self.unit(Number(second), self.tables.forms("hms")[2]) if second else "")

    def fraction(self, whole: int, numerator: int, denominator: int) -> str:
        """1/2 is "одна вторая", 2/3 "две третьих"."""
        part = self.rank(denominator, "n", "f") if plural(numerator) == 0 else self.rank(denominator, "g", "pl")
        said = f"{self.say(numerator, 'n', 'f')} {part}"
        return f"{self.say(whole, 'n', 'f')} {'целая' if plural(whole) == 0 else 'целых'} и {said}" if whole else said

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


def _nouns(after: str) -> list[str]:
    """The first words of what follows, without adjectives in the plural ("новых")."""
    words = compiled(r"\p{L}+").findall(compiled(r"[.,;:]").split(after)[0].lower())[:3] if after[:2].isalpha() else []
    while len(words) > 1 and words[0].endswith(("ых", "их", "ые", "ие")):
        words = words[1:]
    return words


def _suffixed(voice: Russian, found: Match) -> str:
    """5-го, 2-я, 1990-е."""
    case, gender = _SUFFIXES[found["s"]][0], _SUFFIXES[found["s"]][1:]
    after, before = found.string[found.end() :].lstrip(), word_before(found)
    if found["s"] == "е" and compiled(r"годы|\p{L}+ы\b").match(after):
        gender = "pl"
    if found["s"] == "й" and before and compiled(r"\p{L}+[ыи]\b").match(after):
        case, gender = "g", "f"
    if found["s"] == "й" and before in ("на", "в", "о", "при") and compiled(r"\p{L}+е\b").match(after):
        case, gender = "p", "f"
    if found["s"] == "м" and before not in ("в", "на", "о", "об", "при", "во"):
        case = "i"
    return voice.rank(int(found["n"]), case, gender)


def _floor(voice: Russian, found: Match) -> str:
    """ "на третьем этаже"."""
    return voice.rank(int(found["n"]), "p" if found["end"] else "n", "n" if found["s"] == "место" else "m") + " "


def _year(voice: Russian, found: Match) -> str | None:
    noun, before = found["noun"].rstrip("."), word_before(found)
    inside = before in ("в", "во")
    era = found.string[found.end() :].lstrip().startswith(("до н", "н. э", "н.э"))
    if len(found["n"]) < 3 and not era and noun not in ("году", "веке"):
        return None
    if noun in ("г", "гг"):
        noun = (
            ("годах" if inside else "годы") if found["a"] else "году" if inside else "год" if before == "по" else "года"
        )
    elif noun == "году" and before in ("к", "ко"):
        return f"{voice.rank(int(found['n']), 'd')} году"
    case = _NOUNS[noun]
    low = ""
    if found["a"]:
        low = voice.rank(int(found["a"]), "g" if before in ("с", "со") else case)
        low += " по " if found["to"].strip() == "по" else ", "
    return f"{low}{voice.rank(int(found['n']), case)} {noun}{full_stop(found, found['noun'])}"


def _date(voice: Russian, found: Match) -> str:
    place = voice.locale.months[found["name"].lower()] if found["name"] else int(found["m"])
    month = voice.locale.month_names[place - 1]
    before = word_before(found)
    day = voice.rank(
        int(found["d"]), "n" if found["from"] or before in ("по", "на") else "d" if before in ("к", "ко") else "g", "n"
    )
    low = f"{voice.rank(int(found['from']), 'g', 'n')} по" if found["from"] else ""
    return voice.join(low, day, month, voice.year(int(found["y"])) if found["y"] else "") + full_stop(
        found, found["year"] or ""
    )


def _clock(voice: Russian, found: Match) -> str:
    hour, minute = int(found["h"]), int(found["m"])
    if voice.case(hour, word_before(found), found.string[found.end() :][:12]) != "g":
        return voice.time(hour, minute)
    after = voice.spelled(found["m"]) if minute else "часа" if plural(hour) == 0 else "часов"
    return f"{voice.say(hour, 'g')} {after}"


def _number(voice: Russian, found: Match) -> str | None:
    """A number in another case than the nominative, which is left to the rules of all languages."""
    value, after = int("".join(filter(str.isdigit, found["n"]))), found.string[found.end() :][:40].lstrip()
    case = voice.case(value, word_before(found), after)
    gender = voice.gender(after, plural(value) == 1) if case == "a" else voice.gender(after, oblique=True)
    return None if case == "n" else voice.say(value, case, gender)


def _counted(voice: Russian, found: Match) -> str | None:
    """ "до пятидесяти процентов": a number with its unit behind a preposition of the genitive."""
    sign, value, locale = found["unit"], int(found["n"]), voice.locale
    forms = locale.currencies[sign][0] if sign in locale.currencies else locale.units.get(sign, _PERCENT)
    if sign in locale.magnitudes:
        forms = voice.powers[locale.magnitudes[sign]]
    if word_before(found) not in _GENITIVE or len(forms) < 3:
        return None
    return f"{voice.say(value, 'g', voice.gender(forms[0]))} {forms[2 if plural(value) else 1]}{full_stop(found, sign)}"


def _part(voice: Russian, found: Match) -> str | None:
    """1/2 after a verb is "одну вторую", 2/3 after "около" "двух третьих"."""
    verb = compiled(r".*(?:те|ть|ти|л|ла|ли|ем|им|ю|ит|ет|на|в)\Z").match(word_before(found))
    value, part = int(found["n"]), int(found["d"])
    if word_before(found) in _GENITIVE:
        return f"{voice.say(value, 'g', 'f')} {voice.rank(part, 'g', 'pl' if plural(value) else 'f')}"
    return f"одну {voice.rank(part, 'a', 'f')}" if verb and value == 1 else None


def _goals(voice: Russian, found: Match) -> str:
    return f"{voice.numeral(int(found['a']))} {voice.cardinal(int(found['b']), found.string[found.end() :].lstrip())}"


def _century(voice: Russian, found: Match) -> str:
    noun, before = found["noun"], word_before(found)
    if noun[-1] == ".":
        noun = "веке" if before in ("в", "во", "о") else "век" if not before else "века"
    joint = " и " if found["to"] == " и " else ", "
    two = voice.rank(roman_value(found["a"]), _NOUNS[noun]) + joint if found["a"] else ""
    noun = {"век": "века", "веке": "веках"}.get(noun, noun) if found["noun"] == "вв." else noun
    case = "p" if noun == "веках" else _NOUNS[noun]
    return f"{two}{voice.rank(roman_value(found['r']), case)} {noun}{full_stop(found, found['noun'])}"


def _reign(voice: Russian, found: Match) -> str | None:
    named = _NAMED.search(found.string, max(0, found.start() - 24), found.start())
    if not named:
        return None
    gender = "m" if named["m"] else "f"
    return voice.rank(roman_value(found["r"]), _NAMES.get(gender + named["end"], "n"), gender).title()


def _place(voice: Russian, found: Match) -> str:
    inside = word_before(found) in ("на", "по", "в")
    names = {
        "ул": ("улица", "улице"),
        "г": ("город", "городе"),
        "пр": ("проспект", "проспекте"),
        "пл": ("площадь", "площади"),
    }
    return names[found["short"]][inside]


Russian.rules = (
    Rule("date", rf"(?<![\d.,:/-])(?:(?P<from>{DAY})(?: по |\s?[-–—]\s?))?(?P<d>{DAY})(?: (?P<name>"
         rf"(?i:{_MONTH}))(?!\p{{L}})"
         r"(?: (?P<y>\d{4})(?!\d))?"
         r"|\.(?P<m>0[1-9]|1[0-2])(?=[ ,]\p{L})(?<!\p{L} \d{1,2}\.\d\d)"
         r"|\.(?P<m>0[1-9]|1[0-2])\.(?P<y>\d{4})(?![\d.]\d))(?P<year> ?(?:года|г\.|г))?"
         r"(?!\p{L})",
         _date),
    Rule("ordinal", r"(?<![\d.,:/-])(?P<n>\d{1,3}) (?=(?P<s>"
         r"(?:этаж|класс|курс|ряд|квартал|тур|канал|вагон|место|подъезд)(?P<end>е?))(?!\p{L}))",
         _floor),
    Rule("ordinal", rf"(?<![\d.,])(?P<n>\d{{1,4}})-(?P<s>{any_of(_SUFFIXES)})(?!\p{{L}})", _suffixed),
    Rule("year", rf"(?<![\d.,:-])(?:(?P<a>\d{{3,4}})(?P<to> ?[-–—] ?| по ))?(?P<n>\d{{1,4}}) ?(?P<noun>"
         rf"(?:{any_of(_NOUNS)})(?!\p{{L}})|г{{1,2}}\.)"
         r"(?! ?\p{Lu}\p{Ll}+,)", _year),
    Rule("phone", r"(?<![\w+])(?:\+7|8)[ -]?\(?\d{3}\)?[ -]?\d{3}[ -]?\d{2}[ -]?\d{2}(?!\d)",
         lambda voice, found: voice.spelled(found[0]), "digit sign"),
    Rule("ratio", r"(?<=(?i:масштаб|соотношени|пропорци|отношени)\p{Ll}*(?: \p{L}+){0,2} )(?P<a>\d+):(?P<b>\d+)"
         r"(?![\d:])",
         lambda voice, found: f"{voice.numeral(int(found['a']))} к {voice.say(int(found['b']), 'd')}"),
    Rule("score", r"(?<=(?i:выигр|проигр|сч[её]т|побед|матч|законч|сыгра|обыгра|ничь)\p{Ll}*(?: \p{L}+){0,2} )"
         r"(?P<a>\d{1,3})[:-](?P<b>\d{1,3})(?!\d)",
         _goals),
    Rule("time", rf"(?<![\d.,:])(?P<h>{HOUR})(?::|(?<=(?<!\p{{L}})(?:в|до|с|к|около) \d\d?)\.)(?P<m>[0-5]\d)"
         rf"(?![\d:]|\.\d)",
         _clock),
    Rule("fraction", r"(?<![\d.,/])(?P<n>\d{1,2})/(?P<d>[2-9]|1\d)(?![\d/.])", _part),
    Rule("range", r"(?<![\d.,])(?P<a>\d{1,3})\s?[-–—]\s?(?P<b>\d{1,3})(?= \p{Ll})", _goals),
    Rule("unit", rf"(?<=\p{{L}} )(?P<n>\d+) ?(?P<unit>%|{_COUNTED})(?![\p{{L}}/])", _counted),
    Rule("number", r"(?<![\d.,:/-])(?P<n>\d{1,3}(?:[ \u00a0]\d{3})+|\d+)(?!\d|[.,:/]\d|[-–]\d|[-–]\p{L})"
         r"(?= ?\p{Ll}| ?[(,;.]|\Z)"
         rf"(?! ?(?:{any_of((*_TABLES.locale.magnitudes, *_TABLES.locale.units, 'руб', 'коп', 'долл'))})(?!\p{{L}}))",
         _number),
    Rule("roman", rf"(?<!\p{{L}})(?:(?P<a>[IVX]+)(?P<to>[-–—]| и |, ))?(?P<r>{ROMAN}) (?P<noun>век(?:а|е|у|ом)?"
         rf"(?!\p{{L}})|в?в\.(?! ?до))",
         _century, "letter"),
    Rule("roman", rf"(?<=\p{{Ll}} )(?P<r>{ROMAN})", _reign, "letter"),
    Rule("address", r"(?P<short>ул|г|пр|пл)\.(?= ?\p{Lu})", _place, "letter"),
    Rule("symbol", r"°[CС](?!\p{L})", lambda voice, found: "градусов", "sign"),
    *shared_rules(_TABLES),
)  # fmt: skip
VERBALIZER = Russian()
