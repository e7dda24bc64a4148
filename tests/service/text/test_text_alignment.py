from __future__ import annotations

import itertools
import random
from difflib import SequenceMatcher

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vivavoce.service.text.alignment import _longest_common, matches

TOKENS = st.lists(st.sampled_from("abcd"), max_size=40)


def longest_common_length(one: list[str], other: list[str]) -> int:
    lengths = [0] * (len(other) + 1)
    for token in one:
        before = 0
        for place, beside in enumerate(other, start=1):
            before, lengths[place] = (
                lengths[place],
                before + 1 if token == beside else max(lengths[place], lengths[place - 1]),
            )
    return lengths[-1]


def check(pairs: list[tuple[int, int]], one: list[str], other: list[str]) -> None:
    assert all(one[place] == other[beside] for place, beside in pairs)
    assert all(a < b and c < d for (a, c), (b, d) in itertools.pairwise(pairs))


@given(one=TOKENS, other=TOKENS)
@settings(deadline=None)
def test_a_common_subsequence_is_a_longest_one(one: list[str], other: list[str]) -> None:
    pairs = _longest_common(one, other)
    check(pairs, one, other)
    assert len(pairs) == longest_common_length(one, other)


@given(one=st.lists(st.sampled_from("ab"), max_size=120), other=st.lists(st.sampled_from("ab"), max_size=120))
@settings(deadline=None)
def test_matches_are_equal_and_in_order(one: list[str], other: list[str]) -> None:
    check(matches(one, other), one, other)


@pytest.mark.parametrize("size", [1, 3, 40, 400])
def test_what_was_rewritten_is_left_out_whatever_its_length(size: int) -> None:
    """Before and after it, and in between, all is matched."""
    one = [*"abcdef", "5", *"ghijkl", *(f"dropped {place}" for place in range(size)), *"mnopqr"]
    other = [*"abcdef", *(f"word {place}" for place in range(size)), *"ghijklmnopqr"]
    assert [one[place] for place, _ in matches(one, other)] == list("abcdefghijklmnopqr")


def test_repetitions_are_matched_with_their_own_copy() -> None:
    line = ["on", "the", "5", "of", "may", "we", "had", "a", "very", "fine", "day", "."]
    said = ["on", "the", "fifth", "of", "may", "we", "had", "a", "very", "fine", "day", "."]
    pairs = matches(line * 50, said * 50)
    assert len(pairs) == 50 * (len(line) - 1)
    assert all(place == beside for place, beside in pairs)


def test_as_much_is_matched_as_difflib_matches() -> None:
    chosen = random.Random(3)
    one = [chosen.choice("abcdefghijklmnopqrstuvwxyz,.") for _ in range(600)]
    other = [token for token in one if chosen.random() > 0.1]
    matched = sum(block.size for block in SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks())
    assert len(matches(one, other)) >= 0.95 * max(matched, len(other))
