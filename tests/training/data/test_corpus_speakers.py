"""Speakers of the corpus: the same for the same seed, and test speakers with timbres of their own."""

from __future__ import annotations

import pytest

from vivavoce_training.assemble import VOICES as SHIPPED
from vivavoce_training.data.speakers import (
    ENGLISH,
    FREQUENT,
    KEPT,
    KEPT_FOREIGN,
    VOICES,
    shares,
    test_speakers,
    train_speakers,
    weight,
)


def test_the_first_of_more_speakers_are_the_same() -> None:
    many = train_speakers(120, 3)
    assert many[:60] == train_speakers(60, 3)
    assert many != train_speakers(120, 4)
    assert len({one.name for one in many}) == 120
    assert [one.name for one in many[: len(ENGLISH)]] == list(ENGLISH)


def test_a_recipe_is_of_known_voices_and_whole() -> None:
    for one in (*train_speakers(300, 1), *test_speakers()):
        for recipe in (one.timbre, one.manner):
            assert set(shares(recipe)) <= set(VOICES)
            assert sum(shares(recipe).values()) == pytest.approx(1)
        assert one.manner[0] in "ab"


def test_no_training_speaker_has_any_of_a_test_speaker_s_timbre() -> None:
    kept = {*KEPT, *KEPT_FOREIGN}
    assert not any(kept & set(shares(one.timbre)) for one in train_speakers(300, 1))
    unheard = test_speakers()
    assert len({one.name for one in unheard}) == 20
    assert all(set(shares(one.timbre)) <= kept for one in unheard)
    assert len({one.timbre for one in unheard[:8]}) == 8


def test_some_voices_speak_most() -> None:
    speakers = train_speakers(300, 1)
    frequent = sum(weight(one) for one in speakers if one.name in FREQUENT)
    assert 0.1 < frequent / sum(map(weight, speakers)) < 0.4


def test_stored_voices_are_of_timbres_that_were_trained() -> None:
    for speaker, _ in SHIPPED.values():
        assert {*shares(speaker.timbre), *shares(speaker.manner)} <= set(ENGLISH)
