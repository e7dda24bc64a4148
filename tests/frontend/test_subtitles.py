"""Subtitles: as the formats want them, readable, and at the right time."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.engine.request import Word
from vivavoce.frontend.speech import Mark
from vivavoce.frontend.subtitles import MAX_COLUMNS, Cue, _columns, sentence_cues, split_cues, to_srt, to_vtt

LONG = (
    "The ferry left at nine, and nobody was on board but the captain and a dog. It came back at noon, "
    "without the captain."
)


def test_srt() -> None:
    cues = [Cue(0.0, 1.5, "Hello there."), Cue(1.5, 3661.0015, "  How\nare  you? ")]
    assert to_srt(cues) == (
        "1\n00:00:00,000 --> 00:00:01,500\nHello there.\n\n2\n00:00:01,500 --> 01:01:01,002\nHow are you?\n"
    )


def test_vtt_escapes_what_is_no_markup() -> None:
    assert to_vtt([Cue(0.25, 1.0, "a < b & c --> d")]) == (
        "WEBVTT\n\n00:00:00.250 --> 00:00:01.000\na &lt; b &amp; c --&gt; d\n"
    )


def test_nothing_heard_is_no_subtitle() -> None:
    assert to_vtt([]) == "WEBVTT\n"
    assert to_srt([]) == ""
    assert split_cues([Cue(1.0, 1.0, "never heard"), Cue(1.0, 2.0, " \n ")]) == []


def test_a_long_text_is_shared_out_by_its_characters() -> None:
    first, second = split_cues([Cue(10.0, 20.0, LONG)])
    assert first.text == "The ferry left at nine, and nobody was\non board but the captain and a dog."
    assert second.text == "It came back at noon, without the captain."
    share = len("".join(first.text.split())) / len("".join(LONG.split()))
    assert first == Cue(10.0, pytest.approx(10 + 10 * share), first.text)
    assert (second.start_s, second.end_s) == (first.end_s, 20.0)


def test_chinese_is_broken_between_characters_but_not_before_marks() -> None:
    text = "我们在山上住了三天，没有看见一个人；后来下了一场很大的雨，路也断了，" * 2 + "好。"
    cues = split_cues([Cue(0.0, 30.0, text)])
    assert len(cues) > 1
    assert "".join(cue.text for cue in cues).replace("\n", "") == text
    for cue in cues:
        for line in cue.text.split("\n"):
            assert _columns(line) <= MAX_COLUMNS
            assert line[0] not in "，；。"


@given(text=st.text(alphabet="ab .,!“”（）好。，é\u0301\n-<&", max_size=400), end_s=st.floats(0.001, 1e5))
def test_any_text_is_shown_whole_and_in_time(text: str, end_s: float) -> None:
    cues = split_cues([Cue(0.0, end_s, text)])
    assert "".join("".join(cue.text.split()) for cue in cues) == "".join(text.split())
    for cue in cues:
        lines = cue.text.split("\n")
        assert 1 <= len(lines) <= 2
        assert all(line.strip() and _columns(line) <= MAX_COLUMNS for line in lines)
    if cues:
        assert (cues[0].start_s, cues[-1].end_s) == (0.0, end_s)
    assert all(before.end_s == after.start_s for before, after in pairwise(cues))
    assert all(cue.start_s < cue.end_s for cue in cues)


def test_a_word_longer_than_a_line_is_torn() -> None:
    (cue,) = split_cues([Cue(0.0, 1.0, "x" * 70)])
    assert [len(line) for line in cue.text.split("\n")] == [42, 28]


def test_sentences_follow_their_words_and_never_end_behind_a_title() -> None:
    text = (
        "Mr. Brown paid $5 for it. He met Mrs. Smith and Dr. Jones of St. Mary's hospital in the early afternoon! So?"
    )
    words = [
        Word(found[0], found.start(), found.end(), number * 0.5, number * 0.5 + 0.4)
        for number, found in enumerate(re.finditer(r"\S+", text))
    ]
    cues = sentence_cues(text, words)
    assert cues[0].text == "Mr. Brown paid $5 for it."
    assert (cues[0].start_s, cues[0].end_s) == (0.0, 2.9)
    assert cues[-1].text == "So?"
    assert cues[-1].end_s == words[-1].end_s
    assert not any(one.text.endswith(("Mr.", "Mrs.", "Dr.", "St.")) for one in cues)
    assert " ".join(" ".join(one.text for one in cues).split()) == text


def test_a_long_mark_is_not_split_behind_a_title() -> None:
    mark = Mark(
        "They went to the old house by the river and met with Dr. Jones of the hospital there.", 0, 85, 0.0, 5.0
    )
    assert not any(cue.text.endswith("Dr.") for cue in split_cues([mark]))
