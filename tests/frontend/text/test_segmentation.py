"""Text is split where one breathes, and each segment's characters are found: the rules alone."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.frontend.text.ranges import letters, spans
from vivavoce.frontend.text.segmentation import cut_long, is_only_punctuation, matches, split_paragraph

TEXT = st.text(alphabet='ab ，,。.!?！“”"\n你好', max_size=300)
LANGUAGE = st.sampled_from(["zh", "en"])


def utf8(text):
    return len(text.encode())


def pieces_of(text, length, lang, **options):
    """All of it at once."""
    return [piece for piece, _ in split_paragraph([text], length, lang, **options)]


def test_only_punctuation():
    cases = {"": True, "?!…": True, "😀": True, "❤️": False, "a!": False, "½": False}
    assert {text: is_only_punctuation(text) for text in cases} == cases


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
def test_marks_and_quotes(text, lang, expected):
    assert pieces_of(text, len, lang) == expected


@pytest.mark.parametrize(
    ("text", "lengths", "pieces"),
    [
        ("aaaa.bbbb.cccc.dddd.", (10, 5, 2), ["aaaa.bbbb.", "cccc.dddd."]),
        ("aaaaaaaa.bbbbbbbb.c.", (9, 5, 3), ["aaaaaaaa.", "bbbbbbbb.c."]),  # a short rest joins the last piece
    ],
)
def test_sentences_join_up_to_the_longest_length(text, lengths, pieces):
    options = dict(zip(("token_max_n", "token_min_n", "merge_len"), lengths, strict=True))
    assert pieces_of(text, len, "en", **options) == pieces


def test_each_joined_text_is_measured_once():
    measured = []
    length = lambda text: measured.append(text) or len(text)  # noqa: E731
    assert len(pieces_of("a.b.c.", length, "en", token_max_n=2, token_min_n=1, merge_len=1)) == 3
    assert measured == ["a.", "a.b.", "b.", "b.c.", "c."]


@given(TEXT, LANGUAGE, st.booleans())
def test_splitting_keeps_every_letter_and_no_piece_is_empty(text, lang, comma_split):
    pieces = pieces_of(text, len, lang, token_max_n=20, token_min_n=10, merge_len=5, comma_split=comma_split)
    assert all(pieces)
    assert letters("".join(pieces)) == letters(text)


@given(st.lists(TEXT, max_size=6), LANGUAGE)
def test_how_a_text_comes_does_not_change_its_pieces_and_what_follows_them_is_known(parts, lang):
    lengths = {"token_max_n": 20, "token_min_n": 10, "merge_len": 5}
    found = list(split_paragraph(parts, len, lang, **lengths))
    pieces = [piece for piece, _ in found]
    assert pieces == pieces_of("".join(parts), len, lang, **lengths)
    for place, (_, following) in enumerate(found):
        assert "".join(pieces[place + 1 :]).startswith(following)


def test_pieces_come_as_soon_as_no_later_text_can_change_them():
    come = []
    sentences = (come.append(n) or f"This is sentence {n}. " for n in range(100))
    first = next(split_paragraph(sentences, len, "en"))
    said = [" This is sentence 0.", " This is sentence 1.", " This is sentence 2.", " This is sentence 3."]
    assert first == ("".join(said).strip(), " This is sentence 4.")
    assert len(come) == 5


def test_a_sentence_that_never_ends_is_not_waited_for():
    come = []
    words = (come.append(n) or "and so on " for n in range(2_000))
    first, _ = next(split_paragraph(words, len, "en"))
    assert 500 < len(first) < len(come) * 10 <= 4_100


@given(TEXT, st.integers(4, 60))
def test_cut_pieces_are_short_and_join_to_the_text(text, limit):
    pieces = cut_long(text, utf8, limit)
    assert "".join(pieces) == text
    assert all(utf8(piece) <= limit for piece in pieces)
    assert all(pieces) or not text


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
def test_cuts_are_made_where_one_breathes(text, pieces):
    assert cut_long(text, len, max(map(len, pieces))) == pieces


@pytest.mark.parametrize(
    ("text", "segments", "spoken"),
    [
        ("I paid 3. 4 came.", ["I paid three.", " four came."], ["I paid 3. ", "4 came."]),
        ("3. 4. 5. Yes.", ["three. four.", " five. Yes."], ["3. 4. ", "5. Yes."]),
        ("From 12 34 on", ["From twelve ", "thirty four on."], ["From 12 ", "34 on"]),
        ("版本2.0.1好", ["版本二。", "零点一好。"], ["版本2.", "0.1好"]),
        ("在3（四）", ["在三", "四。"], ["在3", "（四）"]),
        ("We ... go!!! Now.", ["We. go!", " Now."], ["We ... go!!! ", "Now."]),
        ("A b.\n***\nC d.", ["A b.", " C d."], ["A b.\n", "***\nC d."]),
        ("ＡＢ Ｃ. d", ["AB c.", " d."], ["ＡＢ Ｃ. ", "d"]),
        ("abcdefgh", ["abc", "de", "fgh."], ["abc", "de", "fgh"]),
        ("9 " * 3, ["nine nine ", "nine."], ["9 9 ", "9 "]),
        ("!? 7", ["seven", "seven"], ["!? ", "7"]),
        ("什么？“好。”他说。", ["什么？", "“好。”他说。"], ["什么？", "“好。”他说。"]),
        ('他说："好。"你说："好。"', ["他说：", '"好。"', '你说："好。"'], ["他说：", '"好。"', '你说："好。"']),
        ("„Ja.“ Er ging.", ["„Ja.“", " Er ging."], ["„Ja.“ ", "Er ging."]),
        ('"Yes." "No." I', ['"Yes.', '" "No.', '" I.'], ['"Yes." ', '"No." ', "I"]),
    ],
)
def test_a_cut_is_found_though_what_is_around_it_was_rewritten(text, segments, spoken):
    assert spans(text, segments) == spoken


@given(text=st.text(max_size=60), segments=st.lists(st.text(max_size=20), min_size=1, max_size=8))
@settings(deadline=None)
def test_segments_of_another_text_are_given_ranges_too(text, segments):
    spans(text, segments)


TOKENS = st.lists(st.sampled_from("abcd"), max_size=40)


def longest_common_length(one, other):
    lengths = [0] * (len(other) + 1)
    for token in one:
        before = 0
        for place, beside in enumerate(other, start=1):
            longest = before + 1 if token == beside else max(lengths[place], lengths[place - 1])
            before, lengths[place] = lengths[place], longest
    return lengths[-1]


@given(one=TOKENS, other=TOKENS)
@settings(deadline=None)
def test_equal_tokens_are_a_longest_common_subsequence(one, other):
    pairs = matches(one, other)
    assert all(one[place] == other[beside] for place, beside in pairs)
    assert all(a < b and c < d for (a, c), (b, d) in itertools.pairwise(pairs))
    assert len(pairs) == longest_common_length(one, other)
