"""The commands write what they are asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from tests.training.data.corpus_fakes import FakeFlite
from training.data import command
from training.data.store import Corpus
from training.data.texts.sentence import is_reserved
from training.data.texts.wordnet import PARTS

app = typer.Typer()
app.command()(command.corpus)
app.command()(command.sentences)


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
    monkeypatch.setattr(command, "Flite", FakeFlite)
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
    assert isinstance(result.exception, ValueError)  # the made-up examples hold unknown words
    assert "examples, there are 0" in str(result.exception)
