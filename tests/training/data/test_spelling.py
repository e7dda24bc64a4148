"""The spelling of tokens: one code for each phone, place, pitch and loudness, and what lies close is spelled alike."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vivavoce_training.data.spelling import (
    BEFORE,
    NEXT,
    NUM_CODES,
    PHONE_INDEX,
    PHONES,
    PITCH_STEP,
    SILENCE_TOKEN,
    WHOLE,
    digits_of,
    level_of,
    placed,
    spell,
)


def token(phone: str, place: int = WHOLE, semitones: float = 0.0, loudness: int = 0) -> int:
    arrays = np.array([PHONE_INDEX[phone]], np.uint8), np.array([place], np.int8)
    spelled = spell(*arrays, np.array([semitones], np.float32), np.array([loudness], np.int8))
    return int(spelled[0])


def digits_between(one: int, other: int) -> int:
    first, second = digits_of(np.array([one, other]))
    return int((first != second).sum())


def test_every_meaning_has_a_token_of_its_own() -> None:
    tokens = {
        token(phone, place, level * PITCH_STEP, loudness)
        for phone in PHONES[1:]
        for place in (BEFORE, WHOLE, NEXT)
        for level in range(-4, 5)
        for loudness in (-1, 0, 1)
    }
    assert len(tokens) == (len(PHONES) - 1) * 3 * 9 * 3
    assert tokens <= set(range(NUM_CODES)) - {SILENCE_TOKEN}


def test_silence_is_one_token() -> None:
    assert {token("pau", place, tone, loud) for place in (-1, 0, 1) for tone in (-9, 0, 3) for loud in (-1, 0, 1)} == {
        SILENCE_TOKEN
    }
    assert not digits_of(np.array(SILENCE_TOKEN)).any()


@pytest.mark.parametrize(("one", "other"), [("p", "b"), ("s", "z"), ("k", "ɡ"), ("n", "m"), ("i", "ɪ"), ("t", "T")])
def test_sounds_alike_are_spelled_alike(one: str, other: str) -> None:
    assert digits_between(token(one), token(other)) == 1
    assert digits_between(token("i"), token("ɡ")) > 2


@given(st.floats(-20, 20))
def test_the_pitch_comes_back_within_half_a_step(semitones: float) -> None:
    level = int(level_of(digits_of(np.array(token("i", semitones=semitones)))))
    assert abs(level * PITCH_STEP - np.clip(semitones, -4 * PITCH_STEP, 4 * PITCH_STEP)) <= PITCH_STEP / 2 + 1e-4


def test_neighbouring_steps_differ_in_one_digit() -> None:
    steps = [token("i", semitones=level * PITCH_STEP) for level in range(-4, 5)]
    assert all(digits_between(one, other) == 1 for one, other in pairwise(steps))


@pytest.mark.parametrize(
    ("halves", "phones", "places"),
    [
        ("aa bb", "ab", [WHOLE, WHOLE]),
        ("aa ab bb", "abb", [WHOLE, BEFORE, WHOLE]),
        ("aa bc cc", "abc", [WHOLE, NEXT, WHOLE]),  # a phone of 20 ms is not lost
        ("ab bc cd", "abc", [NEXT, NEXT, NEXT]),
    ],
)
def test_where_phones_meet_the_new_one_counts(halves: str, phones: str, places: list[int]) -> None:
    letters = np.array([[[ord(half) - 96 for half in pair] for pair in halves.split()]], np.uint8)
    phone, place = placed(letters)
    assert "".join(chr(96 + one) for one in phone[0]) == phones
    assert place[0].tolist() == places
