"""Templates say well-formed sentences of words that recognisers know."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from training.data.texts.grammar import TEMPLATES, article, fill, fixed, plural, sentence
from training.data.texts.lexicon import FIXED
from training.data.texts.numbers import cardinal, ordinal, random_time, year
from training.data.texts.sentence import is_suitable, words

KNOWN = frozenset((Path(__file__).parent / "known_words.txt").read_text(encoding="utf-8").split())
"""Words of the grammar that stand in the CMU pronouncing dictionary."""
WELL_FORMED = re.compile(r"[A-Z][A-Za-z' ,.?!:-]*[.?!]")


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_template_speaks(template: str) -> None:
    r = random.Random(template)
    for _ in range(20):
        filled = fill(template, r)
        assert WELL_FORMED.fullmatch(filled), filled
        assert "  " not in filled
        assert is_suitable(filled)


def test_all_words_are_known() -> None:
    r = random.Random(1)
    spoken = {word for text in (*FIXED, *(sentence(r) for _ in range(20_000))) for word in words(text)}
    assert {word for word in spoken if word.removesuffix("'s") not in KNOWN and word not in KNOWN} == set()


def test_fixed_utterances_are_well_formed() -> None:
    assert len(set(FIXED)) == len(FIXED)
    assert all(WELL_FORMED.fullmatch(text) for text in FIXED)
    assert {len(words(text)) for text in FIXED} >= {1, 2, 3, 4, 5, 9}
    assert fixed(random.Random(0)) in FIXED


def test_sentences_are_deterministic_and_varied() -> None:
    first = [sentence(random.Random(5)) for _ in range(3)]
    assert first[0] == first[1] == first[2]
    r = random.Random(5)
    assert len({sentence(r) for _ in range(2000)}) > 1800


@pytest.mark.parametrize(
    ("number", "spoken"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (42, "forty two"),
        (100, "one hundred"),
        (514, "five hundred and fourteen"),
        (2_000, "two thousand"),
        (8_228, "eight thousand two hundred and twenty eight"),
        (1_000_001, "one million one"),
    ],
)
def test_cardinal(number: int, spoken: str) -> None:
    assert cardinal(number) == spoken


def test_other_numbers() -> None:
    assert cardinal(328, conjunction=False, hyphen=True) == "three hundred twenty-eight"
    assert [ordinal(number) for number in (1, 8, 12, 14, 20, 22, 31)] == (
        ["first", "eighth", "twelfth", "fourteenth", "twentieth", "twenty second", "thirty first"]
    )
    assert [year(number) for number in (1984, 1900, 1907, 2000, 2005, 2024)] == [
        "nineteen eighty four",
        "nineteen hundred",
        "nineteen oh seven",
        "two thousand",
        "two thousand five",
        "twenty twenty four",
    ]
    r = random.Random(0)
    assert all(re.fullmatch(r"[a-zA-Z' ]+", random_time(r)) for _ in range(500))


def test_articles_and_plurals() -> None:
    assert [article(word) for word in ("apple", "university", "hour", "useful tool", "old car", "umbrella")] == (
        ["an apple", "a university", "an hour", "a useful tool", "an old car", "an umbrella"]
    )
    assert [plural(word) for word in ("box", "key", "story", "leaf", "knife", "watch", "potato", "woman", "roof")] == (
        ["boxes", "keys", "stories", "leaves", "knives", "watches", "potatoes", "women", "roofs"]
    )
