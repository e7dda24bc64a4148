"""Which language's rules a text is given to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from vivavoce.errors import InvalidRequest
from vivavoce.service.text.languages.en import English, NumberWords
from vivavoce.service.text.languages.reader import load_reader
from vivavoce.service.text.languages.zh import Chinese
from vivavoce.service.text.rules import contains_chinese
from vivavoce.service.text.split import Language


@dataclass(frozen=True)
class SpokenForm:
    """Normalised text, and the language whose rules made it and are to split it."""

    text: str
    language: Language


def parse_language(name: str) -> Language:
    """The language of this name, "en" or "zh"; InvalidRequest for others."""
    for known in get_args(Language):
        if name == known:
            return known
    raise InvalidRequest(
        f"language: {name!r} is none of {', '.join(get_args(Language))}; choose one, or leave it out to have it told "
        "from the text"
    )


@dataclass(frozen=True)
class Languages:
    """The languages of the front end. One Chinese character makes a text Chinese; everything else is English."""

    chinese: Chinese
    english: English

    def spoken_form(self, text: str, language: Language | None = None) -> SpokenForm:
        """The text, which must hold more than white space, as it is spoken; language: whose rules read it, None: told
        from the text.
        """
        text = text.strip()
        is_chinese = contains_chinese(text) if language is None else language == "zh"
        if is_chinese:
            return SpokenForm(self.chinese.normalize(text), "zh")
        return SpokenForm(self.english.normalize(text), "en")


def load_languages(*, digits_in_chinese: bool) -> Languages:
    """Both languages with wetext's rules, which are read here, once (a third of a second).

    `digits_in_chinese`: a text of nothing but digits is read in Chinese, as the official front end does; for a model
    that has not learnt Chinese it must be read in English.
    """
    chinese, english = load_reader("zh"), load_reader("en")
    return Languages(
        Chinese(read=chinese),
        English(read=english, read_digits=chinese if digits_in_chinese else english, spell=NumberWords()),
    )
