"""A corpus is the same whatever the number of processes, and a crash costs one utterance."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import numpy as np
import pytest

from tests.training.data.corpus_fakes import make_fragile_tone, make_tone
from training.data.build import Progress, build
from training.data.speakers import train_speakers
from training.data.store import TOKEN_SAMPLES, Corpus

HOURS = 0.02
SPEAKERS = train_speakers(6, 1)


def texts() -> object:
    return (f"This is sentence {'x' * (number % 7)}." for number in count())


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return build(tmp_path_factory.mktemp("one"), HOURS, SPEAKERS, texts(), 5, 1, make_tone)


def test_as_long_as_asked_and_whole(corpus: Corpus) -> None:
    assert HOURS <= corpus.hours < HOURS + 0.001
    assert len(corpus.wav) == corpus.num_tokens * TOKEN_SAMPLES
    assert len(corpus.phones) == corpus.num_tokens * 2
    assert len(corpus.texts) == len(corpus.speaker) == len(corpus.start) - 1
    assert corpus.speakers == SPEAKERS
    assert np.all(np.diff(corpus.start) > 0)


def test_speakers_take_turns(corpus: Corpus) -> None:
    rounds = len(corpus) // len(SPEAKERS)
    assert rounds > 3
    for turn in range(rounds):
        assert sorted(corpus.speaker[turn * 6 : turn * 6 + 6].tolist()) == [0, 1, 2, 3, 4, 5]
    assert corpus.speaker[:6].tolist() != corpus.speaker[6:12].tolist()


def test_every_utterance_holds_its_sound(corpus: Corpus) -> None:
    for index in range(len(corpus)):
        start, end = corpus.start[index : index + 2]
        peak = np.abs(corpus.wav[start * TOKEN_SAMPLES : end * TOKEN_SAMPLES].astype(int)).max()
        assert 0.49 * 32768 < peak < 0.91 * 32768
        assert corpus.phones[2 * start : 2 * end].any()


def test_the_number_of_processes_does_not_matter(corpus: Corpus, tmp_path: Path) -> None:
    other = build(tmp_path, HOURS, SPEAKERS, texts(), 5, 3, make_tone)
    for name in ("wav", "phones", "start", "speaker"):
        assert np.array_equal(getattr(other, name), getattr(corpus, name)), name
    assert other.texts == corpus.texts
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["wav.npy", "phones.npy", "start.npy", "speaker.npy", "texts.json", "speakers.json"]
    )


def test_the_seed_matters(corpus: Corpus, tmp_path: Path) -> None:
    other = build(tmp_path, HOURS, SPEAKERS, texts(), 6, 1, make_tone)
    assert not np.array_equal(other.wav[:5000], corpus.wav[:5000])


def test_bad_texts_are_left_out_and_counted(tmp_path: Path) -> None:
    seen: list[Progress] = []
    bad = (
        "crash" if number == 20 else "..." if number == 30 else f"A sentence like number {'x' * (number % 5)}."
        for number in count()
    )
    corpus = build(tmp_path, 0.05, SPEAKERS, bad, 1, 2, make_fragile_tone, seen.append)
    assert len(corpus) > 100
    assert not {"crash", "..."} & set(corpus.texts)
    assert seen[-1] == Progress(corpus.hours, len(corpus), 2)


def test_a_broken_synthesiser_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="of 100 texts could not be spoken"):
        build(tmp_path, 1.0, SPEAKERS, ("..." for _ in count()), 1, 1, make_tone)
    assert list(tmp_path.iterdir()) == []


def test_texts_must_suffice(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"they end after 0\.00\d of 1\.0 hours"):
        build(tmp_path, 1.0, SPEAKERS, ["One sentence.", "Two sentences."], 1, 1, make_tone)
