"""Verbalizer of European languages, which have genders, plurals and nouns such as "million"; tables have the words."""

from __future__ import annotations

from collections.abc import Iterator

from vivavoce_textnorm.grammar import Match, compiled, parse_number, roman_value
from vivavoce_textnorm.rules import following, full_stop
from vivavoce_textnorm.types import Forms, Number
from vivavoce_textnorm.verbalizer import Verbalizer

_LAST_WORD = compiled(r"(\p{L}+|\bок\.)[ \u00a0][-−–+]?\Z")
_PAIRS = compiled(r"(?<!\d)\d(?:\d\d)?(?=(?:\d\d)*(?!\d))|\d\d")
_FEMININE = "/f/"


def word_before(found: Match) -> str:
    """Return the word before the match, in lower case; "" if there is none, or a punctuation mark follows it."""
    word = _LAST_WORD.search(found.string, max(0, found.start() - 30), found.start())
    return word[1].lower() if word else ""


class European(Verbalizer):
    """Verbalizer of a European language; a number that is too large for its `powers` is said digit by digit."""

    def __init__(self, language: str) -> None:
        super().__init__(language)
        locale, words = self.locale, self.locale.words
        self._glue, self._step = words.get("glue", " ").strip("|"), int(words.get("step", 3))
        self._small, self._tens = locale.list("small"), ("", "", *locale.list("tens"))
        self._hundreds = ("", *locale.list("hundreds"))
        thousand, *large = (tuple(names.split("/")) for names in locale.list("powers"))
        self.powers: dict[int, Forms] = {3: thousand} | {6 + self._step * at: names for at, names in enumerate(large)}
        self._feminine, self._neuter = (compiled(locale.pattern(name)) for name in ("feminine", "neuter"))
        self._no_nouns, self._ordinals = (*locale.list("no_nouns"), *self.locale.months), locale.pairs("ordinals")

    def _numeral(self, value: int) -> str:
        if value >= 10 ** (max(self.powers) + self._step):
            return self.digits(str(value))
        return self._fixed(" ".join(self._groups(value)).rstrip(), "cardinal_fixes").rstrip()

    def _groups(self, value: int) -> Iterator[str]:
        for power in sorted(self.powers, reverse=True)[:-1]:
            if group := value // 10**power % 10**self._step:
                yield f"{' '.join(self._groups(group))} {self.form(Number(group), self.powers[power])}"
        thousands, rest = divmod(value % 10**6, 1000)
        said = [self._below(thousands), self.form(Number(thousands), self.powers[3])] if thousands else []
        yield self._glue.join([*said, self._below(rest)] if rest or not value else said)

    def _below(self, value: int) -> str:
        hundreds, rest = divmod(value, 100)
        tens, ones = self._tens[rest // 10], rest % 10
        if rest < len(self._small):
            low = self._small[rest] if rest or not hundreds else ""
        else:  # French has no word for 70
            ones += 10 * (tens == self._tens[rest // 10 - 1])
            low = self._fixed(f"{tens} {self._small[ones]}" if ones else tens, "tens_fixes")
        return self._glue.join(filter(None, (self._hundreds[hundreds], low)))

    def gender(self, after: str) -> str:
        """Return the gender of the noun at the start of `after`: "m", "f" or "n"; "" if no countable noun is there."""
        word = compiled(r"\p{L}{2,}").match(after)
        if not word or word[0] in self._no_nouns:
            return ""
        return "n" if self._neuter.match(after) else "f" if self._feminine.match(after) else "m"

    def ordinal(self, value: int, after: str = "") -> str:
        """Say an ordinal in the gender of the noun that follows."""
        return self.place(value, f"/{self.gender(after)}/{after}")

    def place(self, value: int, noun: str = "") -> str:
        """Say an ordinal; noun: the noun that it belongs to, as "/gender/word"."""
        said = self.numeral(value)
        said = self._ordinals.get(said) or self._fixed(said, "ordinal_fixes", 1)
        return self._fixed(f"{said}{noun}", "place_fixes").partition("/")[0]

    def magnitude(self, number: Number) -> str:
        forms = self.powers.get(number.power) or (super().magnitude(number),)
        return self.form(Number(number.whole, number.decimals), forms)

    def time(self, hour: int, minute: int, second: Number | None = None, half: str = "") -> str:
        """Say a time, with the language's word between hours and minutes."""
        words, units, one_word = self.locale.words, self.locale.units, "o_clock" in self.locale.words
        noun = self.form(Number(hour), tuple(words["o_clock"].split("/")) if one_word else units["h"])
        said = self.join(self.cardinal(hour, noun if one_word else f"{noun},"), noun if one_word else "")
        if minute:
            joint = words.get("time_and", "") or (words.get("time_and_few", "") if minute < 10 else "")
            after = "" if one_word or "bare_minutes" in words else self.form(Number(minute), units["min"])
            said = self.join(said, joint, self.cardinal(minute, after))
        late = "pm_late" if half == "pm" and 7 <= hour < 12 else half
        said = self.join(said, words.get(late, half.upper()))
        return self.join(said, f"{words['and']} {self.unit(second, units['s'])}" if second else "")

    def fraction(self, whole: int, numerator: int, denominator: int) -> str:
        """2/3 is "dos tercios"; the denominator is a name from the table, or else an ordinal."""
        words = self.locale.words
        part = words.get(f"part_{denominator}") or self.ordinal(denominator)
        many = part if numerator == 1 else self._fixed(part, "parts_fixes")
        said = f"{self.cardinal(numerator, 'parte' if part[-1] == 'a' else part)} {many}"
        if (numerator, denominator) == (1, 2) and (whole or "half_alone" in words):
            said = part
        return f"{self.numeral(whole)} {words['and']} {said}" if whole else said

    def reign(self, value: int, name: str = "") -> str:
        """Say a ruler's number as an ordinal up to `reign_to`, above it as a cardinal. name: text up to the number."""
        queen = compiled(self.locale.pattern("queens")).fullmatch(name.rpartition(" ")[2].lower())
        ordinal = value <= int(self.locale.words["reign_to"])
        return self.place(value, _FEMININE if queen else "") if ordinal else self.numeral(value)

    def phone(self, written: str) -> str:
        """Say each group of a phone number by digits or, in some languages, in pairs (123 45 for 12345)."""
        pairs = "phone_pairs" in self.locale.words
        parts = (_PAIRS if pairs else compiled(r"\d+")).findall(written)
        said = (
            self.numeral(int(one)) if pairs and len(one) == 2 and one[0] != "0" else self.digits(one) for one in parts
        )
        return self.join(self.locale.signs["+"] if written[0] == "+" else "", ", ".join(said))

    def _clock(self, found: Match) -> str:
        """Read a time or a range of hours: 14h30; 9-17 Uhr; de 9 a 17 h."""
        parts, words = found.groupdict(), self.locale.words
        said = self.time(int(parts["h"]), int(parts["m"] or 0))
        if parts.get("h2"):
            low = said.removesuffix(f" {words.get('o_clock', '').partition('/')[0]}") if "clock_once" in words else said
            said = self.range(low, self.time(int(parts["h2"]), int(parts["m2"] or 0)))
        if "hours_follow" in words and (parts.get("h2") or not parts["m"]):
            said = f"{said} {self.form(Number(int(parts.get('h2') or parts['h'])), self.locale.units['h'])}"
        return said + full_stop(found)

    def _place(self, found: Match) -> str:
        """Read an ordinal: 2.ª; XXe siècle. Groups: f: it is feminine; noun: gives the gender; s: "century"."""
        parts = found.groupdict()
        value = roman_value(parts.get("r") or parts["n"])
        after = following(found) if "noun" in parts else ""
        said = self.place(value, _FEMININE) if parts.get("f") else self.ordinal(value, after)
        return f"{self.locale.words['century']} {said}" if parts.get("s") else said + (parts.get("many") or "")

    def _reign(self, found: Match) -> str | None:
        said = self.reign(roman_value(found["r"]), found.string[max(0, found.start() - 40) : found.start()].rstrip())
        return f"{self.locale.words['century']} {said}" if found.groupdict().get("s") else said

    def _rate(self, found: Match) -> str:
        """Read a rate: 12 €/m²; 6,2 l/100 km."""
        locale, number, price = self.locale, parse_number(found["n"], self.locale), found["a"] in self.locale.currencies
        said = self.money(number, found["a"]) if price else self.unit(number, locale.units[found["a"]])
        forms, each = locale.units[found["b"]], locale.words.get("each", locale.words["per"])
        of = self.unit(Number(100), forms) if found["many"] else self._fixed(forms[0], "rate_fixes")
        return f"{said} {locale.words.get('price', each) if price else each} {of}"

    def _half(self, found: Match) -> str | None:
        """½ taza is "media taza", 1½ horas "una hora y media"."""
        words, whole, unit = self.locale.words, int(found["w"] or 0), self.locale.units.get(found["noun"])
        noun = self.form(Number(whole or 1), unit) if unit else found["noun"]
        if "part_2" not in words or not (gender := self.gender(noun)):
            return None
        half = self._fixed(f"{words['part_2']}/{gender}/", "place_fixes").partition("/")[0]
        if whole:
            return f"{self.cardinal(whole, noun)} {noun} {words['and']} {half}"
        return f"{self.cardinal(1, noun)} {words['part_2']} {noun}" if "half_counted" in words else f"{half} {noun}"

    def _price(self, found: Match) -> str:
        """Read a price in the American form or with cents after the sign: $1,200.50 MXN; 15€50."""
        whole, _, cents = found["n"].replace(",", "").partition(".")
        return self.money(Number(int(whole), cents or found["cents"] or ""), found["code"] or found["sign"])

    def _short_date(self, found: Match) -> str:
        return self.date(int(found["y"]) if found["y"] else None, int(found["m"]), int(found["d"] or 0))
