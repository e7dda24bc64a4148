"""German: "einundzwanzig", "am dritten März", "vierzehn Uhr dreißig"."""

from __future__ import annotations

from vivavoce.service.text.natural.european import European, word_before
from vivavoce.service.text.natural.grammar import Match, compiled
from vivavoce.service.text.natural.values import Number

# The word that an ordinal agrees with stands before a weekday or another ordinal: "am Montag, 3. Mai".
_ARTICLE = compiled(r"(?:(?i:(am|vom|bis|zum)) \p{L}+\.?,|(\p{L}+) \d+\. (?:und|oder|bis)) \Z")


def _article(found: Match) -> str:
    article = _ARTICLE.search(found.string, max(0, found.start() - 40), found.start())
    return (article[1] or article[2]).lower() if article else word_before(found)


class German(European):
    """German."""

    def __init__(self, language: str) -> None:
        super().__init__(language)
        self._dative, self._weak_en, self._weak_e = map(self.locale.list, ("dative", "weak_en", "weak_e"))
        self._ordered = compiled(self.locale.pattern("ordered"))
        self._subject = compiled(rf"(?:.*[.!?:]|.*\b(?:{self.locale.pattern('subject')}))?\Z")

    def _inflected(self, value: int, before: str, after: str = "") -> str:
        """The ordinal as the word before it and the noun behind it demand."""
        gender = self.gender(after)
        weak_e = before in self._weak_e or gender == "f"
        end = "n" if before in self._weak_en else "" if weak_e else "s" if gender == "n" else "r"
        return self.ordinal(value) + end

    def year(self, value: int) -> str:
        """1999 is "neunzehnhundertneunundneunzig"."""
        if not 1100 <= value < 2000:
            return self.numeral(value)
        return f"{self.numeral(value // 100)}hundert{self.numeral(value % 100) if value % 100 else ''}"

    def day(self, day: int) -> str:
        """ "fünfter März": with no article before it."""
        return self._inflected(day, "")

    def fraction(self, whole: int, numerator: int, denominator: int) -> str:
        """1/2 is "ein halb", 2/3 "zwei Drittel", 1 1/2 "eineinhalb"."""
        if (numerator, denominator) == (1, 2):
            return f"{self.cardinal(whole, 'Halb')}einhalb" if whole else "ein halb"
        part = "halb" if denominator == 2 else f"{self.ordinal(denominator).capitalize()}l"
        said = f"{self.cardinal(numerator, 'Viertel')} {part}"
        return f"{self.numeral(whole)} {said}" if whole else said

    def reign(self, value: int, name: str = "") -> str:
        """Ludwig XIV. is "der Vierzehnte"."""
        queen = compiled(self.locale.pattern("queens")).fullmatch(name)
        return f"{'die' if queen else 'der'} {self.ordinal(value).capitalize()}"

    def _date(self, found: Match) -> str | None:
        before, year = _article(found), found["y"]
        zeros = len(found["d"] + (found["m"] or "")) == 4 and not before
        if not (found["name"] or year or before in (*self._weak_en, *self._weak_e) or zeros):
            return None
        month = self.locale.months[found["name"].lower()] if found["name"] else int(found["m"])
        days = [self._inflected(int(found["d"]), before or ("am" if found["d2"] else ""))]
        days += [found["to"].strip(" -–") or "bis", self._inflected(int(found["d2"]), "am")] if found["d2"] else []
        full = int(year) + (0 if len(year) == 4 else 2000 if int(year) < 50 else 1900) if year else None
        return self.join(*days, self.locale.month_names[month - 1], self.year(full) if full is not None else "")

    def _ranked(self, found: Match) -> str | None:
        """A place in an order, where the words around it show that it is one."""
        before, noun = _article(found), found["noun"] or ""
        third = before in ("als", "wurde", "wird") and noun[:1].islower()
        if before not in (*self._weak_en, *self._weak_e) and not third and not self._ordered.match(noun):
            return None
        return self._inflected(int(found["n"]), before, noun) + (" " if noun else ".")

    def _one(self, found: Match) -> str | None:
        """1 before a noun: "seit einer Stunde", "auf einen Brief", "eine Million"."""
        noun, sign, dative = found["noun"] or "", found["sign"], word_before(found) in self._dative
        if sign:
            noun = self.locale.currencies[sign][0][0]
        elif power := self.locale.magnitudes.get(noun):
            noun = self.magnitude(Number(1, power=power))
        gender = self.gender(noun)
        measure = noun in ("Prozent", "Uhr", "Meter", "Komma")
        subject = gender == "n" or measure or self._subject.match(found.string[: found.start()].rstrip())
        end = ("er" if dative else "e") if gender == "f" else "em" if dative else "" if subject else "en"
        return f"ein{end} {noun}"
