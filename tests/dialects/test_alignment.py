"""Times of characters for ElevenLabs' clients, and the clock of words and segments that they come from."""

from __future__ import annotations

import pytest

from vivavoce.engine.request import Word
from vivavoce.frontend.speech import SegmentText
from vivavoce.server.segment_clock import SegmentClock
from vivavoce_dialects.elevenlabs import Alignment

RATE = 1_000
WORDS = (Word("One", 0, 3, 0.2, 0.5), Word("two.", 4, 8, 0.6, 1.0))


def clock_of(text: str) -> SegmentClock:
    clock = SegmentClock(RATE, "segment", "done", "words")
    clock.begin_request(0)
    clock.announce(SegmentText(0, 0, len(text)))
    clock.begin(0)
    return clock


def test_characters_have_the_times_of_their_words():
    clock, alignment = clock_of("One two. "), Alignment("One two. ")
    characters, times = alignment.take(clock.words(WORDS[:1]))
    assert "".join(characters) == "One"
    assert times == pytest.approx([0.2, 0.3, 0.4, 0.5])
    characters, times = alignment.take(clock.words(WORDS[1:]))
    assert "".join(characters) == " two."
    assert times == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    clock.add(1_200)
    characters, times = alignment.take(clock.end())
    assert characters == [" "]
    assert times == pytest.approx([1.0, 1.2])


def test_without_words_a_segment_shares_its_time_and_both_kinds_come_together():
    clock, alignment = clock_of("One two. "), Alignment("One two. ")
    clock.add(900)
    characters, times = alignment.take(clock.end())
    assert ("".join(characters), times) == ("One two. ", pytest.approx([at / 10 for at in range(10)]))
    clock, alignment = clock_of("One two. "), Alignment("One two. ")
    events = clock.words(WORDS)
    clock.add(1_200)
    characters, times = alignment.take([*events, *clock.end()])
    assert "".join(characters) == "One two. "
    assert (times[0], times[4], times[8], times[9]) == pytest.approx((0.2, 0.6, 1.0, 1.2))


def test_a_character_that_came_in_two_halves_is_one_with_the_time_of_both():
    alignment = Alignment("Hi \ud83d")
    alignment.add("\ude00 \ud83d.")  # and a half without its other
    clock = clock_of("Hi \ud83d\ude00 \ud83d.")
    clock.add(800)
    characters, times = alignment.take(clock.end())
    assert "".join(characters) == "Hi \U0001f600 \ufffd."
    assert times == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8])


def test_the_text_is_heard_up_to_the_word_that_was_begun():
    clock = clock_of("One two. ")
    assert clock.spoken_until() is None
    clock.words(WORDS)
    clock.add(1_000)
    assert clock.spoken_until(0.1) == {"character": 0, "ms": 100}
    assert clock.spoken_until(0.55) == {"character": 3, "ms": 550}
    assert clock.spoken_until() == {"character": 8, "ms": 1000}
    assert clock.spoken_until(99.0) == {"character": 8, "ms": 1000}


def test_words_of_a_later_passage_are_counted_over_all_text_and_audio():
    clock = clock_of("One two. ")
    clock.add(1_000)
    clock.end_request()
    clock.begin_request(9)
    (event,) = clock.words(WORDS[:1])
    assert event["words"] == [{"text": "One", "start_character": 9, "end_character": 12, "start": 1.2, "end": 1.5}]
    assert "estimated" not in event
