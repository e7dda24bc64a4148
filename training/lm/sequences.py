"""Utterances → training sequences of the language model, in rows of a few fixed lengths.

Two layouts, as CosyVoice2 trains them (arXiv:2412.10117, section 2.2):

    whole text    [start] text … [task] speech … → … [end]
    text arriving [start] 5 text, 15 speech → fill, 5 text, 15 speech → fill, … rest of text [task] rest … → end

Most rows join utterances of one speaker, because that is what cloning asks for: the transcript of a recording and the
text in one piece, the recording's tokens, and then what follows from them.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training.data.store import Corpus
from vivavoce.checkpoint.config import LMConfig

PAD, CONTROL, TEXT, SPEECH = range(4)
IGNORED = -100
"""Target of positions that predict nothing."""

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class Mix:
    """How sequences are put together; shares lie in [0, 1]."""

    joined: float = 0.6
    """Share of rows that hold several utterances."""
    most: int = 4
    """Utterances in one row, at most."""
    arriving: float = 0.15
    """Share of rows laid out for text that arrives in pieces."""
    other_case: float = 0.15
    """Share of texts in lower or upper case only."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Sequences padded to one length.

    kinds: uint8 [n, length], one of PAD, CONTROL, TEXT, SPEECH; ids: int32 [n, length], in the table of the kind;
    targets: int16 [n, length], what is to be predicted at each position, or IGNORED.
    """

    kinds: NDArray[np.uint8]
    ids: NDArray[np.int32]
    targets: NDArray[np.int16]

    @property
    def length(self) -> int:
        """Positions of a row."""
        return int(self.kinds.shape[1])

    def __len__(self) -> int:
        return len(self.kinds)


def validation_texts(texts: Sequence[str]) -> frozenset[str]:
    """Texts, in lower case, that are kept out of training to measure it: 1 in 200, chosen by their hashes.

    Small corpora give up to eight, but not more than 1 in 10.
    """
    distinct = sorted({text.lower() for text in texts}, key=lambda text: hashlib.md5(text.encode()).digest())
    return frozenset(distinct[: max(len(distinct) // 200, min(8, len(distinct) // 10))])


def whole_text(text: Sequence[int], speech: Sequence[int], config: LMConfig) -> list[tuple[int, int, int]]:
    """(kind, id, target) of each position, the whole text before the speech."""
    vocabulary = config.vocabulary
    row = [(CONTROL, vocabulary.sos, IGNORED)]
    row += [(TEXT, token, IGNORED) for token in text]
    return row + _speech([(CONTROL, vocabulary.task)], speech, vocabulary.eos)


def arriving_text(text: Sequence[int], speech: Sequence[int], config: LMConfig) -> list[tuple[int, int, int]]:
    """(kind, id, target) of each position, the text in blocks between blocks of speech.

    Raises:
        ValueError: the speech is too short for the blocks.
    """
    vocabulary, few, many = config.vocabulary, config.mix_text, config.mix_speech
    blocks = len(text) // few
    if len(speech) < blocks * many:
        raise ValueError(f"{len(speech)} speech tokens are fewer than {blocks} blocks of {many}")
    row = [(CONTROL, vocabulary.sos, IGNORED)]
    for block in range(blocks):
        *first, last = text[block * few : (block + 1) * few]
        row += [(TEXT, token, IGNORED) for token in first]
        row += _speech([(TEXT, last)], speech[block * many : (block + 1) * many], vocabulary.fill)
    row += [(TEXT, token, IGNORED) for token in text[blocks * few :]]
    return row + _speech([(CONTROL, vocabulary.task)], speech[blocks * many :], vocabulary.eos)


def _speech(before: list[tuple[int, int]], speech: Sequence[int], end: int) -> list[tuple[int, int, int]]:
    """Each position predicts the next token; `before` the first, and the last one `end`."""
    positions = before + [(SPEECH, token) for token in speech]
    return [(kind, token, target) for (kind, token), target in zip(positions, [*speech, end], strict=True)]


def build_rows(
    corpus: Corpus,
    encode: Encode,
    config: LMConfig,
    lengths: Sequence[int],
    count: int,
    seed: int,
    mix: Mix = Mix(),
    validation: bool = False,
) -> list[Rows]:
    """Draw `count` sequences and sort them into rows of the smallest of `lengths` that holds them.

    A row takes as many of its utterances as there is room for; a single one that is too long is left out. Of a corpus
    that is too small to keep any text for validation there are no rows for it.
    """
    tokens = np.asarray(corpus.tokens)
    rng = random.Random(seed)
    kept = validation_texts(corpus.texts)
    chosen = [number for number, text in enumerate(corpus.texts) if (text.lower() in kept) is validation]
    if not chosen:
        return []
    by_speaker: dict[int, list[int]] = {}
    for number in chosen:
        by_speaker.setdefault(int(corpus.speaker[number]), []).append(number)
    filed: list[list[list[tuple[int, int, int]]]] = [[] for _ in lengths]
    for _ in range(count):
        utterances = [rng.choice(chosen)]
        if rng.random() < mix.joined:
            others = by_speaker[int(corpus.speaker[utterances[0]])]
            utterances += rng.choices(others, k=rng.randint(1, mix.most - 1))
        arriving = rng.random() < mix.arriving
        text, speech = _joined(corpus, tokens, utterances, encode, mix, rng, max(lengths) - 2)
        ready = arriving and len(speech) >= len(text) // config.mix_text * config.mix_speech
        row = (arriving_text if ready else whole_text)(text, speech, config)
        place = next((place for place, length in enumerate(lengths) if len(row) <= length), None)
        if place is not None:
            filed[place].append(row)
    return [_padded(rows, length) for rows, length in zip(filed, lengths, strict=True)]


def _joined(
    corpus: Corpus,
    tokens: NDArray[np.int16],
    utterances: Sequence[int],
    encode: Encode,
    mix: Mix,
    rng: random.Random,
    room: int,
) -> tuple[list[int], list[int]]:
    """Text ids and speech tokens of the utterances one after another, as many of them as there is room for."""
    text: list[int] = []
    speech: list[int] = []
    for utterance in utterances:
        words = _case(corpus.texts[utterance], mix.other_case, rng)
        # A transcript and a text meet without a space, sentences of one text with one.
        separator = " " if text and rng.random() < 0.5 else ""
        ids = encode(separator + words)
        spoken = tokens[corpus.start[utterance] : corpus.start[utterance + 1]].tolist()
        if text and len(text) + len(speech) + len(ids) + len(spoken) > room:
            break
        text += ids
        speech += spoken
    return text, speech


def _case(text: str, share: float, rng: random.Random) -> str:
    draw = rng.random()
    if draw < share * 0.75:
        return text.lower()
    return text.upper() if draw < share else text


def _padded(rows: Sequence[Sequence[tuple[int, int, int]]], length: int) -> Rows:
    filled = np.zeros((len(rows), length, 3), np.int32)
    filled[..., 2] = IGNORED
    for number, row in enumerate(rows):
        filled[number, : len(row)] = row
    return Rows(filled[..., 0].astype(np.uint8), filled[..., 1].copy(), filled[..., 2].astype(np.int16))
