"""German: "einundzwanzig", "am dritten März", "vierzehn Uhr dreißig"."""

from __future__ import annotations

from vivavoce.service.text.natural.addresses import roman_value
from vivavoce.service.text.natural.european import DAY, HOUR, ROMAN, European, full_stop, shared_rules, word_before
from vivavoce.service.text.natural.grammar import Match, any_of, compiled
from vivavoce.service.text.natural.tables import load_tables
from vivavoce.service.text.natural.values import Number
from vivavoce.service.text.natural.verbalizer import Rule

_TABLES = load_tables("de")
_DATIVE, _WEAK_EN, _WEAK_E = map(_TABLES.words, ("dative", "weak_en", "weak_e"))
_NEUTER, _ORDERED = compiled(_TABLES.pattern("neuter")), compiled(_TABLES.pattern("ordered"))
_SUBJECT = frozenset(["als", "ist", "war", "ob", "dass", "weil", "wenn", "wo"])
_MONTHS = any_of(_TABLES.locale.months)


class German(European):
    """German."""

    tables, locale, glue = _TABLES, _TABLES.locale, ""

    def counted(self, said: str, after: str) -> str:
        """1 is "eine" or "ein" before a noun."""
        return said if said != "eins" or not after[:1].isupper() else "eine" if self.is_feminine(after) else "ein"

    def is_feminine(self, after: str) -> bool:
        """Whether a noun of that gender follows; "-chen" and the like are neuter."""
        return super().is_feminine(after) and not _NEUTER.match(after)

    def decimals(self, digits: str) -> str:
        """Digit by digit."""
        return self.digits(digits)

    def ordinal(self, value: int, after: str = "") -> str:
        """21 is "einundzwanzigste", as behind an article."""
        return f"{super().ordinal(value)}e"

    def inflected(self, value: int, before: str, after: str = "") -> str:
        """The ordinal as the word before it and the noun behind it demand."""
        stem = super().ordinal(value)
        if before in _WEAK_EN:
            return f"{stem}en"
        weak = before in _WEAK_E or self.is_feminine(after)
        return f"{stem}{'e' if weak else 'es' if _NEUTER.match(after) else 'er'}"

    def year(self, value: int) -> str:
        """1999 is "neunzehnhundertneunundneunzig"."""
        if not 1100 <= value < 2000:
            return self.numeral(value)
        return f"{self.numeral(value // 100)}hundert{self.numeral(value % 100) if value % 100 else ''}"

    def day(self, day: int) -> str:
        """ "fünfter März": with no article before it."""
        return self.inflected(day, "")

    def time(self, hour: int, minute: int, second: int | None = None, half: str = "") -> str:
        """14:30 is "vierzehn Uhr dreißig", 1:00 "ein Uhr"."""
        said = super().time(hour, minute, second, half)
        return said.replace("eine Uhr", "ein Uhr", 1)

    def parts(self, part: str) -> str:
        """Drittel."""
        return part

    def fraction(self, whole: int, numerator: int, denominator: int) -> str:
        """1/2 is "ein halb", 2/3 "zwei Drittel", 1 1/2 "eineinhalb"."""
        if denominator == 2:
            return (
                f"{self.numeral(whole).removesuffix('s')}einhalb"
                if whole
                else f"{self.cardinal(numerator, 'Halb')} halb"
            )
        part = self.locale.words.get(f"part_{denominator}") or f"{super().ordinal(denominator).capitalize()}el"
        return self.join(self.numeral(whole) if whole else "", self.cardinal(numerator, "Viertel"), part)

    def reign(self, value: int, name: str = "") -> str:
        """Ludwig XIV. is "der Vierzehnte"."""
        queen = name in ("elisabeth", "katharina", "maria")
        return f"{'die' if queen else 'der'} {self.ordinal(value).capitalize()}"


def _date(voice: German, found: Match) -> str | None:
    before, year = word_before(found), found["y"]
    if not before and compiled(r"(?i:am|vom|bis|zum) \p{L}+\.?, \Z").search(
        found.string, max(0, found.start() - 40), found.start()
    ):
        before = "am"
    zeros = len(found["d"] + (found["m"] or "")) == 4 and not before
    if not (found["name"] or year or before in (*_WEAK_EN, *_WEAK_E) or zeros):
        return None
    month = voice.locale.months[found["name"].lower()] if found["name"] else int(found["m"])
    days = [voice.inflected(int(found["d"]), before or ("am" if found["d2"] else ""))]
    days += [found["to"].strip(" -–") or "bis", voice.inflected(int(found["d2"]), "am")] if found["d2"] else []
    full = int(year) + (0 if len(year) == 4 else 2000 if int(year) < 50 else 1900) if year else None
    return voice.join(*days, voice.locale.month_names[month - 1], voice.year(full) if full is not None else "")


def _ordinal(voice: German, found: Match) -> str | None:
    before, noun = word_before(found), found["noun"] or ""
    if both := compiled(r"(\p{L}+) \d+\. (?:und|oder|bis) \Z").search(
        found.string, max(0, found.start() - 40), found.start()
    ):
        before = both[1].lower()
    third = before in ("als", "wurde", "wird") and noun[:1].islower()
    if before not in (*_WEAK_EN, *_WEAK_E) and not third and not _ORDERED.match(noun):
        return None
    return voice.inflected(int(found["n"]), before, noun) + (" " if noun else ".")


