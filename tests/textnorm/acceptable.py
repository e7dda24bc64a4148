"""Texts with the readings of them that a listener accepts: one line of a table is class, text, reading, reading, …

In a reading `{a|b|}` is a choice, which may hold others. Compared are the words: capitals, punctuation and doubled
blanks do not count, nor blanks at all in scripts without them. A sign that is no punctuation counts.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import regex

_PUNCTUATION = regex.compile(r"[\p{P}--[@#%&*/\\_§‰※〒]]+", regex.V1)
_TIGHT = frozenset({"zh", "yue", "ja", "ko"})


@dataclass(frozen=True)
class Case:
    """A text with all acceptable readings of it, as they are compared."""

    kind: str
    text: str
    readings: frozenset[str]


def words_of(text: str, language: str) -> str:
    """What of a text is compared."""
    words = _PUNCTUATION.sub(" ", unicodedata.normalize("NFC", text).casefold()).split()
    return ("" if language in _TIGHT else " ").join(words)


def expand(reading: str) -> list[str]:
    """All readings that the choices of one stand for."""
    options, _ = _options(reading, 0)
    return options


def _options(reading: str, at: int) -> tuple[list[str], int]:
    """What the options from here to the end of their choice expand to, and where that is."""
    done: list[str] = []
    begun = [""]
    while at < len(reading) and reading[at] != "}":
        if reading[at] == "{":
            inner, at = _options(reading, at + 1)
            begun = [one + other for one in begun for other in inner]
        elif reading[at] == "|":
            done, begun = done + begun, [""]
        else:
            begun = [one + reading[at] for one in begun]
        at += 1
    return done + begun, at


def load_cases(language: str) -> list[Case]:
    """The cases of a language."""
    lines = (Path(__file__).parent / f"{language}.tsv").read_text("utf-8").splitlines()
    fields = (line.split("\t") for line in lines if line and not line.startswith("# "))
    return [
        Case(kind, text, frozenset(words_of(one, language) for reading in readings for one in expand(reading)))
        for kind, text, *readings in fields
    ]


def failing(cases: list[Case], language: str, read: Callable[[str], str]) -> list[tuple[Case, str]]:
    """The cases whose reading is not acceptable, with it."""
    said = ((case, read(case.text)) for case in cases)
    return [(case, spoken) for case, spoken in said if words_of(spoken, language) not in case.readings]
