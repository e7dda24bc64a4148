"""Spanish: "veintiún alumnos", "doscientas sillas", "las catorce treinta"."""

from __future__ import annotations

from vivavoce.service.text.natural.addresses import roman_value
from vivavoce.service.text.natural.european import HOUR, ROMAN, European, shared_rules
from vivavoce.service.text.natural.grammar import Match, compiled
from vivavoce.service.text.natural.tables import load_tables
from vivavoce.service.text.natural.verbalizer import Rule

_TABLES = load_tables("es")
_PLURAL = compiled(r"\p{L}+s\b|mil")
_HUNDREDS = compiled(r"(cient|quinient)os")


class Spanish(European):
    """Spanish, with the euros and phone numbers of Spain."""

    tables, locale, step = _TABLES, _TABLES.locale, 6

    def counted(self, said: str, after: str) -> str:
        """21 is "veintiún" before a noun, "veintiuna" before a feminine one; 200 "doscientas"."""
        if said != "uno" and not _PLURAL.match(after):
            return said
        if self.is_feminine(after):
            said = _HUNDREDS.sub(r"\1as", said)
            return f"{said[:-1]}a" if said.endswith("uno") else said
        if not self.is_noun(after) or not said.endswith("uno"):
            return said
        return f"{said[:-3]}ún" if said.endswith("veintiuno") else said[:-1]

    def ordinal(self, value: int, after: str = "") -> str:
        """3rd is "tercero", "tercer" before a noun, "tercera" before a feminine one."""
        said = super().ordinal(value)
        if self.is_feminine(after) and said.endswith("o"):
            return f"{said[:-1]}a"
        return said[:-1] if self.is_noun(after) and said in ("primero", "tercero") else said

    def reign(self, value: int, name: str = "") -> str:
        """Ordinals up to ten, then cardinals: Felipe sexto, Isabel segunda, Luis catorce."""
        return (
            self.ordinal(value, "casa" if name in self.locale.words["queens"].split("|") else "")
            if value < 11
            else self.numeral(value)
        )


def _ordinal(voice: Spanish, found: Match) -> str:
    feminine = found["mark"] in ("ª", "ra", "da", "ta", "ma", "a")
    return voice.ordinal(int(found["n"]), "casa" if feminine else found.string[found.end() :].lstrip())


def _clock(voice: Spanish, found: Match) -> str:
    low = voice.time(int(found["a"]), int(found["am"] or 0))
    if found["b"]:
        low = voice.range(low, voice.time(int(found["b"]), int(found["bm"] or 0)))
    return low if found["am"] and not found["b"] else f"{low} {'hora' if low == 'una' else 'horas'}"


Spanish.rules = (
    Rule("temperature", r"(?<=\d ?)º ?C(?!\p{L})", lambda voice, found: "grados", "sign letter"),
    Rule("ordinal", r"(?<![\d.,])(?P<n>\d{1,3})(?:\.(?=[ºªo°a]|er))?(?P<mark>[ºª](?!C)|er\b|"
         r"(?:ra|do|da|to|ta|mo|ma|a(?= \p{L}+a\b))\b)",
         _ordinal),
    Rule("phone", r"(?<![\w+])(?:\+\d{1,3} )?(?:[6-9]\d{2}(?: \d{3}){2}|[6-9]\d{1,2} \d{3}"
         r"(?: \d{2}){2}|[6-9]\d{2}(?: \d{2}){3})(?! ?\d)",
         lambda voice, found: voice.spelled(found[0]), "digit sign"),
    Rule("time", rf"(?<![\d.,:])(?P<a>{HOUR})(?:[:.](?P<am>[0-5]\d))?(?:\s?(?:[-–]|a)\s?(?P<b>{HOUR})(?:[:.]"
         rf"(?P<bm>[0-5]\d))?)?"
         r"\s?hs?\.?(?![\p{L}/])", _clock),
    Rule("century", rf"(?<!\p{{L}})(?:(?P<s>s\.) |(?<=[Ss]iglos? (?:[IVX]+ (?:y|al?) )?))(?P<r>{ROMAN})",
         lambda voice, found: f"{'siglo ' if found['s'] else ''}{voice.reign(roman_value(found['r']))}", "letter"),
    Rule("roman", rf"(?P<r>{ROMAN})(?= (?:Guerra|República|Congreso|Concilio|Edición|Internacional))",
         lambda voice, found: voice.ordinal(roman_value(found["r"]), found.string[found.end() :].lstrip()), "letter"),
    Rule("street", r"C/(?= ?\p{Lu})", lambda voice, found: "calle", "letter"),
    *shared_rules(_TABLES),
)  # fmt: skip
VERBALIZER = Spanish()