def _clock(voice: German, found: Match) -> str:
    low = voice.time(int(found["a"]), int(found["am"] or 0))
    if not found["b"]:
        return low
    return voice.range(
        low if found["am"] else low.removesuffix(" Uhr"), voice.time(int(found["b"]), int(found["bm"] or 0))
    )


def _one(voice: German, found: Match) -> str | None:
    """1 before a noun: "seit einer Stunde", "auf einen Brief", "eine Million"."""
    before, noun = word_before(found), found["noun"]
    if found["sign"]:
        noun = voice.locale.currencies[found["sign"]][0][0] if found["sign"] in voice.locale.currencies else ""
    if power := voice.locale.magnitudes.get(found["noun"] or ""):
        return (
            f"{'einer' if before in _DATIVE else 'eine'} {voice.magnitude(Number(1, power=power))}"
            if power > 3
            else None
        )
    if not noun:
        return None
    end = f" {noun}" if found["sign"] else found[0][1:]
    if voice.is_feminine(noun):
        return f"eine{'r' if before in _DATIVE else ''}{end}"
    if before in _DATIVE:
        return f"einem{end}"
    start = found.string[: found.start()].rstrip()
    subject = (
        not start
        or start[-1] in ".!?:"
        or noun in ("Prozent", "Uhr", "Meter", "Komma")
        or before in _SUBJECT
        or _NEUTER.match(noun)
    )
    return f"{'ein' if subject else 'einen'}{end}"


German.rules = (
    Rule("date", rf"(?<![\d.,:/-])(?P<d>{DAY})\.(?:(?P<to>\s?(?:bis(?: zum)?|[-–])\s?)(?P<d2>{DAY})\.)?\s?"
         rf"(?:(?P<name>(?i:{_MONTHS}))(?!\p{{L}})\.?|(?P<m>0?[1-9]|1[0-2])\.)(?:\s?(?P<y>\d{{4}}|\d\d)"
         rf"(?![\d.,:]\d|\d))?",
         _date),
    Rule("time", rf"(?<![\d.,:])(?P<a>{HOUR})(?:[:.](?P<am>[0-5]\d))?(?:\s?[-–]\s?(?P<b>{HOUR})(?:[:.]"
         rf"(?P<bm>[0-5]\d))?)?"
         r"\s?(?:Uhr|h(?=[ .,])(?! ?\d+ ?[Mm]in))(?!\p{L})", _clock),
    Rule("ordinal", r"(?<![\d.,:/])(?P<n>\d{1,3})\.(?: (?=(?P<noun>\p{Lu}?\p{L}+))|(?=\s*\Z))", _ordinal),
    Rule("number", r"(?<![\d.,:/-])1 ?(?P<sign>[€$£])|(?<![\d.,:/-])1 (?P<noun>(?:Mio|Mrd)\.|\p{Lu}\p{Ll}+)", _one),
    Rule("money", r"(?<![\d.,])(?P<n>\d{1,3}(?:\.?\d{3})*),[-–—]+ ?€",
         lambda voice, found: voice.unit(Number(int(found["n"].replace(".", ""))), ("Euro",))),
    Rule("decade", r"(?<!\d)(?P<d>(?:1\d|20)?\d\d)er(?P<n>n?)(?!\p{L})",
         lambda voice, found: f"{voice.year(int(found['d']))}er{found['n']}"),
    Rule("year", r"(?<![\d.,:/$€-])1[1-9]\d\d(?![\d%€$°]| ?[-–—] ?\d{4}|[.,:]\d| ?"
         r"(?:[%€$°]|[kcm]?m\b|k?g\b|MB|GB|Euro|Meter|Liter|Kilo|Mio|Mrd))",
         lambda voice, found: voice.year(int(found[0]))),
    Rule("street", r"(?P<name>\p{L}+)str\.(?!\p{L})",
         lambda voice, found: f"{found['name']}straße" + full_stop(found, "."), "letter"),
    Rule("phone", r"(?<![\w+])0\d{2,4}[ /-]\d{3,8}(?:-\d{1,4})?(?![\d-])",
         lambda voice, found: ", ".join(map(voice.digits, compiled(r"\d+").findall(found[0])))),
    Rule("postcode", r"(?<=(?:[,\n] ?|D-))\d{5}(?= \p{Lu}\p{L})", lambda voice, found: voice.digits(found[0])),
    Rule("century", r"(?<=\d{1,2}\. ?)(?:Jh|Jhd|Jhdt)\.",
         lambda voice, found: "Jahrhundert" + full_stop(found, "."), "letter"),
    Rule("roman", rf"(?<=(?<!\p{{L}})(?:{_TABLES.pattern('kings')}) )(?P<r>{ROMAN})(?:\.(?= \p{{Ll}}|,))?",
         lambda voice, found: voice.reign(roman_value(found["r"]), word_before(found)), "letter"),
    *shared_rules(_TABLES),
)  # fmt: skip
VERBALIZER = German()
