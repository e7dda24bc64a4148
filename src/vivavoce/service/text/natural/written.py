"""A language's own rules that its table writes, in the section `[rules]`, one a line: `name: kinds: pattern =>said`.

Kinds are those of `Rule.first`. In a pattern `%units%` stands for any of the locale's units, and so on. In what is said
`{n}` is the group of that name, said in the way that its letter has in `_WAYS`: `{n2}` is another number, `{foot}` so
many of a unit by its name, `{plus}` a sign's name, `{k}` is looked up in the section `[names]`. What stands behind a
tilde, `{n~ to }`, is said only where the group is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from vivavoce.service.text.natural.addresses import roman_value
from vivavoce.service.text.natural.grammar import Match, any_of, compiled, parse_number
from vivavoce.service.text.natural.tables import Tables
from vivavoce.service.text.natural.values import Forms, Number
from vivavoce.service.text.natural.verbalizer import Rule, Verbalizer

_ROW = compiled(r"(?P<name>[^:]+): (?P<kinds>[a-z ]+): (?P<pattern>.+) =>(?P<said>.*)")
_FIELD = compiled(r"\{(?P<group>(?P<way>[a-z]+)\d?)(?:~(?P<joined>[^}]*))?\}")
_RUN = compiled(r"\d+|\p{L}+")


def _one_by_one(voice: Verbalizer, written: str, phone: bool) -> str:
    """Digits by name, letters as they are; groups are set apart."""
    said = (
        voice.join(*(voice.digits(one, phone) if one.isdecimal() else one for one in _RUN.findall(group)))
        for group in compiled(r"[ -]").split(written)
    )
    return (", " if voice.locale.joint else "").join(said)


def _quantity(voice: Verbalizer, written: str) -> str:
    number, unit = compiled(r"([\d.,]+)[ -]?(.+)").fullmatch(written).groups()
    return voice.unit(parse_number(number, voice.locale), voice.locale.units[unit])


# How a group is said, by the letter of its name; `after` is what follows the rule.
_WAYS: Mapping[str, Callable[..., str]] = {
    "c": lambda voice, written, after: voice.cardinal(int(written)),
    "a": lambda voice, written, after: voice.cardinal(int(written), after),
    "n": lambda voice, written, after: voice.number(parse_number(written, voice.locale)),
    "o": lambda voice, written, after: voice.ordinal(int(written.replace(",", ""))),
    "y": lambda voice, written, after: voice.year(int(written)),
    "s": lambda voice, written, after: voice.join("oh" * (written[0] == "0"), voice.cardinal(int(written))),
    "p": lambda voice, written, after: voice.pairs(written),
    "d": lambda voice, written, after: _one_by_one(voice, written, False),
    "t": lambda voice, written, after: _one_by_one(voice, written, True),
    "q": lambda voice, written, after: _quantity(voice, written),
    "r": lambda voice, written, after: voice.cardinal(roman_value(written.upper())),
    "w": lambda voice, written, after: written,
}


def written_rules(tables: Tables) -> tuple[Rule, ...]:
    """The rules of a table, in its order."""
    locale, per = tables.locale, tables.pairs("per")
    months = {name.title(): locale.month_names[place - 1] for name, place in locale.months.items()}
    names = tables.pairs("names") | per | dict(locale.weekdays) | months
    named: dict[str, Forms] = {forms[0]: forms for forms in locale.units.values()}
    places = {
        "%months%": any_of(months),
        "%days%": any_of(locale.weekdays),
        "%units%": any_of(locale.units),
        "%per%": any_of(per),
    }

    def rule(name: str, kinds: str, pattern: str, template: str) -> Rule:
        for place, words in places.items():
            pattern = pattern.replace(place, words)

        def say(voice: Verbalizer, found: Match) -> str:
            after = found.string[found.end() : found.end() + 40].lstrip()

            def field(part: Match) -> str:
                written, way = found[part["group"]], part["way"]
                if not written:
                    return ""
                if way in ("plus", "minus"):
                    said = locale.signs["+"] if way == "plus" else locale.words["minus"]
                elif way == "k":
                    said = names.get(written) or names[written.rstrip(".")]
                elif forms := named.get(way, ()):
                    said = voice.unit(Number(int(written)), forms)
                else:
                    said = _WAYS[way](voice, written, after)
                return said + (part["joined"] or "")

            said = " ".join(_FIELD.sub(field, template).split())
            return said + " " * said.endswith(",")

        return Rule(name, pattern, say, kinds)

    rows = (_ROW.fullmatch(line) for line in tables.sections["rules"].splitlines())
    return tuple(rule(row["name"], row["kinds"], row["pattern"], row["said"]) for row in rows)
