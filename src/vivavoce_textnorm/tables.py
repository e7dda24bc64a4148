"""Reads a language's tables, which say how the language writes and names things, from a file in the folder `data`.

A file has sections: `[name]`, then rows that semicolons separate. In a row, a space separates the written form from the
spoken form, and an underscore stands for a space. The unit `(kc)m` has `prefixes`: it stands for km and cm. In sections
with names in `_fixes`, a row is a pattern and its replacement. There and in `rules`, each line is a row, and a line
that begins with two blanks continues the line before. `base` in `format` names a file with further sections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files

from vivavoce_textnorm.grammar import Match, compiled
from vivavoce_textnorm.types import Forms

Fixes = tuple[tuple[Match, str], ...]
_PREFIXED = compiled(r"\((.+)\)(.+)")
_ADDED = {"format": "; ", "rules": "\n", "units": ";\n", "currencies": ";\n", "words": ";\n"}
"""Section that extends the section of the `base` file instead of replacing it → the text between the two parts."""


@dataclass(frozen=True)
class Locale:
    """How a language writes and names things: data for the rules, which are the same for all languages.

    decimal: the sign before decimals. group: characters between thousands (a blank stands for any blank). order: the
    order of day, month and year in digits, such as "mdy". joint: separator of spoken words, "" in scripts without
    spaces. digits: the names of 0 to 9. phone_digits: their names in phone numbers; empty if they are the usual names.

    months: names and abbreviations in lower case, with or without full stop → 1 to 12. magnitudes: word or letter
    behind a number → power of ten. units: symbol ("km/h", "°C") → forms. currencies: symbol or code ("$", "USD") →
    forms of the currency, and of its hundredth part (empty if it has none). abbreviations: with their full stop →
    words. signs: character (`@`, `/`, `≤`) → words. words: other words, by the keys that `Verbalizer` uses. idioms: an
    item with a reading of its own ("24/7") → this reading. sections: section of the file → its text.
    """

    language: str
    decimal: str
    group: str
    order: str
    joint: str
    digits: Forms
    phone_digits: Forms
    months: Mapping[str, int]
    month_names: Forms
    weekdays: Mapping[str, str]
    magnitudes: Mapping[str, int]
    units: Mapping[str, Forms]
    currencies: Mapping[str, tuple[Forms, Forms]]
    abbreviations: Mapping[str, str]
    signs: Mapping[str, str]
    words: Mapping[str, str]
    idioms: Mapping[str, str]
    sections: Mapping[str, str]

    def list(self, name: str) -> tuple[str, ...]:
        """Return the words of a section, in order; an empty tuple if the language does not have the section."""
        return tuple(word.replace("_", " ") for word in self.sections.get(name, "").split())

    def pattern(self, name: str) -> str:
        return self.sections.get(name, "(?!)").replace("\n", "")

    def fixes(self, name: str) -> Fixes:
        rows = (row.partition(" ")[::2] for row in self.sections.get(name, "").replace("; ", "\n").splitlines())
        return tuple((compiled(pattern.replace("_", " ")), said.replace("_", " ")) for pattern, said in rows)

    def pairs(self, name: str) -> dict[str, str]:
        """Return written form → spoken form. A space in the written form may be a no-break space, or missing."""
        return _pairs(self.sections.get(name, ""))


def _rows(table: str, cut: str = " ") -> list[tuple[str, str]]:
    rows = (" ".join(row.split()).partition(cut) for row in " ".join(table.split()).split("; "))
    return [(keys, value.rstrip(";")) for keys, _, value in rows if keys]


def _pairs(table: str) -> dict[str, str]:
    said: dict[str, str] = {}
    for written, value in _rows(table):
        blanks = (" ", "", "\u00a0", "\u202f") if "_" in written[1:] else ("_",)
        said |= {written.replace("_", blank): value for blank in blanks}
    return said


def _forms(names: str) -> Forms:
    return tuple(names.split("/")) if names else ()


def _upper(word: str) -> str:
    return word[:1].upper() + word[1:]


def _units(table: str, prefixes: Mapping[str, str]) -> Iterator[tuple[str, Forms]]:
    for keys, names in _rows(table, ": "):
        for key in keys.split():
            if composed := _PREFIXED.fullmatch(key):
                for sign in composed[1]:
                    yield sign + composed[2], tuple(prefixes[sign] + _lower(name) for name in _forms(names))
            else:
                yield key.replace("_", " "), _forms(names)


def _lower(word: str) -> str:
    return word[:1].lower() + word[1:]


def _read_sections(name: str) -> dict[str, str]:
    text = files(__package__).joinpath("data").joinpath(f"{name}.txt").read_text("utf-8").replace("\n  ", "")
    parts = compiled(r"(?m)^\[(\w+)\][\n ]").split(text)[1:]
    own = {name: body.strip("\n") for name, body in zip(parts[::2], parts[1::2], strict=True)}
    if not (base := dict(_rows(own.get("format", ""))).get("base")):
        return own
    shared = _read_sections(base)
    for name, between in _ADDED.items():
        both = (own, shared) if name == "rules" else (shared, own)  # the first rule wins, but the last word
        own[name] = between.join(part[name] for part in both if name in part)
    if "traditional" in own:
        characters = str.maketrans(*own["traditional"].split())
        shared |= {name: shared[name].translate(characters) for name in ("signs", "address_signs")}
    return shared | own


def load_locale(language: str) -> Locale:
    found = _read_sections(language)
    kind, names = dict(_rows(found["format"])), found.get("month_names", "").split()
    money = [(keys, *names.partition(", ")[::2]) for keys, names in _rows(found["currencies"], ": ")]
    address = _pairs(found["address_signs"]).items()
    short, days, words = _pairs(found.get("abbreviations", "")), _rows(found.get("weekdays", "")), _rows(found["words"])
    heads = "|".join([dict(words).get("heads", ""), *_pairs(found.get("numbered", ""))])
    return Locale(
        language=language,
        decimal=kind["decimal"],
        group=kind["group"].replace("_", " "),
        order=kind["order"],
        joint=" " if kind.get("spaces", "yes") == "yes" else "",
        digits=tuple((found.get("digits") or found["small"]).split()[:10]),
        phone_digits=tuple(found.get("phone_digits", "").split()),
        months={name.lower(): place for place, name in enumerate(names, 1)}
        | {f"{name}{stop}": int(place) for name, place in _rows(found.get("months", "")) for stop in ("", ".")},
        month_names=tuple(names),
        weekdays={written: day for short, day in days for one in (short, day) for written in (one, _upper(one))},
        magnitudes={word: int(power) for word, power in _rows(found["magnitudes"])},
        units=dict(_units(found["units"], dict(_rows(found.get("prefixes", ""))))),
        currencies={key: (_forms(main), _forms(minor)) for keys, main, minor in money for key in keys.split()},
        abbreviations={_upper(key): _upper(said) for key, said in short.items()} | short,
        signs=_pairs(found["signs"]) | {f"address {sign}": name for sign, name in address},
        idioms=dict(_rows(found["idioms"])),
        words=dict(words) | {"heads": heads},
        sections=found,
    )
