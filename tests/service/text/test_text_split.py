from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.service.text.bound import cut_long
from vivavoce.service.text.rules import is_speakable
from vivavoce.service.text.split import Language, split_paragraph

TEXT = st.text(alphabet='ab ，,。.!?！“”"\n你好', max_size=300)
LANGUAGE = st.sampled_from(["zh", "en"])


def letters(text: str) -> str:
    return "".join(character for character in text if is_speakable(character))


def utf8(text: str) -> int:
    return len(text.encode())


@pytest.mark.parametrize(
    ("text", "lang", "expected"),
    [
        ("", "zh", []),
        ("...", "en", []),
        ("a", "zh", ["a。"]),
        ("a", "en", ["a."]),
        ("a: b", "en", ["a: b."]),
        ('。"你好', "zh", ['"你好。']),
        ('好！？"“再来。”', "zh", ['好！"“再来。”']),
    ],
)
def test_marks_and_quotes(text: str, lang: Language, expected: list[str]) -> None:
    assert split_paragraph(text, len, lang) == expected


def test_sentences_join_up_to_the_longest_length() -> None:
    assert split_paragraph("aaaa.bbbb.cccc.dddd.", len, "en", token_max_n=10, token_min_n=5, merge_len=2) == [
        "aaaa.bbbb.",
        "cccc.dddd.",
    ]


def test_a_piece_of_at_most_the_minimum_takes_another_sentence() -> None:
    assert split_paragraph("aaaa.bbbbbbbb.", len, "en", token_max_n=10, token_min_n=5, merge_len=2) == [
        "aaaa.bbbbbbbb."
    ]


def test_a_short_rest_joins_the_last_piece() -> None:
    assert split_paragraph("aaaaaaaa.bbbbbbbb.c.", len, "en", token_max_n=9, token_min_n=5, merge_len=3) == [
        "aaaaaaaa.",
        "bbbbbbbb.c.",
    ]


def test_each_joined_text_is_measured_once() -> None:
    measured: list[str] = []

    def length(text: str) -> int:
        measured.append(text)
        return len(text)

    split_paragraph("a.b.c.", length, "en", token_max_n=2, token_min_n=1, merge_len=1)

    assert measured == ["a.", "a.b.", "b.", "b.c.", "c.", "c."]


@given(TEXT, LANGUAGE, st.booleans())
def test_splitting_keeps_every_letter_and_no_piece_is_empty(text: str, lang: Language, comma_split: bool) -> None:
    pieces = split_paragraph(text, len, lang, token_max_n=20, token_min_n=10, merge_len=5, comma_split=comma_split)

    assert all(pieces)
    assert letters("".join(pieces)) == letters(text)


@given(TEXT, LANGUAGE)
def test_a_piece_exceeds_the_longest_length_only_by_one_sentence(text: str, lang: Language) -> None:
    marks = {"zh": "。？！；：、.?!;", "en": ".?!;:"}[lang]
    for piece in split_paragraph(text, len, lang, token_max_n=20, token_min_n=10, merge_len=0):
        inner = piece[:-1].rstrip('"”').rstrip(marks)
        last_mark = max((inner.rfind(mark) for mark in marks), default=-1)
        assert len(piece) <= 20 or last_mark < 11


@given(TEXT, st.integers(4, 60))
def test_cut_pieces_are_short_and_join_to_the_text(text: str, limit: int) -> None:
    pieces = cut_long(text, utf8, limit)

    assert "".join(pieces) == text
    assert all(utf8(piece) <= limit for piece in pieces)
    assert all(pieces) or not text


@given(TEXT)
def test_text_within_the_limit_is_not_cut(text: str) -> None:
    assert cut_long(text, utf8, utf8(text)) == [text]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("one two, three four", ["one two,", " three four"]),
        ("one two three four", ["one two ", "three four"]),
        ("12,345 67,890", ["12,345 ", "67,890"]),
        ("一二三四五，六七八九十", ["一二三四五，", "六七八九十"]),
        ("一二三四五六七八九十", ["一二三四五", "六七八九十"]),
        ("哈哈[laughter]哈哈哈哈哈哈", ["哈哈[laughter]", "哈哈哈哈哈哈"]),
        ("<|endofprompt|>哈", ["<|endofprompt|>", "哈"]),
        ("abe\u0301\u0301\u0301", ["ab", "e\u0301\u0301\u0301"]),
    ],
)
def test_cuts_are_made_where_one_breathes(text: str, pieces: list[str]) -> None:
    assert cut_long(text, len, max(map(len, pieces))) == pieces
