"""PocketSphinx reads real speech back; spoiled speech it cannot read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pocketsphinx", reason="needs the extra eval")

from vivavoce.errors import MissingDependency
from vivavoce.evaluate import PocketSphinx, word_errors
from vivavoce.evaluate.audio_files import read_recording
from vivavoce.evaluate.controls import Control, spoil_audio
from vivavoce.evaluate.edits import phone_errors
from vivavoce.evaluate.recogniser import Samples, as_floats, prepare
from vivavoce.evaluate.sentences import SENTENCES
from vivavoce.evaluate.wording import words

CLIP = Path(__file__).parents[1] / "data" / "evaluate" / "eleven_forty_two.flac"
TEXT = "It is eleven forty two in Boston."


@pytest.fixture(scope="module")
def sphinx() -> PocketSphinx:
    return PocketSphinx()


@pytest.fixture(scope="module")
def speech() -> Samples:
    return as_floats(prepare(*read_recording(CLIP)))


def test_free_words(sphinx: PocketSphinx, speech: Samples) -> None:
    assert sphinx.transcribe(speech) == "it is eleven forty two in boston"


def test_order_does_not_matter(sphinx: PocketSphinx, speech: Samples) -> None:
    first = sphinx.phones(speech)
    sphinx.phones(
        as_floats(prepare(0.01 * np.random.default_rng(0).standard_normal(16_000).astype(np.float32), 16_000))
    )
    assert sphinx.phones(speech) == first


def test_closed_words(sphinx: PocketSphinx, speech: Samples) -> None:
    closed = sphinx.closed([words(TEXT), ["the", "dog", "barked", "qqzz"]])
    assert word_errors([(TEXT, closed.transcribe(speech))]).errors == 0
    samples, rate = read_recording(CLIP)
    reversed_speech = as_floats(prepare(spoil_audio(samples, rate, Control.REVERSED), rate))
    assert word_errors([(TEXT, closed.transcribe(reversed_speech))]).rate > 0.6


def test_phones(sphinx: PocketSphinx, speech: Samples) -> None:
    errors, total = phone_errors([sphinx.pronunciations(word) for word in words(TEXT)], sphinx.phones(speech))
    assert total == 25
    assert errors / total < 0.4


def test_pronunciations(sphinx: PocketSphinx) -> None:
    assert sphinx.pronunciations("boston") == [["B", "AA", "S", "T", "AH", "N"], ["B", "AO", "S", "T", "AH", "N"]]
    assert sphinx.pronunciations("qqzz") == []
    assert sphinx.pronunciations("你好") == []


def test_the_built_in_sentences_are_in_its_dictionary(sphinx: PocketSphinx) -> None:
    assert [word for sentence in SENTENCES for word in words(sentence) if not sphinx.pronunciations(word)] == []
    assert len(set(SENTENCES)) == 20


def test_without_the_package_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pocketsphinx", None)
    with pytest.raises(MissingDependency, match=r"pip install 'vivavoce\[eval\]'"):
        PocketSphinx()
