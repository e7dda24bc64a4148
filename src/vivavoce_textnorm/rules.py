"""Rules that only one language has, such as English decades: a pattern, the words for it, and examples.

The section `[rules]` of a language's table has one rule a line: `name: first: pattern =>said ## written ## spoken`. The
text `written` is an example, and `spoken` is its reading. In a table that several languages share, the example begins
with the code of its language. The rules are tried in their order, before the readers that all languages share.

In a pattern, `%units%` stands for any of the locale's units; `_meaning` has all such names. In `said`, `{number}` is
the text of the group `number`, put in words by its function in `_WAYS`. `{number2}` is a second group of that kind,
`{count:foot/feet}` is a number with its unit, and `{name}` is looked up in `_names`. Text beside a tilde, as in
`{number~ to }` or `{ to ~ordinal}`, is said only if the group matched. `_` at the start or the end stands for a space.
`=>@decade` calls the verbalizer's `_decade` with the match; if it returns None, the rule does not apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vivavoce_textnorm.grammar import START, Match, any_of, compiled, parse_number, roman_value
from vivavoce_textnorm.tables import Locale
from vivavoce_textnorm.types import Forms

_ROW = compiled(
    r"(?P<name>[^:]+): (?P<first>[a-z ]+): (?P<pattern>.+) =>(?P<said>.*?)"
    r"(?: ## (?:(?P<language>[a-z]{2}): )?(?P<written>.+?) ##(?: (?P<spoken>.+))?)?"
)
_FIELD = compiled(
    r"\{(?:(?P<lead>[^{}]*)~)?(?P<group>(?P<way>[a-z]+)\d?)(?::(?P<noun>[^}~]+))?(?:~(?P<joined>[^}]*))?\}"
)
_BLANK = compiled(r"\\.|(?P<set>\[(?:[^\[\]\\]|\\.|(?&set))*\])|(?P<sign>[ #])")
_PLACE = compiled(r"%(\w+|[×+])%")
_PATTERNS = {
    "START": START,
    "NUMERAL": r"(?=[IVX])X{0,3}(?:IX|IV|V?I{0,3})",
    "ROMAN": r"(?=[IVX])X{0,3}(?:IX|IV|V?I{0,3})(?![\p{Latin}\p{N}])",
    "DAY": r"(?:0?[1-9]|[12]\d|3[01])",
    "MONTH": r"(?:1[0-2]|0?[1-9])",
    "HOUR": r"(?:[01]?\d|2[0-4])",
}


Say = Callable[[Any, Match], str | None]
"""The function of a rule: gets the verbalizer and the match; returns the words, or None if the rule does not apply."""


@dataclass(frozen=True)
class Rule:
    """How a language reads one kind of item, such as decades.

    first: the kinds of character with which the item may begin ("digit", "letter", "sign"). At a word of letters alone,
    rules are tried only if `grammar.heads` has the word. pattern: for the package `regex` (VERSION1, VERBOSE), matched
    where the item begins; it may look behind. said: see the module's description. examples: text that needs this rule →
    its reading; empty if the table's example is in another language.
    """

    name: str
    first: str
    pattern: str
    said: str
    examples: Mapping[str, str]


@dataclass(frozen=True)
class BoundRule:
    name: str
    first: str
    pattern: str
    say: Say


def following(found: Match) -> str:
    return str(found.string[found.end() : found.end() + 40].lstrip())


def full_stop(found: Match) -> str:
    """Return a full stop if an abbreviation ends the text, because its full stop ends the sentence, too."""
    return "." if found[0].endswith(".") and not found.string[found.end() :].strip() else ""


def _forms(locale: Locale, noun: str) -> Forms:
    return locale.units.get(noun) or tuple(noun.split("/"))


def _quantity(voice: Any, written: str) -> str:
    number, unit = compiled(r"([\d.,]+)[ -]?(.+)").fullmatch(written).groups()
    return str(voice.unit(parse_number(number, voice.locale), voice.locale.units[unit]))


# Name of a group, without its number → the function that says the group's text; `noun`: text after the field's colon.
_WAYS: Mapping[str, Callable[[Any, str, str], str]] = {
    "cardinal": lambda voice, written, noun: voice.cardinal(int(written), noun),
    "number": lambda voice, written, noun: voice.number(parse_number(written, voice.locale)),
    "count": lambda voice, written, noun: voice.unit(parse_number(written, voice.locale), _forms(voice.locale, noun)),
    "quantity": lambda voice, written, noun: _quantity(voice, written),
    "ordinal": lambda voice, written, noun: voice.ordinal(int(written.replace(",", ""))),
    "year": lambda voice, written, noun: voice.year(int(written)),
    "short": lambda voice, written, noun: voice.join("oh" * (written[0] == "0"), voice.cardinal(int(written))),
    "pairs": lambda voice, written, noun: voice.pairs(written),
    "digits": lambda voice, written, noun: voice.one_by_one(written),
    "phone": lambda voice, written, noun: voice.phone(written),
    "version": lambda voice, written, noun: voice.version(written),
    "secret": lambda voice, written, noun: voice.secret(written),
    "roman": lambda voice, written, noun: voice.cardinal(roman_value(written.upper())),
    "word": lambda voice, written, noun: written,
}


def _names(locale: Locale) -> dict[str, str]:
    """Return all names for `{name}`: abbreviations, months, days, currencies, signs, and rows of `[names]`."""
    names = {**locale.abbreviations, **locale.signs, **dict.fromkeys("-−–", locale.words["minus"])}
    names |= {sign: main[-1] for sign, (main, _) in locale.currencies.items()}
    names |= {one: locale.month_names[at - 1] for name, at in locale.months.items() for one in (name, name.title())}
    return names | locale.pairs("numbered") | locale.pairs("names") | locale.pairs("per") | dict(locale.weekdays)


def _meaning(locale: Locale, place: str) -> str:
    """Return the pattern for `%place%`: from `_PATTERNS`, or for any of the locale's names, or from the table."""
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


