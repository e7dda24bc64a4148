"""What may be a sentence of the corpus, and which sentences belong to the tests."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.data.texts.sentence import MAX_WORDS, MIN_WORDS, clean, is_reserved, is_suitable, words

HELD_OUT = Path(__file__).parents[3] / "benchmarks" / "sentences" / "held_out.txt"


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        ("the old man smiled", "The old man smiled."),
        ("  he left --  quickly ; ", "He left, quickly."),
        ("what is it?", "What is it?"),
        ("the cats' tails are long", "The cats' tails are long."),
        ("it`s a well-known fact", "It's a well-known fact."),
    ],
)
def test_cleaned(raw: str, sentence: str) -> None:
    assert clean(raw) == sentence


@pytest.mark.parametrize(
    "raw",
    [
        "too short",
        " ".join(["long"] * (MAX_WORDS + 1)),
        "it costs 5 dollars",
        "a caf\u00e9 in town",
        "the U.S. economy grew",
        "made by NASA long ago",
        "he met Dr. Brown there",
        "they call it 'light cream' here",
        "tools, nails, etc. were there",
        "a value of x and y",
        "what the hell is this",
        "",
        "...",
    ],
)
def test_refused(raw: str) -> None:
    assert clean(raw) is None


@given(st.text(alphabet=st.characters(max_codepoint=0x2100), max_size=80))
def test_what_is_cleaned_is_clean(raw: str) -> None:
    sentence = clean(raw)
    if sentence is not None:
        assert re.fullmatch(r"[A-Z'][A-Za-z' ,.?!;:-]*[.?!]", sentence)
        assert MIN_WORDS <= len(words(sentence)) <= MAX_WORDS
        assert is_suitable(sentence)
        assert clean(sentence) == sentence


def test_one_in_a_hundred_is_reserved_whatever_its_case() -> None:
    sentences = [f"This is sentence {number}." for number in range(5000)]
    reserved = [sentence for sentence in sentences if is_reserved(sentence)]
    assert 25 < len(reserved) < 75
    assert all(is_reserved(sentence.upper()) for sentence in reserved)
    one = "the body lay in a pool of blood."
    assert int(hashlib.md5(one.encode()).hexdigest(), 16) % 100 == 7
    assert is_reserved(one.capitalize())


def test_the_published_test_sentences_are_reserved() -> None:
    sentences = HELD_OUT.read_text(encoding="utf-8").splitlines()
    assert len(set(sentences)) == len(sentences) == 200
    assert all(is_reserved(sentence) for sentence in sentences)
    assert all(5 <= len(words(sentence)) <= 12 for sentence in sentences)
    assert not any(character.isdigit() for sentence in sentences for character in sentence)
