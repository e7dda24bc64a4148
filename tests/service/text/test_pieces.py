"""Pieces of arriving text end with whole words, and nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.errors import InvalidText
from vivavoce.service.text.checks import MAX_TEXT_CHARS
from vivavoce.service.text.pieces import MAX_HELD, whole_words


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["Hello ", "there, ", "my friend."], ["Hello", " there,", " my friend."]),
        (["gar", "den", " gate"], ["garden", " gate"]),
        (["It", "'s", " fine"], ["It's", " fine"]),
        (["One. ", "", "Two."], ["One.", " Two."]),
        (["你好", "世界。"], ["你好", "世界。"]),
        (["caf", "e\u0301 noir"], ["cafe\u0301", " noir"]),
        ([" "], [" "]),
        ([], []),
    ],
)
def test_words_are_not_torn(pieces: list[str], expected: list[str]) -> None:
    assert list(whole_words(pieces)) == expected


@given(st.lists(st.text(alphabet="ab ,.é你", max_size=6), max_size=12))
def test_nothing_is_lost(pieces: list[str]) -> None:
    parts = list(whole_words(pieces))
    assert "".join(parts) == "".join(pieces)
    assert all(parts)


def test_a_piece_is_read_only_when_it_is_needed() -> None:
    read = []

    def pieces() -> object:
        for piece in ("One ", "two ", "three"):
            read.append(piece)
            yield piece

    parts = whole_words(pieces())  # type: ignore[arg-type]
    assert next(parts) == "One"
    assert read == ["One "]


def test_what_is_no_word_does_not_pile_up() -> None:
    parts = list(whole_words(["a" * 10] * 30))
    assert max(map(len, parts)) <= MAX_HELD + 10


def test_a_piece_that_is_no_text() -> None:
    with pytest.raises(InvalidText, match="int"):
        list(whole_words(["a", 3]))  # type: ignore[list-item]


def test_a_long_piece_after_a_held_word_is_not_too_long() -> None:
    long = "! " + "x " * 9998 + "!"
    parts = list(whole_words(["ab", long]))
    assert "".join(parts) == "ab" + long
    assert max(map(len, parts)) <= MAX_TEXT_CHARS
