"""A corpus is the same whatever the number of processes, and a crash costs one utterance."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.training.data.corpus_fakes import FakeFlite, make_fragile_tone, make_nothing, make_tone, make_worker
from vivavoce.errors import InvalidRequest
from vivavoce_training.commands import app
from vivavoce_training.data.build import Progress, build
from vivavoce_training.data.speakers import train_speakers
from vivavoce_training.data.store import TOKEN_SAMPLES, Corpus
from vivavoce_training.data.texts.sentence import is_reserved
from vivavoce_training.data.texts.wordnet import PARTS
from vivavoce_training.data.workers import ordered_map

ITEMS = [f"item {index}" for index in range(40)]


def test_results_come_in_order() -> None:
    assert list(ordered_map(make_worker, ITEMS, jobs=2)) == [item.upper() for item in ITEMS]


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_crash_loses_the_item_alone(jobs: int) -> None:
    items = [*ITEMS[:5], "crash", *ITEMS[5:20], "crash", "crash", *ITEMS[20:]]
    expected = [None if item == "crash" else item.upper() for item in items]
    assert list(ordered_map(make_worker, items, jobs=jobs)) == expected


def test_a_hang_loses_the_item_alone() -> None:
    items = [*ITEMS[:3], "hang", *ITEMS[3:]]
    expected = [None if item == "hang" else item.upper() for item in items]
    assert list(ordered_map(make_worker, items, jobs=2, patience_s=1.0)) == expected


def test_a_bug_is_raised() -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError: a bug"):
        list(ordered_map(make_worker, ["a", "raise", "b"], jobs=1))


def test_a_worker_that_cannot_start_is_raised() -> None:
    with pytest.raises(RuntimeError, match="no library"):
        list(ordered_map(make_nothing, ITEMS, jobs=1))


def test_items_may_be_without_end() -> None:
    results = ordered_map(make_worker, (str(number) for number in count()), jobs=2)
    assert list(islice(results, 300)) == [str(number) for number in range(300)]
    results.close()


def test_no_items_no_results() -> None:
    assert list(ordered_map(make_worker, [], jobs=2)) == []


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


def synsets(part: str) -> Iterator[str]:
    for number in range(200):
        word = part + number * "x"
        yield f'00001740 03 n 02 word 0 River 0 000 | a word of the kind {word}; "the River has a word {word}"\n'


@pytest.fixture
def wordnet(tmp_path: Path) -> Path:
    folder = tmp_path / "wordnet"
    folder.mkdir()
    for part in PARTS:
        (folder / f"data.{part}").write_text("".join(synsets(part)), encoding="utf-8")
    return folder


def run(*arguments: object) -> None:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output


def test_corpus(
    wordnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("vivavoce_training.data.flite.Flite", FakeFlite)
    with caplog.at_level(logging.INFO, logger="training"):
        run("corpus", tmp_path / "out", "--hours", 0.01, "--speakers", 8, "--jobs", 1, "--wordnet", wordnet)
    corpus = Corpus.open(tmp_path / "out")
    assert corpus.hours >= 0.01
    assert len(corpus.speakers) == 8
    assert f"corpus: {len(corpus)} utterances, 0.01 hours, 8 speakers" in caplog.text


def test_sentences_only(wordnet: Path, tmp_path: Path) -> None:
    run("corpus", tmp_path / "out", "--sentences-only", 50, "--wordnet", wordnet)
    lines = (tmp_path / "out" / "sentences.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 50
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["sentences.txt"]


def test_test_sentences(wordnet: Path, tmp_path: Path) -> None:
    run("sentences", tmp_path / "tests.txt", "--count", 4, "--wordnet", wordnet)
    lines = (tmp_path / "tests.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 4
    assert all(is_reserved(line) for line in lines)


def test_test_sentences_of_known_words(wordnet: Path, tmp_path: Path) -> None:
    dictionary = Path(__file__).parent / "known_words.txt"
    known = tmp_path / "dictionary.txt"
    known.write_text("".join(f"{word} PH OH N\n" for word in dictionary.read_text().split()), encoding="utf-8")
    result = CliRunner().invoke(
        app, ["sentences", str(tmp_path / "x"), "--known-words", str(known), "--wordnet", str(wordnet)]
    )
    assert isinstance(result.exception, InvalidRequest)  # the made-up examples hold unknown words
    assert "examples, there are 0" in str(result.exception)
