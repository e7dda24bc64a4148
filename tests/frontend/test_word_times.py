"""The times of words, from the text tokens that a voice reaches and from its sound."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from vivavoce.engine.request import AudioChunk, Word
from vivavoce.frontend.speech import Mark, heard_until
from vivavoce.frontend.text.word_spans import WordSpan
from vivavoce.frontend.word_times import LEAST_WORD_S, WordTimer

RATE = 24_000
TEXT = "one two three"
SPANS = (WordSpan(0, 3, 0, 2), WordSpan(4, 7, 2, 4), WordSpan(8, 13, 4, 7))


def sound(*parts: tuple[float, float]) -> np.ndarray:
    """(seconds, level) of each part."""
    made = [np.full(round(seconds * RATE), level, np.float32) for seconds, level in parts]
    return np.concatenate(made) * np.where(np.arange(sum(map(len, made))) % 2, 1, -1).astype(np.float32)


def timed(samples, reached, cuts=(), segment=0, timer=None):
    timer = timer or WordTimer()
    timer.plan(segment, SPANS)
    words, past, left = [], 0.0, list(reached) if reached is not None else None
    for cut in (*cuts, len(samples) / RATE):
        part = samples[round(past * RATE) : round(cut * RATE)]
        told = None if left is None else tuple(one for one in left if one[1] < cut)
        left = None if left is None else [one for one in left if one[1] >= cut]
        chunk = AudioChunk(part, RATE, segment=segment, reached=told)
        words.append(timer.add(TEXT, chunk, ended=cut == len(samples) / RATE))
        past = cut
    return words


def test_words_begin_where_the_voice_reaches_them():
    (words,) = timed(sound((2.0, 0.5)), [(0, 0.0), (1, 0.2), (2, 0.5), (3, 0.7), (5, 1.1), (6, 1.5)])
    assert [(one.text, one.start_s, one.end_s) for one in words] == [
        ("one", 0.0, 0.5), ("two", 0.5, 1.1), ("three", 1.1, 2.0)
    ]  # fmt: skip
    assert not any(one.estimated for one in words)


def test_the_first_word_begins_with_its_sound_and_a_pause_ends_a_word():
    samples = sound((0.3, 0.0), (0.3, 0.5), (0.3, 0.0), (0.6, 0.5), (0.2, 0.0))
    (words,) = timed(samples, [(0, 0.0), (2, 0.8), (4, 1.2)])
    assert words[0].start_s == pytest.approx(0.3, abs=0.011)
    assert words[0].end_s == pytest.approx(0.6, abs=0.011)
    assert words[1].start_s == pytest.approx(0.9, abs=0.011)  # the end of the pause that the voice came to
    assert words[2].end_s == pytest.approx(1.5, abs=0.011)


def test_a_short_closure_is_no_pause():
    samples = sound((0.5, 0.5), (0.06, 0.0), (1.0, 0.5))
    (words,) = timed(samples, [(0, 0.0), (2, 0.4), (4, 1.0)])
    assert words[1].start_s == pytest.approx(0.4)


def test_words_come_with_the_chunk_in_which_they_end():
    words = timed(sound((2.0, 0.5)), [(0, 0.0), (2, 0.5), (4, 1.1), (6, 1.3)], cuts=(0.4, 0.8, 1.2))
    assert [[one.text for one in part] for part in words] == [[], ["one"], ["two"], ["three"]]


@pytest.mark.parametrize("reached", [[(0, 0.0), (4, 0.6)], [(0, 0.0), (1, 0.3)], [(0, 0.0), (2, 0.5)]])
@pytest.mark.parametrize("cuts", [(), (0.4, 0.8, 1.2)])
def test_words_that_attention_passes_over_share_the_time(reached, cuts):
    words = [one for part in timed(sound((2.0, 0.5)), reached, cuts) for one in part]
    assert [one.text for one in words] == ["one", "two", "three"]
    assert all(one.end_s - one.start_s > 0.3 for one in words)
    assert words[-1].end_s == 2.0
    assert all(before.end_s <= after.start_s for before, after in pairwise(words))


def test_words_of_one_token_share_its_time_by_their_lengths():
    timer = WordTimer()
    timer.plan(0, (WordSpan(0, 3, 0, 2), WordSpan(4, 7, 0, 2), WordSpan(8, 13, 2, 3)))
    words = timer.add(TEXT, AudioChunk(sound((2.0, 0.5)), RATE, reached=((0, 0.0), (2, 1.0))), ended=True)
    assert [(one.start_s, one.end_s) for one in words] == [(0.0, 0.5), (0.5, 1.0), (1.0, 2.0)]


def test_a_word_whose_sound_comes_late_has_a_time_too():
    (words,) = timed(sound((0.4, 0.0), (1.6, 0.5)), [(0, 0.0), (2, 0.3), (4, 0.6)])
    assert [one.start_s for one in words] == pytest.approx([0.4, 0.4 + LEAST_WORD_S, 0.6])
    assert [one.end_s for one in words] == pytest.approx([0.4 + LEAST_WORD_S, 0.6, 2.0])


def test_without_attention_times_are_shared_out_and_say_so():
    (words,) = timed(sound((0.2, 0.0), (1.4, 0.5), (0.4, 0.0)), None)
    assert all(one.estimated for one in words)
    assert [one.start_s for one in words] == pytest.approx([0.2, 0.6, 1.0], abs=0.02)
    assert words[-1].end_s == pytest.approx(1.6, abs=0.02)


def test_a_later_segment_begins_where_the_one_before_it_ends():
    timer = WordTimer()
    timed(sound((1.0, 0.5)), [(0, 0.0), (2, 0.3), (4, 0.6)], timer=timer)
    (words,) = timed(sound((1.0, 0.5)), [(0, 0.0), (2, 0.3), (4, 0.6)], segment=1, timer=timer)
    assert [one.start_s for one in words] == pytest.approx([1.0, 1.3, 1.6])
    assert len(timer.words) == 6


def test_what_was_heard_by_words_and_by_segments():
    words = [Word("one", 0, 3, 0.2, 0.5), Word("two", 4, 7, 0.5, 1.0)]
    marks = [Mark("one two ", 0, 8, 0.0, 1.0), Mark("three", 8, 13, 1.0, 2.0)]
    assert heard_until(0.1, words, marks).character == 0
    assert heard_until(0.6, words, marks).character == 7
    assert heard_until(0.6, words, marks).text == "two"
    assert heard_until(0.5, (), marks).character == 4
    assert heard_until(9.0, (), marks).character == 13
    assert heard_until(9.0, (), marks).seconds == 2.0
    assert heard_until(1.0, (), ()).character == 0