def table_rules(locale: Locale) -> tuple[Rule, ...]:
    def rule(row: Match) -> Rule:
        is_own = row["language"] in (None, locale.language)
        examples = {row["written"]: row["spoken"] or ""} if row["written"] and is_own else {}
        return Rule(row["name"], row["first"], _verbose(row["pattern"]), row["said"], examples)

    return tuple(rule(_ROW.fullmatch(line)) for line in locale.sections.get("rules", "").splitlines())


def bind(locale: Locale) -> tuple[BoundRule, ...]:
    names = _names(locale)

    def filled(written: str, instead: Callable[[str], str] = str) -> str:
        return str(_PLACE.sub(lambda found: instead(_meaning(locale, found[1])), written))

    def say(said: str) -> Say:
        return _method(said[1:]) if said[:1] == "@" else _template(filled(said), names)

    return tuple(
        BoundRule(rule.name, rule.first, f"(?x){filled(rule.pattern, _verbose)}", say(rule.said))
        for rule in table_rules(locale)
    )


def _verbose(pattern: str) -> str:
    """Escape the blanks and # signs of a pattern, so that they count in verbose mode, too."""
    return str(_BLANK.sub(lambda found: f"\\{found[0]}" if found["sign"] else found[0], pattern))


def _method(name: str) -> Say:
    def call(voice: Any, found: Match) -> str | None:
        said: str | None = getattr(voice, f"_{name}")(found)
        return said

    return call


def _template(template: str, names: Mapping[str, str]) -> Say:
    def say(voice: Any, found: Match) -> str:
        def field_said(part: Match) -> str:
            written, way, noun = found[part["group"]], part["way"], part["noun"] or ""
            if not written:
                return ""
            if way == "name":
                said = names.get(written) or names.get(written.lower()) or names.get(written.rstrip("."), written)
            elif way == "agreeing":
                said = voice.cardinal(int(written), following(found))
            else:
                said = _WAYS[way](voice, written, noun)
            return f"{part['lead'] or ''}{said}{part['joined'] or ''}"

        said = " ".join(_FIELD.sub(field_said, template).split()).replace("_", " ")
        return str(voice.join(said + full_stop(found)))

    return say
