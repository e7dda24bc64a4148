"""A language's own rules, which its table writes in the section `[rules]`: `name: kinds: pattern =>said`.

In a pattern `%units%` stands for any of the locale's units, and so on: see `_meaning`. In what is said `{n}` is the
group of that name, said in the way that its letter has in `_WAYS`: `{n2}` is another number, `{u:foot/feet}` so many of
a unit, `{k}` is looked up in `_names`. What a tilde sets apart, `{n~ to }` or `{ to ~n}`, is said only where the group
is there; `_` is a blank at an end. `=>@decade` calls the verbalizer's `_decade` with the match; None: it is no decade.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vivavoce_textnorm.grammar import START, Match, any_of, compiled, parse_number, roman_value
from vivavoce_textnorm.tables import Locale
from vivavoce_textnorm.types import Forms

_ROW = compiled(r"(?P<name>[^:]+): (?P<kinds>[a-z ]+): (?P<pattern>.+) =>(?P<said>.*)")
_FIELD = compiled(
    r"\{(?:(?P<lead>[^{}]*)~)?(?P<group>(?P<way>[a-z])\d?)(?::(?P<noun>[^}~]+))?(?:~(?P<joined>[^}]*))?\}"
)
_PLACE = compiled(r"%(\w+|[×+])%")
_PATTERNS = {
    "START": START,
    "NUMERAL": r"(?=[IVX])X{0,3}(?:IX|IV|V?I{0,3})",
    "ROMAN": r"(?=[IVX])X{0,3}(?:IX|IV|V?I{0,3})(?![\p{Latin}\p{N}])",
    "DAY": r"(?:0?[1-9]|[12]\d|3[01])",
    "MONTH": r"(?:1[0-2]|0?[1-9])",
    "HOUR": r"(?:[01]?\d|2[0-4])",
}


@dataclass(frozen=True)
class Rule:
    """A class of written things that one language alone has, such as English decades; tried before all others.

    pattern: of the package `regex` (VERSION1), matched where a number, a word of letters or a sign begins; it may look
    behind that place. say: gets the verbalizer and the match, and returns what is said, or None: it is none of these.
    first: with which of "digit", "letter" and "sign" it begins; a word of letters alone is tried only if it is one of
    `Locale.words["heads"]`, an abbreviation or the like.
    """

    name: str
    pattern: str
    say: Callable[[Any, Any], str | None]
    first: str = "digit"


def following(found: Match) -> str:
    """What follows in the text."""
    return str(found.string[found.end() : found.end() + 40].lstrip())


def full_stop(found: Match) -> str:
    """The full stop of an abbreviation that ends the text, which is its sentence's too."""
    return "." if found[0].endswith(".") and not found.string[found.end() :].strip() else ""


def _forms(locale: Locale, noun: str) -> Forms:
    return locale.units.get(noun) or tuple(noun.split("/"))


def _quantity(voice: Any, written: str) -> str:
    number, unit = compiled(r"([\d.,]+)[ -]?(.+)").fullmatch(written).groups()
    return str(voice.unit(parse_number(number, voice.locale), voice.locale.units[unit]))


# How a group is said, by the letter of its name; noun: what stands behind a colon.
_WAYS: Mapping[str, Callable[[Any, str, str], str]] = {
    "c": lambda voice, written, noun: voice.cardinal(int(written), noun),
    "n": lambda voice, written, noun: voice.number(parse_number(written, voice.locale)),
    "u": lambda voice, written, noun: voice.unit(parse_number(written, voice.locale), _forms(voice.locale, noun)),
    "q": lambda voice, written, noun: _quantity(voice, written),
    "o": lambda voice, written, noun: voice.ordinal(int(written.replace(",", ""))),
    "y": lambda voice, written, noun: voice.year(int(written)),
    "s": lambda voice, written, noun: voice.join("oh" * (written[0] == "0"), voice.cardinal(int(written))),
    "p": lambda voice, written, noun: voice.pairs(written),
    "d": lambda voice, written, noun: voice.one_by_one(written),
    "t": lambda voice, written, noun: voice.phone(written),
    "v": lambda voice, written, noun: voice.version(written),
    "r": lambda voice, written, noun: voice.cardinal(roman_value(written.upper())),
    "w": lambda voice, written, noun: written,
}


def _names(locale: Locale) -> dict[str, str]:
    """What `{k}` may be: an abbreviation, a month, a day, a currency, a sign, and the rows of `[names]`."""
    names = {**locale.abbreviations, **locale.signs, **dict.fromkeys("-−–", locale.words["minus"])}
    names |= {sign: main[-1] for sign, (main, _) in locale.currencies.items()}
    names |= {one: locale.month_names[at - 1] for name, at in locale.months.items() for one in (name, name.title())}
    return names | locale.pairs("numbered") | locale.pairs("names") | locale.pairs("per") | dict(locale.weekdays)


def _meaning(locale: Locale, place: str) -> str:
    """What stands for `%place%`: one of `_PATTERNS`, any of the locale's names, a word or a pattern of the table."""
    lists = {
        "months": [*locale.months, *map(str.title, locale.months)],
        "days": locale.weekdays,
        "units": locale.units,
        "currencies": locale.currencies,
        "codes": [sign for sign in locale.currencies if sign.isupper()],
        "prices": [sign for sign in locale.currencies if not sign.isalnum()],
        "short": [*locale.abbreviations, *locale.pairs("numbered")],
        "numbered": locale.pairs("numbered"),
        "per": locale.pairs("per"),
        "nouns": locale.pairs("nouns"),
        "counted": [*locale.units, *locale.currencies, *locale.magnitudes],
        "measures": [*locale.units, *locale.magnitudes],
    }
    if place in lists and place not in locale.words:
        return any_of(lists[place])
    if place == "grouped":
        return r"\d{1,3}(?:\.\d{3})+(?!\d|\.\d)" if "." in locale.group else "(?!)"
    found = _PATTERNS.get(place) or locale.words.get(place) or locale.signs.get(place)
    return found or locale.sections[place].replace("\n", "")


def written_rules(locale: Locale) -> tuple[Rule, ...]:
    """The rules of a table, in its order."""
    names = _names(locale)

    def rule(name: str, kinds: str, pattern: str, template: str) -> Rule:
        def say(voice: Any, found: Match) -> str:
            def field(part: Match) -> str:
                written, way, noun = found[part["group"]], part["way"], part["noun"] or ""
                if not written:
                    return ""
                if way == "k":
                    said = names.get(written) or names.get(written.lower()) or names.get(written.rstrip("."), written)
                elif way == "a":
                    said = voice.cardinal(int(written), following(found))
                else:
                    said = _WAYS[way](voice, written, noun)
                return f"{part['lead'] or ''}{said}{part['joined'] or ''}"

            said = " ".join(_FIELD.sub(field, template).split()).replace("_", " ")
            return str(voice.join(said + full_stop(found)))

        def call(voice: Any, found: Match) -> str | None:
            said: str | None = getattr(voice, f"_{template[1:]}")(found)
            return said

        return Rule(name, pattern, call if template[:1] == "@" else say, kinds)

    def filled(written: str) -> str:
        return str(_PLACE.sub(lambda found: _meaning(locale, found[1]), written))

    rows = (_ROW.fullmatch(line) for line in locale.sections.get("rules", "").splitlines())
    return tuple(rule(row["name"], row["kinds"], filled(row["pattern"]), filled(row["said"])) for row in rows)
