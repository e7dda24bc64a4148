"""Which language a sentence is in, of those in Latin script: told from one word or ending where there is no more."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import get_args

from vivavoce.frontend.text.official import Language, parse_language
from vivavoce.frontend.text.recognition import FREQUENT_WORDS, recognise
from vivavoce_textnorm.grammar import Match, compiled

_WORD = compiled(r"[\p{Latin}\p{M}]+")
_ACRONYM = compiled(r"\p{Lu}{2,}")
_LETTER, _ENDING, _BEFORE = 0.4, 0.35, 1.5  # how much these count beside a frequent word


@cache
def _marks() -> dict[str, tuple[set[str], set[str], Match]]:
    """Language → its frequent words, its letters, and a pattern of words that end as its words do."""
    text = files(__package__).joinpath("data").joinpath("telling.txt").read_text("utf-8")
    lines = text.replace("\n  ", " ").splitlines()
    marks: dict[str, tuple[set[str], set[str], Match]] = {}
    for name, ending, words in (line.split(" ", 2) for line in lines):
        frequent = FREQUENT_WORDS[parse_language(name)]
        letters = {word for word in frequent if len(word) == 1 and not word.isascii()}
        marks[name] = {*(frequent - letters), *words.split()}, letters, compiled(ending)
    return marks


def detect_language(text: str, before: str | None) -> str:
    """The language of a sentence; before: that of the sentence before it or of the request, which ties go to."""
    known = next((one for one in get_args(Language) if one == before), None)
    told = recognise(text, known)
    if told not in _marks():
        return told
    words = {word.lower() for word in _WORD.findall(text) if not _ACRONYM.fullmatch(word)}
    written = {letter for word in words if len(word) > 1 for letter in word}
    best, most = (before, 0.0) if before in _marks() else ("en", 0.5)
    for language, (frequent, letters, ending) in _marks().items():
        count = len(words & frequent) + _LETTER * len(written & letters) + _BEFORE * (language == before)
        count += _ENDING * sum(len(word) > 3 and bool(ending.fullmatch(word)) for word in words)
        if count > most:
            best, most = language, count
    return best or "en"
