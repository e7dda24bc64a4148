"""Limits of a text, checked before any rule of a language is applied to it."""

from __future__ import annotations

from collections.abc import Sequence

import regex

from vivavoce.errors import InvalidText

MAX_TEXT_CHARS = 20_000
"""Maximum number of characters of one text: about half an hour of speech. Longer text needs several requests."""

_NAMED = 5
_SURROGATE = regex.compile("[\ud800-\udfff]")
_CONTROL = regex.compile(r"[\p{Cc}--\s]", regex.V1)


def check_characters(text: str) -> None:
    """Raise `InvalidText` for half of a surrogate pair, and for a control character other than white space."""
    check_surrogates(text)
    control = _CONTROL.search(text)
    if control:
        raise InvalidText(
            f"text: control character U+{ord(control[0]):04X} at position {control.start()}; remove it from the text"
        )


def check_length(text: str) -> None:
    if not isinstance(text, str):
        raise InvalidText(f"text: {type(text).__name__} is not a text; give a string")
    if len(text) > MAX_TEXT_CHARS:
        raise InvalidText(
            f"text: {len(text)} characters are more than the limit of {MAX_TEXT_CHARS}; split it into several requests"
        )


def check_surrogates(text: str) -> None:
    """Raise `InvalidText` for half of a surrogate pair, which cannot be written in UTF-8."""
    surrogate = _SURROGATE.search(text)
    if surrogate:
        raise InvalidText(
            f"text: U+{ord(surrogate[0]):04X} at position {surrogate.start()} is half of a surrogate pair, "
            "not a character; decode the text as UTF-8 or UTF-16 before sending it"
        )


def name_some(characters: Sequence[str]) -> str:
    """List the first five characters, quoted, and the number of the others."""
    named = ", ".join(map(repr, characters[:_NAMED]))
    return f"{named} and {len(characters) - _NAMED} more" if len(characters) > _NAMED else named


def excerpt(text: str, limit: int = 40) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "…")
