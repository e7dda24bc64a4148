"""Mels of a whole corpus, by the package's own front end."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.data.store import MELS_PER_TOKEN, TOKEN_SAMPLES, Corpus
from vivavoce.checkpoint.config import MelConfig
from vivavoce.models.features.mel import prompt_mel

BATCH_TOKENS = 25 * 600
"""Speech tokens in one batch: ten minutes."""


def utterances_by_length(corpus: Corpus, batch_tokens: int = BATCH_TOKENS) -> list[tuple[int, NDArray[np.int64]]]:
    """Batches of utterances of equal length: (tokens of each, their numbers [n] int64)."""
    lengths = np.diff(corpus.start)
    order = np.argsort(lengths, kind="stable")
    batches = []
    for same in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
        size = int(lengths[same[0]])
        most = max(1, batch_tokens // max(1, size))
        batches += [(size, same[first : first + most]) for first in range(0, len(same), most)]
    return batches


def mels_of(corpus: Corpus, config: MelConfig, device: torch.device) -> Tensor:
    """Mel of every utterance as if it stood alone: [tokens · 2, bins] float16 on the device."""
    mels = torch.empty(corpus.num_tokens * MELS_PER_TOKEN, config.num_bins, dtype=torch.float16, device=device)
    for size, numbers in utterances_by_length(corpus):
        if size == 0:
            continue
        starts = corpus.start[numbers]
        # Slices, not one index array: indexing a mapped file sample by sample takes longer than all the rest.
        slices = [corpus.wav[start * TOKEN_SAMPLES : (start + size) * TOKEN_SAMPLES] for start in starts]
        wave = torch.from_numpy(np.stack(slices)).to(device).float() / 32768
        frames = torch.from_numpy(starts).to(device)[:, None] * MELS_PER_TOKEN
        frames = frames + torch.arange(size * MELS_PER_TOKEN, device=device)
        mels[frames] = prompt_mel(wave, config).half()
    return mels
