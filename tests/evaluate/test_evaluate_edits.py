"""Edits between what was to be said and what was heard."""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.evaluate.edits import Edits, align, phone_errors

letters = st.lists(st.sampled_from("abc"), max_size=6)


@pytest.mark.parametrize(
    ("said", "heard", "expected"),
    [
        ("a b c", "a b c", Edits(0, 0, 0, 3)),
        ("a b c", "a x c", Edits(1, 0, 0, 3)),
        ("a b c", "a c", Edits(0, 1, 0, 3)),
        ("a b c", "a b b c", Edits(0, 0, 1, 3)),
        ("a b c", "", Edits(0, 3, 0, 3)),
        ("", "a b", Edits(0, 0, 2, 0)),
        ("a b c d", "b c d e", Edits(0, 1, 1, 4)),
    ],
)
def test_kinds_of_edits(said: str, heard: str, expected: Edits) -> None:
    assert align(said.split(), heard.split()) == expected


@given(letters, letters)
def test_edits_are_the_fewest(said: list[str], heard: list[str]) -> None:
    edits = align(said, heard)
    assert edits.errors == plain_distance(tuple(said), tuple(heard))
    assert edits.total == len(said)
    assert edits.insertions - edits.deletions == len(heard) - len(said)


@given(
    st.lists(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=3), min_size=1, max_size=2), max_size=3),
    letters,
)
def test_the_kindest_pronunciation_counts(words: list[list[list[str]]], heard: list[str]) -> None:
    ways = [[phone for way in choice for phone in way] for choice in product(*words)]
    errors, total = phone_errors(words, heard)
    assert errors == min(plain_distance(tuple(way), tuple(heard)) for way in ways)
    assert total == min(map(len, ways))


@lru_cache
def plain_distance(said: tuple[str, ...], heard: tuple[str, ...]) -> int:
    """The definition, slow and obvious."""
    if not said or not heard:
        return len(said) + len(heard)
    swapped = plain_distance(said[1:], heard[1:]) + (said[0] != heard[0])
    return min(swapped, plain_distance(said[1:], heard) + 1, plain_distance(said, heard[1:]) + 1)
