"""Whole utterances of the corpus on a device, at the 16 kHz that tokenizer and speaker encoder hear."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.data.store import SAMPLE_RATE, TOKEN_SAMPLES, Corpus
from vivavoce.service.audio.resample import resample_sinc

HEARD_RATE = 16_000
HEARD_SAMPLES = TOKEN_SAMPLES * HEARD_RATE // SAMPLE_RATE
"""Samples of a token at 16 kHz."""
BATCH_TOKENS = 45_000
"""Half an hour of audio: what extraction takes at once."""


def evenly_by_speaker(corpus: Corpus, hours: float, allowed: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
    """Utterances of about `hours` in all, as much from each speaker, ordered by speaker.

    Args:
        corpus: any.
        hours: all utterances if the corpus holds no more.
        allowed: [utterances], which may be taken; all if None.
    """
    order = np.argsort(corpus.speaker, kind="stable")
    if allowed is not None:
        order = order[allowed[order]]
    lengths, speaker = np.diff(corpus.start)[order], corpus.speaker[order]
    if lengths.sum() * TOKEN_SAMPLES <= hours * 3600 * SAMPLE_RATE:
        return order
    share = hours * 3600 * SAMPLE_RATE / TOKEN_SAMPLES / len(np.unique(speaker))
    before = np.cumsum(lengths) - lengths
    first_of_speaker = np.searchsorted(speaker, speaker)
    return order[before - before[first_of_speaker] < share]


def held_out(corpus: Corpus, every: int = 40) -> NDArray[np.bool_]:
    """[utterances]: one of `every`, kept from the training to measure it."""
    return np.arange(len(corpus)) % every == every - 1


def equal_length_batches(
    corpus: Corpus, utterances: NDArray[np.int64], batch_tokens: int = BATCH_TOKENS
) -> Iterator[NDArray[np.int64]]:
    """Positions in `utterances`, in batches of one length that hold `batch_tokens` at most (but one utterance)."""
    lengths = np.diff(corpus.start)[utterances]
    order = np.argsort(lengths, kind="stable")
    for group in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
        if len(group):
            size = max(1, batch_tokens // max(1, int(lengths[group[0]])))
            yield from (group[first : first + size] for first in range(0, len(group), size))


def heard(corpus: Corpus, batch: NDArray[np.int64], device: torch.device) -> Tensor:
    """Samples [batch, tokens · 640], float32 at 16 kHz, of utterances of one length.

    Resampled as prompts are; with `exact_float32`, whatever the device, to the same values.
    """
    starts, ends = corpus.start[batch], corpus.start[batch + 1]
    rows = [corpus.wav[a * TOKEN_SAMPLES : b * TOKEN_SAMPLES] for a, b in zip(starts, ends, strict=True)]
    wave = torch.from_numpy(np.stack(rows)).to(device).float() / 32768
    return resample_sinc(wave, SAMPLE_RATE, HEARD_RATE)


@contextmanager
def exact_float32() -> Iterator[None]:
    """Without TF32, whose ten bits would be heard 60 dB below the loudest value: features reach 80 dB below it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)
