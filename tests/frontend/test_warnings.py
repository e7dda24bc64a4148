"""What a verdict admits though all was spoken."""

from __future__ import annotations

import pytest

from vivavoce.frontend.speech import warnings_of
from vivavoce.frontend.text.text_input import parse_language

REPEATS = "repeats itself; models may lose or add repeats, and the words were not checked"


@pytest.mark.parametrize(
    ("text", "repeated"),
    [
        ("Your code is 0004000.", "'0004000'"),
        ("It is 100000 to one.", "'00000'"),
        ("It was very, very, Very very good.", "'very, very, Very very'"),
        ("好好好好学习", "'好好好好'"),
        ("да да да да", "'да да да да'"),
    ],
)
def test_repeats_are_admitted(text: str, repeated: str) -> None:
    assert warnings_of(text, None, ("en", "zh", "ru")) == (f"text: {repeated} {REPEATS}",)


@pytest.mark.parametrize("text", ["No, no, no.", "It is 2000.", "Call 555 1234567.", "", "👍", "12:00:00", "OK"])
def test_other_texts_are_not_spoken_of(text: str) -> None:
    assert warnings_of(text, None, ("en",)) == ()


def test_a_language_that_the_model_does_not_speak_is_named() -> None:
    told = ("text: its language seems to be de, and the model speaks en only",)
    assert warnings_of("Guten Tag, wie geht es Ihnen heute?", None, ("en",)) == told == warnings_of("Hi", "de", ("en",))
    assert warnings_of("Guten Tag, wie geht es Ihnen heute?", None, ("en", "de")) == ()
    told = ("text: its language seems to be zh (which yue is taken for), and the model speaks en only",)
    assert warnings_of("早晨", parse_language("yue"), ("en",)) == told
    assert warnings_of("Hello there.", parse_language("en-GB"), ("en",)) == ()
