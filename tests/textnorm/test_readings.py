"""Texts whose acceptable readings are in the tables beside this file, read by the natural reading."""

from __future__ import annotations

import pytest

from tests.textnorm.acceptable import failing, load_cases
from vivavoce.frontend.text.tokenizer import SPECIAL_TOKENS
from vivavoce_textnorm.reader import read
from vivavoce_textnorm.types import Settings

_SETTINGS = Settings(marks=frozenset(SPECIAL_TOKENS))
_LEAST = 0.97


# The least number of texts. The official reading has of the last eight, in this order, 1 to 3 texts each right, but 38
# of Cantonese: those in which nothing has to be changed.
_TEXTS = {"en": 100, "zh": 100, "de": 100, "es": 100, "fr": 100, "it": 90, "ru": 100, "ja": 50, "ko": 50, "yue": 50}


@pytest.mark.parametrize("language", _TEXTS)
def test_nearly_all_texts_are_read_as_a_person_would(language: str) -> None:
    """In the tables ⏎ is a line break, and ⇥ a tabulator."""

    def spoken(text: str) -> str:
        return read(text.replace("⏎", "\n").replace("⇥", "\t"), language, _SETTINGS).spoken

    cases = load_cases(language)
    wrong = failing(cases, language, spoken)
    for case, said in wrong:
        print(f"{case.kind}: {case.text}\n    {said}")
    assert len(cases) >= _TEXTS[language]
    assert len(wrong) <= (1 - _LEAST) * len(cases)
