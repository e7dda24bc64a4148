"""The test set is what `vivavoce eval` reads: lists, prompts, and recordings of the sentences themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from training.data.speakers import test_speakers as held_out_speakers
from training.data.store import SAMPLE_RATE, Speaker
from training.testset import PROMPTS, write_test_set
from vivavoce.evaluate.cases import read_audio_table, read_seed_tts_list
from vivavoce.service.audio.decode import decode_audio

SENTENCES = ("One.", "Two, or more?", "Three fish.", "Four.", "Five chairs.")
SPEAKERS = held_out_speakers()[:3]


def record(speaker: Speaker, text: str) -> np.ndarray:
    """A tone whose length tells the text, and its pitch the speaker."""
    seconds = np.arange(2400 * len(text)) / SAMPLE_RATE
    return (0.5 * np.sin(2 * np.pi * 100 * speaker.pitch * seconds)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("set") / "new"
    write_test_set(folder, SENTENCES, SPEAKERS, record)
    return folder


def samples_of(path: Path) -> np.ndarray:
    audio = decode_audio(path)
    assert audio.sample_rate == SAMPLE_RATE
    return np.asarray(audio.samples)


def test_the_list_gives_each_sentence_a_speaker_in_turn(folder: Path) -> None:
    cases = read_seed_tts_list(folder / "zero_shot.lst")
    assert [case.text for case in cases] == list(SENTENCES)
    for number, case in enumerate(cases):
        speaker = SPEAKERS[number % 3]
        assert case.prompt_text == PROMPTS[number % 3 % 2]
        assert case.voice is not None
        assert case.truth is not None
        np.testing.assert_allclose(samples_of(Path(case.voice)), record(speaker, case.prompt_text), atol=1e-4)
        np.testing.assert_allclose(samples_of(case.truth), record(speaker, case.text), atol=1e-4)


def test_the_ceiling_holds_the_same_recordings(folder: Path) -> None:
    truths = [case.truth for case in read_seed_tts_list(folder / "zero_shot.lst")]
    ceiling = read_audio_table(folder / "source.tsv")
    assert [case.audio for case in ceiling] == truths
    assert [case.text for case in ceiling] == list(SENTENCES)


def test_a_prompt_is_no_test_sentence() -> None:
    held_out = Path(__file__).parents[2] / "benchmarks" / "sentences" / "held_out.txt"
    assert not set(PROMPTS) & set(held_out.read_text(encoding="utf-8").splitlines())
