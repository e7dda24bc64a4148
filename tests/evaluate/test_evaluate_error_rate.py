"""Rates and their intervals."""

from __future__ import annotations

import numpy as np
import pytest

from vivavoce.evaluate import character_errors, word_errors
from vivavoce.evaluate.error_rate import mean_interval, pooled


def test_errors_are_pooled_over_words_and_not_averaged_over_utterances() -> None:
    rate = word_errors(
        [
            ("One two three four five six seven eight nine.", "one two three four five six seven eight nine"),
            ("ten", "hen"),
        ]
    )
    assert (rate.errors, rate.total, rate.rate) == (1, 10, 0.1)
    assert rate.low == 0.0
    assert 0.1 < rate.high <= 1.0


def test_case_hyphens_and_punctuation_are_no_errors() -> None:
    assert word_errors([("A well-known thing!", "a well known thing")]).errors == 0


def test_characters_of_chinese() -> None:
    assert character_errors([("你好，世界。", "你好是界")]).rate == 0.25


def test_more_can_be_heard_than_was_said() -> None:
    assert word_errors([("one", "one and another one")]).rate == 3.0


def test_nothing_to_say_has_no_rate() -> None:
    with pytest.raises(ValueError, match="nothing"):
        word_errors([("...", "hello")])


def test_without_errors_the_upper_bound_is_the_exact_one() -> None:
    rate = pooled([(0, 50), (0, 50)])
    assert rate.low == 0.0
    # 100 words that are all right are had with probability 2.5 % at this rate.
    assert (1 - rate.high) ** 100 == pytest.approx(0.025)


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    generator = np.random.default_rng(5)
    hits = 0
    for _ in range(40):
        errors = generator.binomial(10, 0.2, size=60)
        rate = pooled([(int(count), 10) for count in errors])
        hits += rate.low <= 0.2 <= rate.high
    assert 34 <= hits <= 40


def test_intervals_are_the_same_every_time() -> None:
    counts = [(number % 3, 7) for number in range(30)]
    assert pooled(counts) == pooled(counts)
    wide, narrow = pooled(counts[:6]), pooled(counts * 4)
    assert narrow.high - narrow.low < wide.high - wide.low


def test_means_have_intervals() -> None:
    mean = mean_interval([0.5, 0.7, 0.9])
    assert mean.value == pytest.approx(0.7)
    assert 0.5 <= mean.low < 0.7 < mean.high <= 0.9
    assert mean_interval([0.5]).high == 0.5
