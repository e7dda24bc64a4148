"""French: "quatorze heures trente", "le vingt et unième siècle", "Louis quatorze"."""

from __future__ import annotations

from vivavoce.service.text.natural.addresses import roman_value
from vivavoce.service.text.natural.european import HOUR, European, full_stop, shared_rules
from vivavoce.service.text.natural.grammar import Match, any_of, compiled
from vivavoce.service.text.natural.tables import load_tables
from vivavoce.service.text.natural.values import Forms, Number
from vivavoce.service.text.natural.verbalizer import Rule

_TABLES = load_tables("fr")
_MONTHS = any_of(_TABLES.locale.month_names)


class French(European):
    """French, with the numbers of France."""

    tables, locale = _TABLES, _TABLES.locale

    def form(self, number: Number, forms: Forms) -> str:
        """What is below two is singular: 1,5 million."""
        return forms[0] if number.whole < 2 and not number.power else forms[-1]

    def counted(self, said: str, after: str) -> str:
        """21 is "vingt et une" before a feminine noun."""
        plural = said == "un" or compiled(r"\p{L}+s\b").match(after)
        return f"{said}e" if plural and said.endswith("un") and self.is_feminine(after) else said

    def ordinal(self, value: int, after: str = "") -> str:
        """1st is "premier" or "première", 21st "vingt et unième"."""
        return "première" if value == 1 and self.is_feminine(after) else super().ordinal(value)

    def reign(self, value: int, name: str = "") -> str:
        """François premier, Louis quatorze."""
        return self.ordinal(value) if value == 1 else self.numeral(value)


def _ordinal(voice: French, found: Match) -> str:
    value = roman_value(found["r"]) if found["r"] else int(found["n"])
    return "première" if value == 1 and found["mark"] in ("re", "ère", "ʳᵉ") else voice.ordinal(value)


def _date(voice: French, found: Match) -> str:
    return voice.date(int(found["y"]) if found["y"] else None, voice.locale.months[found["month"].lower()], 1)


def _clock(voice: French, found: Match) -> str:
    low = voice.time(int(found["h"]), int(found["m"] or 0))
    return voice.range(low, voice.time(int(found["h2"]), int(found["m2"] or 0))) if found["h2"] else low


def _length(voice: French, found: Match) -> str:
    return voice.join(voice.unit(Number(int(found["m"])), ("mètre", "mètres")), voice.numeral(int(found["c"])))


French.rules = (
    Rule("ordinal", r"(?<![\d.,])(?P<n>\d{1,4})(?P<r>)(?P<mark>re|ère|ʳᵉ|er|ᵉʳ|i?ème|eme|nde?|de|e|ᵉ)s?(?![\p{L}\d])"
         rf"(?! (?:{_MONTHS}))", _ordinal),
    Rule("ordinal", r"(?<![\p{L}\p{N}])(?P<r>(?=[IVX])X{0,3}(?:IX|IV|V?I{0,3}))"
         r"(?P<mark>i?ème|eme|ère|re|er|e|ᵉ)(?![\p{L}\p{N}])",
         _ordinal, "letter"),
    Rule("century", r"(?<=[IVX](?:e|ᵉ) )s\.", lambda voice, found: "siècle" + full_stop(found, "."), "letter"),
    Rule("date", rf"(?<!\d)1er (?P<month>(?i:{_MONTHS}))(?: (?P<y>\d{{4}})(?!\d))?", _date),
    Rule("phone", r"(?<![\w+])(?:\+\d{1,3}[ .]?(?:\(0\) ?)?[1-9]|0[1-9])(?:[ .-]?\d{2}){4}(?!\d)",
         lambda voice, found: voice.spelled(found[0]), "digit sign"),
    Rule("time", rf"(?<![\d.,:])(?P<h>{HOUR})\s?[hH](?:\s?(?P<m>[0-5]\d)(?: ?min\b)?)?"
         rf"(?:\s?[-–]\s?(?P<h2>{HOUR})\s?h"
         rf"(?P<m2>[0-5]\d)?)?(?![\p{{L}}\d/])",
         _clock),
    Rule("length", r"(?<![\d.,])(?P<m>\d{1,2})m(?P<c>\d\d)(?![\p{L}\d])", _length),
    Rule("money", r"d['’]€", lambda voice, found: "d'euros", "letter"),
    Rule("decade", r"(?<=années )['’](?=\d0)", lambda voice, found: "", "sign"),
    *shared_rules(_TABLES),
)  # fmt: skip
VERBALIZER = French()
