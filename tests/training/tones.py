"""A corpus in which a phone is a pair of tones and a speaker moves and tints them all."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from vivavoce_training.data.store import (
    MELS_PER_TOKEN,
    SAMPLE_RATE,
    TOKEN_SAMPLES,
    Corpus,
    CorpusWriter,
    Speaker,
    Utterance,
)

TONES_HZ = ((300, 900), (500, 1500), (800, 1200), (250, 2400), (600, 3000))
"""Of phones 1 to 5; phone 0 is silence."""
SPEAKERS = (
    Speaker("low", "a", tract=0.9, pitch=0.8),
    Speaker("middle", "a", tract=1.0, pitch=1.0),
    Speaker("high", "b", tract=1.15, pitch=1.25),
)
_HUM_HZ = 120.0


def write_corpus(
    folder: Path,
    wav: np.ndarray,
    phones: np.ndarray,
    lengths: Sequence[int],
    speaker: Sequence[int],
    texts: Sequence[str],
    speakers: Sequence[Speaker],
) -> Corpus:
    """A corpus of whole arrays; lengths: tokens of each utterance."""
    with closing(CorpusWriter(folder, list(speakers))) as writer:
        for end, length, index, text in zip(np.cumsum(lengths), lengths, speaker, texts, strict=True):
            tokens = slice(end - length, end)
            parts = (array.reshape(sum(lengths), -1)[tokens].reshape(-1) for array in (wav, phones))
            writer.append(Utterance(*parts), int(index), text)
        return writer.finish()


def write_tones(folder: Path, utterances_each: int = 6, seed: int = 0) -> Corpus:
    """Utterances of 12 to 14 tokens, each phone three tokens long, those of a speaker side by side."""
    generator = np.random.default_rng(seed)
    waves, phones, lengths, speaker, texts = [], [], [], [], []
    for index, one in enumerate(SPEAKERS):
        for utterance in range(utterances_each):
            spoken = [0, *generator.integers(1, len(TONES_HZ) + 1, 3).tolist()]
            tokens = [3, 3, 3, 3 + utterance % 3]
            waves += [_sound(phone, length, one) for phone, length in zip(spoken, tokens, strict=True)]
            phones += [np.full(length * MELS_PER_TOKEN, phone) for phone, length in zip(spoken, tokens, strict=True)]
            lengths.append(sum(tokens))
            speaker.append(index)
            texts.append(" ".join(map(str, spoken)))
    wave = (np.concatenate(waves) * 32767).astype(np.int16)
    return write_corpus(folder, wave, np.concatenate(phones).astype(np.uint8), lengths, speaker, texts, list(SPEAKERS))


def _sound(phone: int, tokens: int, speaker: Speaker) -> np.ndarray:
    turns = 2 * np.pi * np.arange(tokens * TOKEN_SAMPLES) / SAMPLE_RATE
    if phone == 0:
        return 1e-3 * np.sin(turns * 50)
    tones = sum(np.sin(turns * hertz * speaker.tract) for hertz in TONES_HZ[phone - 1])
    return 0.2 * tones + 0.1 * np.sin(turns * _HUM_HZ * speaker.pitch)
