"""The corpus on disk: what is written is what is opened, whole or utterance by utterance."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.training.tones import write_corpus
from vivavoce_training.data.store import Corpus, CorpusWriter, Speaker, Utterance, write_array

LENGTHS = [3, 1, 2]
WAV = np.arange(6 * 960, dtype=np.int16)
LABELS = np.arange(3000, 3006, dtype=np.int16)
TEXTS = ["a", "naïve “b”", "c"]
SPEAKERS = [Speaker("s", "af_heart", timbre="af_heart*0.6+af_bella*0.4", traits=(0.5, -1.0)), Speaker("t", "recorded")]


def test_what_is_written_is_what_is_opened(tmp_path: Path) -> None:
    write_corpus(tmp_path, WAV, LABELS, LENGTHS, [1, 0, 1], TEXTS, SPEAKERS)
    corpus = Corpus.open(tmp_path)
    assert len(corpus) == 3
    assert corpus.num_tokens == 6
    assert corpus.hours == pytest.approx(0.24 / 3600)
    assert corpus.start.tolist() == [0, 3, 4, 6]
    assert corpus.speaker.tolist() == [1, 0, 1]
    assert (corpus.texts, corpus.speakers) == (TEXTS, SPEAKERS)
    assert np.array_equal(corpus.wav, WAV)
    assert np.array_equal(corpus.labels, LABELS)
    assert np.array_equal(corpus.tokens, LABELS)
    assert not list(tmp_path.glob(".*"))


def test_without_labels_the_tokens_are_those_that_were_heard(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path, WAV, None, LENGTHS, [1, 0, 1], TEXTS, SPEAKERS)
    with pytest.raises(FileNotFoundError, match=r"tokens\.npy"):
        _ = corpus.tokens
    write_array(tmp_path / "tokens.npy", np.arange(6, dtype=np.int16))
    assert corpus.tokens.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_corpus_for_the_language_model_has_no_waveforms(tmp_path: Path) -> None:
    with closing(CorpusWriter(tmp_path, SPEAKERS, ("labels",))) as writer:
        writer.append(Utterance(6, labels=LABELS), 0, "a")
        corpus = writer.finish()
    assert np.array_equal(corpus.tokens, LABELS)
    with pytest.raises(FileNotFoundError, match=r"wav\.npy"):
        _ = corpus.wav


def test_an_unfinished_corpus_cannot_be_opened(tmp_path: Path) -> None:
    with closing(CorpusWriter(tmp_path, SPEAKERS)) as writer:
        writer.append(Utterance(6, WAV, LABELS), 0, "a")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError, match=r"speakers\.json"):
        Corpus.open(tmp_path)
