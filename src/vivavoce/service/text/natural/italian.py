"""Italian: "ventuno studenti", "le quattordici e trenta", "ventunesimo secolo"."""

from __future__ import annotations

from vivavoce.service.text.natural.addresses import roman_value
from vivavoce.service.text.natural.european import HOUR, ROMAN, European, shared_rules
from vivavoce.service.text.natural.grammar import Match, any_of, compiled
from vivavoce.service.text.natural.tables import load_tables
from vivavoce.service.text.natural.verbalizer import Rule

_TABLES = load_tables("it")
_SHORT, _MONTHS = any_of(_TABLES.locale.abbreviations), any_of(_TABLES.locale.month_names)
_UNO = compiled(r"(?i:s[^aeiouàèéìòù]|z|gn|ps|x|y)")


class Italian(European):
    """Italian."""

    tables, locale, glue = _TABLES, _TABLES.locale, ""

    def counted(self, said: str, after: str) -> str:
        """1 is "un", "uno" or "una" by the noun that follows."""
        if said != "uno" or not self.is_noun(after):
            return said
        return "una" if self.is_feminine(after) else "uno" if _UNO.match(after) else "un"

    def ordinal(self, value: int, after: str = "") -> str:
        """3rd is "terzo", 21st "ventunesimo"; with an a before a feminine noun."""
        said = super().ordinal(value)
        return f"{said[:-1]}a" if self.is_feminine(after) else said

    def parts(self, part: str) -> str:
        """Quarti."""
        return f"{part[:-1]}i"

    def reign(self, value: int, name: str = "") -> str:
        """Ordinals: Luigi quattordicesimo, Elisabetta seconda."""
        return self.ordinal(value, "casa" if name in self.locale.words["queens"].split("|") else "")


def _roman(voice: Italian, found: Match) -> str:
    return ("secolo " if found["s"] else "") + voice.ordinal(
        roman_value(found["r"]), found.string[found.end() :].lstrip()
    )


def _phone(voice: Italian, found: Match) -> str:
    said = ", ".join(map(voice.digits, compiled(r"\d+").findall(found[0])))
    return f"più {said}" if found[0][0] == "+" else said


Italian.rules = (
    Rule("ordinal", rf"(?<![\d.,])(?P<n>\d{{1,3}})(?P<mark>[ºª°])(?! ?[CF]\b|\d| (?i:{_MONTHS}))",
         lambda voice, found: voice.ordinal(int(found["n"]), "casa" if found["mark"] == "ª" else "")),
    Rule("time", rf"(?<=(?i:ore|alle|dalle) )(?P<h>{HOUR})[.:](?P<m>[0-5]\d)(?![\d.,:]\d|\d)",
         lambda voice, found: voice.time(int(found["h"]), int(found["m"]))),
    Rule("roman", rf"(?P<s>(?<!\p{{L}})sec\. )?(?P<r>{ROMAN})(?:(?<=(?:[Ss]ecol[oi]|[Cc]anto|sec\.) "
         rf"(?:[IVX]+ e )?(?P=r))"
         r"|(?=[°º]? (?:[Ss]ecol[oi]|[Cc]anto|[Gg]uerra|[Rr]epubblica|[Cc]oncilio|[Ee]dizione)\b))", _roman, "letter"),
    Rule("phone", r"(?<![\w+])(?:\+39 ?)?(?:0\d{1,3}|3\d{2})[ ./-]?\d{3,4}[ .-]?\d{3,4}(?! ?\d)", _phone, "digit sign"),
    Rule("elision", rf"(?P<elided>\p{{L}}{{1,5}}['’])(?P<short>{_SHORT})(?!\p{{L}})",
         lambda voice, found: found["elided"] + voice.locale.abbreviations[found["short"]], "letter"),
    Rule("decade", r"(?<=(?i:anni) )['’](?=\d0)", lambda voice, found: "", "sign"),
    *shared_rules(_TABLES),
)  # fmt: skip
VERBALIZER = Italian()
