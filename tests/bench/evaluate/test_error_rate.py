"""Words, edits and error rates."""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce_bench.evaluate import word_errors
from vivavoce_bench.evaluate.error_rate import (
    Edits,
    align,
    characters,
    is_unspaced,
    num_characters,
    phone_errors,
    pooled,
    split_like,
    words,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It's a well-known FACT.", ["it's", "a", "well", "known", "fact"]),
        ("‘Don’t’, she said…", ["don't", "she", "said"]),
        ("five  o'clock\tnow", ["five", "o'clock", "now"]),
        ("Ｆｕｌｌ　ｗｉｄｔｈ ４２", ["full", "width", "42"]),
        ("naïve Žižek", ["naïve", "žižek"]),
        ("'quoted' rock 'n' roll", ["quoted", "rock", "n", "roll"]),
        ("snake_case", ["snake", "case"]),
        ("... !", []),
        ("", []),
    ],
)
def test_words(text, expected):
    assert words(text) == expected


def test_chinese_is_compared_by_characters():
    assert characters("你好，世界！Hello world 2个") == ["你", "好", "世", "界", "hello", "world", "2", "个"]
    assert characters("カタカナとひらがな") == list("カタカナとひらがな")
    assert split_like("你好") is characters
    assert split_like("hello") is words
    assert is_unspaced("a 中 b")
    assert not is_unspaced("안녕 하세요")


def test_only_what_is_spoken_counts_as_a_character():
    assert num_characters("It's 11:42!") == 4 + 4
    assert num_characters("你好，世界。") == 4
    assert num_characters("—") == 0


letters = st.lists(st.sampled_from("abc"), max_size=6)


@pytest.mark.parametrize(
    ("said", "heard", "expected"),
    [
        ("a b c", "a b c", Edits(0, 0, 0, 3, 0)),
        ("a b c", "a x c", Edits(1, 0, 0, 3, 1)),
        ("a b c", "a c", Edits(0, 1, 0, 3, 1)),
        ("a b c", "a b b c", Edits(0, 0, 1, 3, 1)),
        ("a b c", "", Edits(0, 3, 0, 3, 3)),
        ("", "a b", Edits(0, 0, 2, 0, 2)),
        ("a b c d", "b c d e", Edits(0, 1, 1, 4, 2)),
    ],
)
def test_kinds_of_edits(said, heard, expected):
    assert align(said.split(), heard.split()) == expected


@given(letters, letters)
def test_edits_are_the_fewest(said, heard):
    edits = align(said, heard)
    assert edits.errors == plain_distance(tuple(said), tuple(heard))
    assert edits.total == len(said)
    assert edits.insertions - edits.deletions == len(heard) - len(said)


@given(
    st.lists(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3), min_size=1, max_size=2), max_size=3),
    letters,
)
def test_the_kindest_pronunciation_counts(words, heard):
    ways = [[phone for way in choice for phone in way] for choice in product(*words)]
    errors, total = phone_errors(words, heard)
    assert errors == min(plain_distance(tuple(way), tuple(heard)) for way in ways)
    assert total == min(map(len, ways))


@lru_cache
def plain_distance(said, heard):
    """The definition, slow and obvious."""
    if not said or not heard:
        return len(said) + len(heard)
    swapped = plain_distance(said[1:], heard[1:]) + (said[0] != heard[0])
    return min(swapped, plain_distance(said[1:], heard) + 1, plain_distance(said, heard[1:]) + 1)


def test_errors_are_pooled_over_words_and_not_averaged_over_utterances():
    rate = word_errors(
        [
            ("One two three four five six seven eight nine.", "one two three four five six seven eight nine"),
            ("ten", "hen"),
        ]
    )
    assert (rate.errors, rate.total, rate.rate) == (1, 10, 0.1)
    assert rate.low == 0.0
    assert 0.1 < rate.high <= 1.0


def test_more_can_be_heard_than_was_said_but_not_of_nothing():
    assert word_errors([("one", "one and another one")]).rate == 3.0
    with pytest.raises(ValueError, match="no units to count"):
        word_errors([("...", "hello")])


def test_without_errors_the_upper_bound_is_the_exact_one():
    rate = pooled([(0, 50), (0, 50)])
    assert rate.low == 0.0
    # 100 words that are all right are had with probability 2.5 % at this rate.
    assert (1 - rate.high) ** 100 == pytest.approx(0.025)


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    generator = np.random.default_rng(5)
    hits = 0
    for _ in range(40):
        errors = generator.binomial(10, 0.2, size=60)
        rate = pooled([(int(count), 10) for count in errors])
        hits += rate.low <= 0.2 <= rate.high
    assert 34 <= hits <= 40


def test_intervals_are_the_same_every_time():
    counts = [(number % 3, 7) for number in range(30)]
    assert pooled(counts) == pooled(counts)
    wide, narrow = pooled(counts[:6]), pooled(counts * 4)
    assert narrow.high - narrow.low < wide.high - wide.low
