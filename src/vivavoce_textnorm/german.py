"""Verbalizer of German: "einundzwanzig", "am dritten März", "vierzehn Uhr dreißig"."""

from __future__ import annotations

from vivavoce_textnorm.grammar import Match, compiled, roman_value
from vivavoce_textnorm.romance import European, word_before
from vivavoce_textnorm.types import Number

# The article that decides an ordinal's ending may stand before a weekday or another ordinal: "am Montag, 3. Mai".
_ARTICLE = compiled(r"(?:(?i:(am|vom|bis|zum)) \p{L}+\.?,|(\p{L}+) \d+\.(?:\d+\.| \p{Lu}\p{L}+)? (?:und|oder|bis)) \Z")
_OWN = compiled(r"(?:[mdsk]?ein|ihr|unser|euer)(e[nmrs]?)?")


class German(European):
    def __init__(self, language: str) -> None:
        super().__init__(language)
        self._weak_en, self._weak_e = map(self.locale.list, ("weak_en", "weak_e"))
        oblique = self.locale.pattern("oblique")
        self._dative, self._oblique = compiled(self.locale.pattern("dative")), compiled(rf"{oblique} der \Z")
        self._king = compiled(rf"{oblique} (?:\p{{Lu}}\p{{Ll}}+ )?\p{{Lu}}\p{{Ll}}+\Z|[^eu]s\Z")
        self._ordered, self._begins = compiled(self.locale.pattern("ordered")), compiled(self.locale.words["begins"])
        self._subject = compiled(rf"(?:.*[.!?:]|.*\b(?:{self.locale.pattern('subject')}))?\Z")

    def _inflected(self, value: int, before: str, after: str = "") -> str:
        """Say an ordinal, with the ending that the word before it and the noun after it require."""
        gender = self.gender(after)
        weak_e = before in self._weak_e or gender == "f"
        strong = "m" if before in ("seit", "nach") and gender != "f" else ""
        end = strong or "n" if strong or before in self._weak_en else "" if weak_e else "s" if gender == "n" else "r"
        return self.ordinal(value) + end

    def year(self, value: int) -> str:
        """1999 is "neunzehnhundertneunundneunzig"."""
        if not 1100 <= value < 2000:
            return self.numeral(value)
        return f"{self.numeral(value // 100)}hundert{self.numeral(value % 100) if value % 100 else ''}"

    def day(self, day: int) -> str:
        """Say the day of a date without an article before it, as in "fünfter März"."""
        return self._inflected(day, "")

    def fraction(self, whole: int, numerator: int, denominator: int) -> str:
        """1/2 is "ein halb", 2/3 "zwei Drittel", 1 1/2 "eineinhalb"."""
        if (numerator, denominator) == (1, 2):
            return f"{self.cardinal(whole, 'Halb')}einhalb" if whole else "ein halb"
        part = "halb" if denominator == 2 else f"{self.ordinal(denominator).capitalize()}l"
        said = f"{self.cardinal(numerator, 'Viertel')} {part}"
        return f"{self.numeral(whole)} {said}" if whole else said

    def reign(self, value: int, name: str = "") -> str:
        """Ludwig XIV. is "der Vierzehnte", Ludwigs XIV. "des Vierzehnten", unter Ludwig XIV. "dem Vierzehnten"."""
        if not name:  # the number of a chapter
            return self.numeral(value)
        king, end = name.rpartition(" ")[2].lower(), "n" if self._king.search(name) else ""
        his = ("des" if king[-1] == "s" and king[-2] not in "eu" else "dem") if end else "der"
        queen = compiled(rf"(?:{self.locale.pattern('queens')})s?").fullmatch(king)
        return f"{('der' if end else 'die') if queen else his} {self.ordinal(value).capitalize()}{end}"

    def _article(self, found: Match) -> str:
        """Return the word that decides an ordinal's ending: an article ("ein", "die"), or the word before it."""
        article = _ARTICLE.search(found.string, max(0, found.start() - 40), found.start())
        word = (article[1] or article[2]).lower() if article else word_before(found)
        if own := _OWN.fullmatch(word):
            return {None: "ein", "e": "die"}.get(own[1], "dem")
        feminine = self.gender(found.groupdict().get("noun") or "") == "f"
        return "dem" if word == "der" and (feminine or self._oblique.search(found.string, 0, found.start())) else word

    def _date(self, found: Match) -> str | None:
        before, year = self._article(found), found["y"]
        sure = found["name"] or year or found.string[found.end() : found.end() + 1] == ","
        zeros = len(found["d"] + (found["m"] or "")) == 4 and not before
        if not (sure or before in (*self._weak_en, *self._weak_e) or zeros):
            return None
        month = self.locale.months[found["name"].lower()] if found["name"] else int(found["m"])
        days = [self._inflected(int(found["d"]), before or ("am" if found["d2"] else ""))]
        days += [found["to"].strip(" -–/") or "bis", self._inflected(int(found["d2"]), "am")] if found["d2"] else []
        full = int(year) + (0 if len(year) == 4 else 2000 if int(year) < 50 else 1900) if year else None
        return self.join(*days, self.locale.month_names[month - 1], self.year(full) if full is not None else "")

    def _ranked(self, found: Match) -> str | None:
        """Read a number as an ordinal; None unless the words around the number show that it is an ordinal."""
        before, noun = self._article(found), found["noun"] or ""
        if before == "zu":  # the size of a group, as in "zu viert"
            return self.ordinal(roman_value(found["n"])).removesuffix("e") + (" " if noun else ".")
        third = before in ("als", "wurde", "wird") and not noun[:1].isupper()
        third = third or (before == "als" and noun != "" and not self._begins.match(noun))
        mark = not noun and word_before(found)[:4] == "eine"
        if mark or not (before in (*self._weak_en, *self._weak_e, "ein") or third or self._ordered.match(noun)):
            return None
        return self._inflected(roman_value(found["n"]), before, noun) + (" " if noun else ".")

    def _one(self, found: Match) -> str | None:
        """Say 1 in the gender and case of the noun after it: "seit einer Stunde", "auf einen Brief"."""
        noun, sign = self.locale.units.get(found["noun"], (found["noun"] or "",))[0], found["sign"]
        dative = self._dative.search(found.string, max(0, found.start() - 40), found.start())
        if sign:
            noun = self.locale.currencies[sign][0][0]
        elif power := self.locale.magnitudes.get(noun):
            noun = self.magnitude(Number(1, power=power))
        gender = self.gender(noun)
        measure = noun in ("Prozent", "Uhr", "Meter", "Komma")
        subject = gender == "n" or measure or self._subject.match(found.string[: found.start()].rstrip())
        end = ("er" if dative else "e") if gender == "f" else "em" if dative else "" if subject else "en"
        half = ("es" if gender == "n" else "er") if not end else "e" if end == "e" else "en"
        return self.join(f"ein{end}", f"halb{half}" if found["half"] else "", noun)
