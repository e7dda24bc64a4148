"""Part of the corpus as the tokenizer's training sees it: features and phones on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.data.store import FEATURES_PER_TOKEN, MELS_PER_TOKEN, Corpus
from training.tokenizer.model import NUM_BINS
from training.utterances import (
    Speakers,
    equal_length_batches,
    exact_float32,
    find_speakers,
    heard,
    placed_tokens,
)
from vivavoce.models.features.whisper_mel import whisper_log_mel


@dataclass(frozen=True, eq=False)
class Features:
    """Utterances one after another, ordered by speaker, on one device.

    mel: float16 [tokens · 4, 128]; phones: uint8 [tokens · 2]; speakers: their places in tokens.
    """

    mel: Tensor
    phones: Tensor
    speakers: Speakers

    def cut(self, starts: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """Features [batch, 128, tokens · 4] float32 and phones [batch, tokens · 2] int64 from tokens `starts`."""
        mel = self.mel[_positions(starts, tokens, FEATURES_PER_TOKEN)].float()
        return mel.transpose(1, 2), self.phones[_positions(starts, tokens, MELS_PER_TOKEN)].long()


def _positions(starts: Tensor, tokens: int, per_token: int) -> Tensor:
    return starts[:, None] * per_token + torch.arange(tokens * per_token, device=starts.device)


def load_features(corpus: Corpus, utterances: NDArray[np.int64], device: torch.device, crop_tokens: int) -> Features:
    """Features of `utterances`, which are ordered by speaker; 1 GB on the device for ten hours.

    Raises:
        ValueError: no speaker has a crop's length.
    """
    speakers = find_speakers(corpus, utterances, crop_tokens, device)
    placed = placed_tokens(corpus, utterances)
    num_tokens = int(placed[-1])
    mel = torch.empty(num_tokens, FEATURES_PER_TOKEN, NUM_BINS, dtype=torch.float16, device=device)
    with exact_float32():
        for rows in equal_length_batches(corpus, utterances):
            features = whisper_log_mel(heard(corpus, utterances[rows], device)).transpose(1, 2)
            by_token = features.reshape(len(features), -1, FEATURES_PER_TOKEN, NUM_BINS)
            at = torch.from_numpy(placed[rows]).to(device)[:, None] + torch.arange(by_token.shape[1], device=device)
            mel[at] = by_token.half()
    phones = torch.from_numpy(_phones(corpus, utterances)).to(device)
    return Features(mel.flatten(0, 1), phones, speakers)


def _phones(corpus: Corpus, utterances: NDArray[np.int64]) -> NDArray[np.uint8]:
    starts, ends = corpus.start[utterances] * MELS_PER_TOKEN, corpus.start[utterances + 1] * MELS_PER_TOKEN
    return np.concatenate([corpus.phones[a:b] for a, b in zip(starts, ends, strict=True)])
