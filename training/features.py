"""Mels of a whole corpus, by the package's own front end."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from training.data.store import MELS_PER_TOKEN, Corpus
from training.utterances import equal_length_batches, waves
from vivavoce.checkpoint.config import MelConfig
from vivavoce.models.features.mel import prompt_mel

BATCH_TOKENS = 25 * 600
"""Speech tokens in one batch: ten minutes."""


def mels_of(corpus: Corpus, config: MelConfig, device: torch.device) -> Tensor:
    """Mel of every utterance as if it stood alone: [tokens · 2, bins] float16 on the device."""
    mels = torch.empty(corpus.num_tokens * MELS_PER_TOKEN, config.num_bins, dtype=torch.float16, device=device)
    for batch in equal_length_batches(corpus, np.arange(len(corpus)), BATCH_TOKENS):
        made = prompt_mel(waves(corpus, batch, device), config)
        first = torch.from_numpy(corpus.start[batch]).to(device)[:, None] * MELS_PER_TOKEN
        mels[first + torch.arange(made.shape[1], device=device)] = made.half()
    return mels
