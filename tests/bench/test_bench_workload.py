"""What is said in a load."""

from __future__ import annotations

from collections import Counter

import pytest

from vivavoce.bench.texts import SENTENCES
from vivavoce.bench.workload import Workload, with_words
from vivavoce.errors import InvalidRequest


def test_the_seed_decides_and_the_purpose_as_well() -> None:
    one, other = Workload(seed=1), Workload(seed=2)
    assert one.utterances(50) == Workload(seed=1).utterances(50)
    assert [u.text for u in one.utterances(50)] != [u.text for u in other.utterances(50)]
    assert [u.text for u in one.utterances(50)] != [u.text for u in one.utterances(50, "warm-up")]


def test_a_longer_load_begins_with_a_shorter_one() -> None:
    assert Workload().utterances(90)[:30] == Workload().utterances(30)


def test_texts_come_in_rounds_and_voices_in_turn() -> None:
    texts = ["one", "two", "three"]
    said = Workload(texts, voices=("anna", "ben"), seed=7).utterances(12)
    assert Counter(u.text for u in said) == {"one": 4, "two": 4, "three": 4}
    assert [u.voice for u in said] == ["anna", "ben"] * 6
    assert [u.seed for u in said] == list(range(7, 19))
    assert [u.number for u in said] == list(range(12))


def test_words_bound_the_texts() -> None:
    assert with_words(["a", "a b", "a b c"], 2, 3) == ["a b", "a b c"]
    with pytest.raises(InvalidRequest, match="words: no text has 4 to 9 words, they have 1 to 3"):
        with_words(["a", "a b c"], 4, 9)


def test_no_texts_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="texts"):
        Workload([])


def test_the_sentences_spread_in_length() -> None:
    counts = sorted(len(sentence.split()) for sentence in SENTENCES)
    assert len(set(SENTENCES)) == len(SENTENCES) == 40
    assert (counts[0], counts[-1]) == (3, 34)
    assert counts[19] <= 11
    assert not any(character.isdigit() for character in "".join(SENTENCES))
