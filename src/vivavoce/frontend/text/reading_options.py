"""Options of reading a text: its language, the rules, and the treatment of emojis and code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from vivavoce.errors import InvalidRequest
from vivavoce_textnorm import Language, with_country

Normalization = Literal["official", "natural", "off"]
"""The rules that read a text: the official front end's, our own (natural), or none (off)."""

Emojis = Literal["silent", "named"]
"""Emojis by natural rules: silent, or named by their Unicode names, in English."""
Code = Literal["read", "silent"]

LANGUAGE_NAMES: Mapping[Language, str] = {
    **{"zh": "Chinese", "en": "English", "ja": "Japanese", "ko": "Korean", "de": "German"},
    **{"es": "Spanish", "fr": "French", "it": "Italian", "ru": "Russian"},
}
_LANGUAGES: Mapping[str, Language | None] = {
    **{written: code for code, name in LANGUAGE_NAMES.items() for written in (code, name.lower())},
    **{"auto": None, "mandarin": "zh", "cantonese": "zh", "yue": "zh", "cmn": "zh", "zho": "zh", "chi": "zh"},
    **{"eng": "en", "jpn": "ja", "kor": "ko", "deu": "de", "ger": "de", "spa": "es", "fra": "fr", "fre": "fr"},
    **{"ita": "it", "rus": "ru"},
}


def parse_language(name: str) -> str | None:
    """The language of a code (en, eng), a tag (en-US, zh_CN) or an English name; None for "auto".

    English of a country that writes the day first is `DAY_FIRST`; any other language is a code.
    """
    known = str(name).strip().lower()
    tag = known.replace("_", "-")
    for written in (known, tag.partition("-")[0]):
        if written in _LANGUAGES:
            found = _LANGUAGES[written]
            return found and with_country(found, tag)
    remedy = "choose one, or leave it out to have it told from the text"
    known = f"{', '.join(LANGUAGE_NAMES)}, yue (taken for zh), auto"
    raise InvalidRequest(f"language: {name!r} is not one of {known}; {remedy}")


def parse_reading(name: str) -> Normalization:
    reading: Normalization = one_of(get_args(Normalization), "reading", name)
    return reading


def one_of(names: tuple[Any, ...], field: str, name: str, remedy: str = "choose one") -> Any:
    if name not in names:
        raise InvalidRequest(f"{field}: {name!r} is not one of {', '.join(names)}; {remedy}")
    return name
