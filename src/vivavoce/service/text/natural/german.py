"""German: "einundzwanzig", "am dritten März", "vierzehn Uhr dreißig"."""

from __future__ import annotations

from vivavoce.service.text.natural.european import DAY, European, word_before
from vivavoce.service.text.natural.grammar import Match, any_of, compiled
from vivavoce.service.text.natural.tables import load_tables
from vivavoce.service.text.natural.values import Number
from vivavoce.service.text.natural.verbalizer import Rule

_TABLES = load_tables("de")
_DATIVE, _WEAK_EN, _WEAK_E = map(_TABLES.words, ("dative", "weak_en", "weak_e"))
_ORDERED, _SUBJECT = (
    compiled(_TABLES.pattern("ordered")),
    compiled(rf"(?:.*[.!?:]|.*\b(?:{_TABLES.pattern('subject')}))?\Z"),
)
# The word that an ordinal agrees with stands before a weekday or another ordinal: "am Montag, 3. Mai".
_ARTICLE = compiled(r"(?:(?i:(am|vom|bis|zum)) \p{L}+\.?,|(\p{L}+) \d+\. (?:und|oder|bis)) \Z")


class German(European):
    """German."""

    def inflected(self, value: int, before: str, after: str = "") -> str:
        """The ordinal as the word before it and the noun behind it demand."""
        gender = self.gender(after)
        end = "n" if before in _WEAK_EN else "" if before in _WEAK_E or gender == "f" else "s" if gender == "n" else "r"
        return self.ordinal(value) + end

    def year(self, value: int) -> str:
        """1999 is "neunzehnhundertneunundneunzig"."""
        if not 1100 <= value < 2000:
            return self.numeral(value)
        return f"{self.numeral(value // 100)}hundert{self.numeral(value % 100) if value % 100 else ''}"

    def day(self, day: int) -> str:
        """ "fünfter März": with no article before it."""
        return self.inflected(day, "")

    def part(self, denominator: int) -> str:
        """Drittel."""
        return "halb" if denominator == 2 else f"{self.ordinal(denominator).capitalize()}l"

    def fraction(self, whole: int, numerator: int, denominator: int) -> str:
        """1/2 is "ein halb", 2/3 "zwei Drittel", 1 1/2 "eineinhalb"."""
        if (numerator, denominator) == (1, 2):
            return f"{self.cardinal(whole, 'Halb')}einhalb" if whole else "ein halb"
        said = f"{self.cardinal(numerator, 'Viertel')} {self.part(denominator)}"
        return f"{self.numeral(whole)} {said}" if whole else said

    def reign(self, value: int, name: str = "") -> str:
        """Ludwig XIV. is "der Vierzehnte"."""
        queen = name in ("elisabeth", "katharina", "maria")
        return f"{'die' if queen else 'der'} {self.ordinal(value).capitalize()}"


def _article(found: Match) -> str:
    article = _ARTICLE.search(found.string, max(0, found.start() - 40), found.start())
    return (article[1] or article[2]).lower() if article else word_before(found)


def _date(voice: German, found: Match) -> str | None:
    before, year = _article(found), found["y"]
    zeros = len(found["d"] + (found["m"] or "")) == 4 and not before
    if not (found["name"] or year or before in (*_WEAK_EN, *_WEAK_E) or zeros):
        return None
    month = voice.locale.months[found["name"].lower()] if found["name"] else int(found["m"])
    days = [voice.inflected(int(found["d"]), before or ("am" if found["d2"] else ""))]
    days += [found["to"].strip(" -–") or "bis", voice.inflected(int(found["d2"]), "am")] if found["d2"] else []
    full = int(year) + (0 if len(year) == 4 else 2000 if int(year) < 50 else 1900) if year else None
    return voice.join(*days, voice.locale.month_names[month - 1], voice.year(full) if full is not None else "")


def _ordinal(voice: German, found: Match) -> str | None:
    before, noun = _article(found), found["noun"] or ""
    third = before in ("als", "wurde", "wird") and noun[:1].islower()
    if before not in (*_WEAK_EN, *_WEAK_E) and not third and not _ORDERED.match(noun):
        return None
    return voice.inflected(int(found["n"]), before, noun) + (" " if noun else ".")


def _one(voice: German, found: Match) -> str | None:
    """1 before a noun: "seit einer Stunde", "auf einen Brief", "eine Million"."""
    noun, sign, dative = found["noun"] or "", found["sign"], word_before(found) in _DATIVE
    if sign:
        noun = voice.locale.currencies[sign][0][0]
    elif power := voice.locale.magnitudes.get(noun):
        noun = voice.magnitude(Number(1, power=power))
    gender = voice.gender(noun)
    subject = gender == "n" or _SUBJECT.match(found.string[: found.start()].rstrip()) or noun in _UNITS
    end = ("er" if dative else "e") if gender == "f" else "em" if dative else "" if subject else "en"
    return f"ein{end} {noun}"


_UNITS = ("Prozent", "Uhr", "Meter", "Komma")
German.rules = (
    Rule("date", rf"(?<![\d.,:/-])(?P<d>{DAY})\.(?:(?P<to>\s?(?:bis(?: zum)?|[-–])\s?)(?P<d2>{DAY})\.)?\s?"
         rf"(?:(?P<name>(?i:{any_of(_TABLES.locale.months)}))(?!\p{{L}})\.?|(?P<m>0?[1-9]|1[0-2])\.)(?:\s?(?P<y>\d{{4}}|\d\d)"
         rf"(?![\d.,:]\d|\d))?", _date),
    Rule("ordinal", r"(?<![\d.,:/])(?P<n>\d{1,3})\.(?: (?=(?P<noun>\p{Lu}?\p{L}+))|(?=\s*\Z))", _ordinal),
    Rule("number", r"(?<![\d.,:/-])1 ?(?P<sign>[€$£])|(?<![\d.,:/-])1 (?P<noun>(?:Mio|Mrd)\.|\p{Lu}\p{Ll}+)", _one),
    Rule("money", r"(?<![\d.,])(?P<n>\d{1,3}(?:\.?\d{3})*),[-–—]+ ?€",
         lambda voice, found: voice.unit(Number(int(found["n"].replace(".", ""))), ("Euro",))),
)  # fmt: skip
VERBALIZER = German("de")
