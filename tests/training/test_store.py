"""The corpus on disk: what is written is what is opened, whole or utterance by utterance."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from training.data.render import Utterance
from training.data.store import Corpus, Speaker, write_array, write_corpus
from training.data.writer import CorpusWriter

LENGTHS = [3, 1, 2]
WAV = np.arange(6 * 960, dtype=np.int16)
PHONES = np.arange(6 * 2, dtype=np.uint8)
TEXTS = ["a", "naïve “b”", "c"]
SPEAKERS = [Speaker("s", "slt", tract=1.1, pitch=0.9, tempo=1.05), Speaker("t", "rms")]


def write(folder: Path, **changes: object) -> Corpus:
    arguments = {"wav": WAV, "phones": PHONES, "lengths": LENGTHS, "speaker": [1, 0, 1], "texts": TEXTS}
    return write_corpus(folder, speakers=SPEAKERS, **(arguments | changes))


def test_what_is_written_is_what_is_opened(tmp_path: Path) -> None:
    write(tmp_path)
    corpus = Corpus.open(tmp_path)
    assert len(corpus) == 3
    assert corpus.num_tokens == 6
    assert corpus.hours == pytest.approx(0.24 / 3600)
    assert corpus.start.tolist() == [0, 3, 4, 6]
    assert corpus.speaker.tolist() == [1, 0, 1]
    assert (corpus.texts, corpus.speakers) == (TEXTS, SPEAKERS)
    assert np.array_equal(corpus.wav, WAV)
    assert np.array_equal(corpus.phones, PHONES)


def test_utterance_by_utterance_makes_the_same_files(tmp_path: Path) -> None:
    write(tmp_path / "whole")
    with closing(CorpusWriter(tmp_path / "pieces", SPEAKERS)) as writer:
        for length, end, speaker, text in zip(LENGTHS, np.cumsum(LENGTHS), [1, 0, 1], TEXTS, strict=True):
            first = end - length
            utterance = Utterance(WAV[first * 960 : end * 960], PHONES[first * 2 : end * 2])
            writer.append(utterance, speaker, text)
        assert (writer.num_tokens, writer.num_utterances) == (6, 3)
        pieces = writer.finish()
    names = {path.name for path in (tmp_path / "whole").iterdir()}
    assert names == {path.name for path in pieces.folder.iterdir()}
    for name in names - {"wav.npy", "phones.npy"}:
        assert (pieces.folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert np.array_equal(pieces.wav, WAV)
    assert np.array_equal(pieces.phones, PHONES)


def test_an_unfinished_corpus_cannot_be_opened(tmp_path: Path) -> None:
    with closing(CorpusWriter(tmp_path, SPEAKERS)) as writer:
        writer.append(Utterance(WAV, PHONES), 0, "a")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError, match=r"wav\.npy"):
        Corpus.open(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wav": WAV[:-1]}, "5759 samples and 12 phones do not make 6 tokens"),
        ({"phones": PHONES[:-1]}, "5760 samples and 11 phones do not make 6 tokens"),
        ({"texts": TEXTS[:2]}, "3 lengths, 3 speakers and 2 texts differ in number"),
    ],
)
def test_arrays_that_do_not_fit(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        write(tmp_path, **changes)


def test_later_stages_add_arrays(tmp_path: Path) -> None:
    corpus = write(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"tokens\.npy"):
        _ = corpus.tokens
    write_array(tmp_path / "tokens.npy", np.arange(6, dtype=np.int16))
    assert corpus.tokens.tolist() == [0, 1, 2, 3, 4, 5]
    assert not list(tmp_path.glob(".*"))
