"""A corpus in which a phone is a pair of tones and a speaker moves and tints them all."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from vivavoce_training.data.spelling import spell
from vivavoce_training.data.store import SAMPLE_RATE, TOKEN_SAMPLES, Corpus, CorpusWriter, Speaker, Utterance

TONES_HZ = ((300, 900), (500, 1500), (800, 1200), (250, 2400), (600, 3000))
"""Of phones 1 to 5; phone 0 is silence. A speaker's traits are factors on them and on the hum below."""
SPEAKERS = (
    Speaker("low", "a", traits=(0.9, 0.8)),
    Speaker("middle", "a", traits=(1.0, 1.0)),
    Speaker("high", "b", traits=(1.15, 1.25)),
)
_HUM_HZ = 120.0


def write_corpus(
    folder: Path,
    wav: np.ndarray,
    labels: np.ndarray | None,
    lengths: Sequence[int],
    speaker: Sequence[int],
    texts: Sequence[str],
    speakers: Sequence[Speaker],
) -> Corpus:
    """A corpus of whole arrays; lengths: tokens of each utterance."""
    arrays = ("wav",) if labels is None else ("wav", "labels")
    with closing(CorpusWriter(folder, list(speakers), arrays)) as writer:
        for end, length, index, text in zip(np.cumsum(lengths), lengths, speaker, texts, strict=True):
            own = wav[(end - length) * TOKEN_SAMPLES : end * TOKEN_SAMPLES]
            spelled = None if labels is None else labels[end - length : end]
            writer.append(Utterance(int(length), own, spelled), int(index), text)
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
            phones += [np.full(length, phone) for phone, length in zip(spoken, tokens, strict=True)]
            lengths.append(sum(tokens))
            speaker.append(index)
            texts.append(" ".join(map(str, spoken)))
    wave = (np.concatenate(waves) * 32767).astype(np.int16)
    phone = np.concatenate(phones).astype(np.uint8)
    none = np.zeros(len(phone), np.int8)
    labels = spell(phone, none, none.astype(np.float32), none)
    return write_corpus(folder, wave, labels, lengths, speaker, texts, list(SPEAKERS))


def _sound(phone: int, tokens: int, speaker: Speaker) -> np.ndarray:
    turns = 2 * np.pi * np.arange(tokens * TOKEN_SAMPLES) / SAMPLE_RATE
    if phone == 0:
        return 1e-3 * np.sin(turns * 50)
    tones = sum(np.sin(turns * hertz * speaker.traits[0]) for hertz in TONES_HZ[phone - 1])
    return 0.2 * tones + 0.1 * np.sin(turns * _HUM_HZ * speaker.traits[1])
