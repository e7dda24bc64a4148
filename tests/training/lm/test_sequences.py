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
    is_validation,
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
    position, closed = 0, False
    while not interleaver.done:
        rows = interleaver.next_rows()
        if rows is None:
            assert not closed
            interleaver.close()
            closed = True
            continue
        # After a fill, the stream feeds the last token again in front of the text; a trained sequence does not.
        fed = [one for one in rows if not _is_repeated(one, row, position, kinds)]
        for one in fed:
            assert row[position][:2] == (kinds[one.kind], one.id)
            position += 1
        target = row[position - 1][2]
        interleaver.accept(target)
    assert position == len(row)


def _is_repeated(one: Row, row: list[tuple[int, int, int]], position: int, kinds: dict[RowKind, int]) -> bool:
    return position < len(row) and (kinds[one.kind], one.id) != row[position][:2]


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
    held = {number for number, text in enumerate(corpus.texts) if is_validation(text)}
    assert held
    trained = _utterances(build_rows(corpus, encode, CONFIG, (120,), 400, seed=0))
    checked = _utterances(build_rows(corpus, encode, CONFIG, (120,), 50, seed=0, validation=True))
    assert not trained & held
    assert checked <= held


def _utterances(rows: list[Rows]) -> set[int]:
    return {int(number) for one in rows for number in one.ids[one.kinds == SPEECH]}


def test_the_same_seed_gives_the_same_rows(corpus: Corpus) -> None:
    first, again, other = (build_rows(corpus, encode, CONFIG, (120,), 20, seed=seed)[0] for seed in (3, 3, 4))
    assert np.array_equal(first.ids, again.ids)
    assert not np.array_equal(first.ids, other.ids)
