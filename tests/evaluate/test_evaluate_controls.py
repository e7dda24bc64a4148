"""Audio and texts made wrong on purpose."""

from __future__ import annotations

import numpy as np
import pytest
from evaluate_fakes import RATE, noise
from hypothesis import given
from hypothesis import strategies as st

from vivavoce.errors import InvalidRequest
from vivavoce.evaluate.controls import Control, parse_control, spoil_audio, spoil_texts


def test_shuffled_pieces_are_the_same_pieces() -> None:
    samples = noise(1.7)
    shuffled = spoil_audio(samples, RATE, Control.SHUFFLED)
    assert not np.array_equal(shuffled, samples)
    np.testing.assert_array_equal(np.sort(shuffled), np.sort(samples))
    np.testing.assert_array_equal(shuffled, spoil_audio(samples, RATE, Control.SHUFFLED))
    piece = samples[: round(0.16 * RATE)]
    assert any(np.array_equal(shuffled[at : at + len(piece)], piece) for at in np.flatnonzero(shuffled == piece[0]))


def test_reversed_twice_is_as_before() -> None:
    samples = noise(0.3)
    again = spoil_audio(spoil_audio(samples, RATE, Control.REVERSED), RATE, Control.REVERSED)
    np.testing.assert_array_equal(again, samples)
    assert spoil_audio(samples, RATE, None) is samples
    assert spoil_audio(samples, RATE, Control.WRONG_TEXT) is samples


@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=8).filter(lambda texts: len(set(texts)) > 1))
def test_every_text_is_another(texts: list[str]) -> None:
    wrong = spoil_texts(texts, Control.WRONG_TEXT)
    assert len(wrong) == len(texts)
    assert all(one != other for one, other in zip(wrong, texts, strict=True))
    assert spoil_texts(texts, Control.SHUFFLED) == texts


def test_texts_rotate() -> None:
    assert spoil_texts(["a", "b", "c"], Control.WRONG_TEXT) == ["b", "c", "a"]


def test_what_cannot_be_spoiled_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="two different sentences"):
        spoil_texts(["same", "same"], Control.WRONG_TEXT)
    with pytest.raises(InvalidRequest, match="'noisy' is unknown; choose one of shuffled, wrong-text, reversed"):
        parse_control("noisy")
    assert parse_control("wrong_text") is Control.WRONG_TEXT
