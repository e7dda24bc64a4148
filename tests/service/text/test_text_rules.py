from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.service.text.languages.en import NumberWords
from vivavoce.service.text.rules import (
    close_trailing_comma,
    contains_chinese,
    has_markup,
    is_only_punctuation,
    is_speakable,
    remove_bracket,
    replace_blank,
    replace_corner_mark,
    spell_out_number,
)

MIXED = st.text(alphabet="aB1 ,.\n\t你，、。（）【】`—²³😀é")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b", "a b"),
        ("a  b", "ab"),
        ("a 好", "a好"),
        ("好 a", "好a"),
        ("é b", "éb"),
        (" a ", "a"),
        ("a\n b", "a\n b"),
        ("", ""),
    ],
)
def test_only_spaces_between_ascii_characters_stay(text: str, expected: str) -> None:
    assert replace_blank(text) == expected


@pytest.mark.parametrize(
    ("text", "only_punctuation", "speakable"),
    [
        ("", True, False),
        ("?!…", True, False),
        ("😀", True, False),
        ("❤️", False, False),
        ("a!", False, True),
        ("½", False, True),
    ],
)
def test_punctuation_and_speakable_characters(text: str, only_punctuation: bool, speakable: bool) -> None:
    assert is_only_punctuation(text) is only_punctuation
    assert is_speakable(text) is speakable


def test_kana_and_hangul_are_not_chinese() -> None:
    assert contains_chinese("a世")
    assert not contains_chinese("こんにちは 한국어")


@pytest.mark.parametrize(("text", "expected"), [("<|en|>", True), ("|><|", True), ("<|en", False), ("a|>", False)])
def test_markup_needs_both_ends(text: str, expected: bool) -> None:
    assert has_markup(text) is expected


@pytest.mark.parametrize("text", ["好，", "好,,", "好、，,"])
def test_trailing_commas_become_a_full_stop(text: str) -> None:
    assert close_trailing_comma(text) == "好。"


def test_digits_are_handed_over_run_by_run() -> None:
    runs: list[str] = []

    def words(run: str) -> str:
        runs.append(run)
        return f"<{run}>"

    assert spell_out_number("12a3²b. 45", words) == "<12>a<3²>b. <45>"
    assert runs == ["12", "3²", "45"]


@pytest.mark.parametrize(
    ("digits", "words"),
    [
        ("0", "zero"),
        ("007", "seven"),
        ("2024", "two thousand and twenty-four"),
        ("12345", "twelve thousand, three hundred and forty-five"),
        ("²", "zero"),
        ("٣", "three"),
        ("1" * 37, " ".join(["one"] * 37)),
    ],
)
def test_digits_in_words(digits: str, words: str) -> None:
    assert NumberWords()(digits) == words


@given(MIXED)
def test_rules_are_idempotent(text: str) -> None:
    for rule in (replace_blank, replace_corner_mark, remove_bracket, close_trailing_comma):
        assert rule(rule(text)) == rule(text)


@given(MIXED)
def test_text_without_digits_is_spelled_as_it_is(text: str) -> None:
    letters = "".join(character for character in text if not character.isdigit())

    assert spell_out_number(letters, lambda run: pytest.fail(run)) == letters
