"""Training sequences of the language model: the layouts, and that a decode meets what was trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from training.configs import mini_config
from training.data.store import Corpus, Speaker, write_array, write_corpus
from training.lm.sequences import (
    CONTROL,
    IGNORED,
    PAD,
    SPEECH,
    TEXT,
    Mix,
    Rows,
    arriving_text,
    build_rows,
    validation_texts,
    whole_text,
)
from vivavoce.models.lm.interleave import Row, RowKind, TextInterleaver

CONFIG = mini_config().lm
EOS, FILL = CONFIG.vocabulary.eos, CONFIG.vocabulary.fill


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    """80 utterances of 4 speakers; a speech token tells its utterance."""
    lengths = [8 + number % 5 for number in range(80)]
    total = sum(lengths)
    made = write_corpus(
        tmp_path,
        np.zeros(total * 960, np.int16),
        np.zeros(total * 2, np.uint8),
        lengths,
        [number % 4 for number in range(80)],
        [f"text {number}" for number in range(80)],
        [Speaker(f"s{number}", "slt") for number in range(4)],
    )
    write_array(tmp_path / "tokens.npy", np.repeat(np.arange(80, dtype=np.int16), lengths))
    return made


def encode(text: str) -> list[int]:
    return [ord(character) for character in text]


def test_whole_text() -> None:
    row = whole_text([7, 8], [1, 2, 3], CONFIG)
    assert row == [
        (CONTROL, 0, IGNORED),
        (TEXT, 7, IGNORED),
        (TEXT, 8, IGNORED),
        (CONTROL, 1, 1),
        (SPEECH, 1, 2),
        (SPEECH, 2, 3),
        (SPEECH, 3, EOS),
    ]


def test_arriving_text_is_what_a_stream_feeds() -> None:
    """The interleaver of the engine walks through the sequence and finds its own rows in it."""
    text, speech = list(range(20, 32)), list(range(100, 140))
    row = arriving_text(text, speech, CONFIG)
    interleaver = TextInterleaver(CONFIG.vocabulary, (CONFIG.mix_text, CONFIG.mix_speech))
    interleaver.push(text)
    kinds = {RowKind.CONTROL: CONTROL, RowKind.TEXT: TEXT, RowKind.SPEECH: SPEECH}
    fed: list[Row] = []
    position = 0
    while not interleaver.done:
        rows = interleaver.next_rows()
        if rows is None:
            interleaver.close()
            continue
        for one in rows:
            if (kinds[one.kind], one.id) == row[position][:2]:
                position += 1
            else:
                # After a fill, the stream feeds the last token again in front of the text; a trained sequence does not.
                assert one == fed[-1]
            fed.append(one)
        target = row[position - 1][2]
        assert target != IGNORED
        interleaver.accept(target)
    assert position == len(row)
    assert len(fed) == len(row) + 1


def test_arriving_text_needs_speech() -> None:
    with pytest.raises(ValueError, match="14 speech tokens"):
        arriving_text([1, 2, 3, 4, 5], range(14), CONFIG)


def test_rows_hold_whole_utterances_of_one_speaker(corpus: Corpus) -> None:
    rows = build_rows(corpus, encode, CONFIG, (40, 120), 300, seed=1, mix=Mix(arriving=0.0, other_case=0.0))
    assert all(len(one) for one in rows)
    joined = 0
    for one in rows:
        for kinds, ids, targets in zip(one.kinds, one.ids, one.targets, strict=True):
            spoken = ids[kinds == SPEECH].tolist()
            utterances = list(dict.fromkeys(spoken))
            joined += len(utterances) > 1
            assert len({utterance % 4 for utterance in utterances}) == 1
            written = "".join(chr(one_id) for one_id in ids[kinds == TEXT])
            assert written.replace(" text", "text") == "".join(f"text {number}" for number in utterances) or (
                len(utterances) < written.count("text")  # the same utterance twice in a row
            )
            assert targets[kinds == SPEECH][-1] == EOS
            assert (targets[kinds == PAD] == IGNORED).all()
    assert joined > 100


def test_validation_texts_are_kept_apart(corpus: Corpus) -> None:
    kept = validation_texts(corpus.texts)
    held = {number for number, text in enumerate(corpus.texts) if text in kept}
    assert len(held) == 8
    trained = _utterances(build_rows(corpus, encode, CONFIG, (120,), 400, seed=0))
    checked = _utterances(build_rows(corpus, encode, CONFIG, (120,), 50, seed=0, validation=True))
    assert not trained & held
    assert checked <= held


def test_validation_takes_one_text_in_200_and_more_of_few() -> None:
    texts = [f"Text {number}" for number in range(4000)]
    kept = validation_texts(texts)
    assert len(kept) == 20
    assert kept == validation_texts([*reversed(texts), *(text.upper() for text in texts)])
    assert [len(validation_texts(texts[:count])) for count in (9, 10, 50, 80, 1600)] == [0, 1, 5, 8, 8]


def test_a_corpus_too_small_to_measure_by_has_no_rows_for_it(tmp_path: Path) -> None:
    few = write_corpus(
        *(tmp_path, np.zeros(9600, np.int16), np.zeros(20, np.uint8)), [10], [0], ["one text"], [Speaker("s", "slt")]
    )
    write_array(tmp_path / "tokens.npy", np.arange(10, dtype=np.int16))
    assert build_rows(few, encode, CONFIG, (120,), 5, seed=0, validation=True) == []
    assert len(build_rows(few, encode, CONFIG, (120,), 5, seed=0)[0]) == 5


def test_large_vocabularies_fit(corpus: Corpus) -> None:
    (rows,) = build_rows(corpus, lambda text: [151_642], CONFIG, (120,), 5, seed=0)
    assert (rows.ids[rows.kinds == TEXT] == 151_642).all()


def _utterances(rows: list[Rows]) -> set[int]:
    return {int(number) for one in rows for number in one.ids[one.kinds == SPEECH]}


def test_the_same_seed_gives_the_same_rows(corpus: Corpus) -> None:
    first, again, other = (build_rows(corpus, encode, CONFIG, (120,), 20, seed=seed)[0] for seed in (3, 3, 4))
    assert np.array_equal(first.ids, again.ids)
    assert not np.array_equal(first.ids, other.ids)
