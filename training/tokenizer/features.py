"""Part of the corpus as the tokenizer's training sees it: features and phones on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.data.store import FEATURES_PER_TOKEN, MELS_PER_TOKEN, Corpus
from training.tokenizer.model import NUM_BINS
from training.utterances import equal_length_batches, exact_float32, heard
from vivavoce.models.features.whisper_mel import whisper_log_mel


@dataclass(frozen=True, eq=False)
class Features:
    """Utterances one after another, ordered by speaker, on one device.

    mel: float16 [tokens · 4, 128]; phones: uint8 [tokens · 2];
    speakers: int64 [n], indices into the corpus's speakers; first, last: int64 [n], the tokens of each.
    """

    mel: Tensor
    phones: Tensor
    speakers: Tensor
    first: Tensor
    last: Tensor

    def cut(self, starts: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """Features [batch, 128, tokens · 4] float32 and phones [batch, tokens · 2] int64 from tokens `starts`."""
        mel = self.mel[_positions(starts, tokens, FEATURES_PER_TOKEN)].float()
        return mel.transpose(1, 2), self.phones[_positions(starts, tokens, MELS_PER_TOKEN)].long()

    def draw(self, batch: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Random `starts` [batch] of crops within one speaker, and the speaker of each [batch], both int64.

        Every speaker that has a crop's length is as likely as any other.
        """
        device = self.first.device
        row = torch.randint(len(self.first), (batch,), device=device)
        room = self.last[row] - self.first[row] - tokens + 1
        offset = (torch.rand(batch, dtype=torch.float64, device=device) * room).long()
        return self.first[row] + offset, self.speakers[row]


def _positions(starts: Tensor, tokens: int, per_token: int) -> Tensor:
    return starts[:, None] * per_token + torch.arange(tokens * per_token, device=starts.device)


def load_features(
    corpus: Corpus, utterances: NDArray[np.int64], device: torch.device, crop_tokens: int
) -> Features:
    """Features of `utterances`, which are ordered by speaker; 1.1 GB on the device for ten hours.

    Speakers with less than a crop stay out of the draw.

    Raises:
        ValueError: no speaker has a crop's length.
    """
    lengths = np.diff(corpus.start)[utterances]
    placed = np.concatenate(([0], np.cumsum(lengths)))
    mel = torch.empty(int(placed[-1]) * FEATURES_PER_TOKEN, NUM_BINS, dtype=torch.float16, device=device)
    frames = mel.view(int(placed[-1]), FEATURES_PER_TOKEN, NUM_BINS)
    with exact_float32():
        for rows in equal_length_batches(corpus, utterances):
            features = whisper_log_mel(heard(corpus, utterances[rows], device)).transpose(1, 2)
            tokens = torch.arange(int(lengths[rows[0]]), device=device)
            at = torch.from_numpy(placed[rows]).to(device)[:, None] + tokens
            frames[at] = features.unflatten(1, (-1, FEATURES_PER_TOKEN)).half()
    phones = torch.from_numpy(_phones(corpus, utterances)).to(device)
    bounds = _speaker_bounds(corpus.speaker[utterances], placed)
    long_enough = bounds[:, 2] - bounds[:, 1] >= crop_tokens
    if not long_enough.any():
        raise ValueError(f"corpus: no speaker has {crop_tokens} tokens; make a longer corpus")
    speakers, first, last = torch.from_numpy(bounds[long_enough]).to(device).unbind(1)
    return Features(mel, phones, speakers, first, last)


def _phones(corpus: Corpus, utterances: NDArray[np.int64]) -> NDArray[np.uint8]:
    starts, ends = corpus.start[utterances] * MELS_PER_TOKEN, corpus.start[utterances + 1] * MELS_PER_TOKEN
    return np.concatenate([corpus.phones[a:b] for a, b in zip(starts, ends, strict=True)])


def _speaker_bounds(speaker: NDArray[np.int32], placed: NDArray[np.int64]) -> NDArray[np.int64]:
    """[speakers, 3]: index, first token, end."""
    first = np.flatnonzero(np.diff(speaker, prepend=-1))
    last = np.append(first[1:], len(speaker))
    return np.stack([speaker[first], placed[first], placed[last]], axis=1).astype(np.int64)
