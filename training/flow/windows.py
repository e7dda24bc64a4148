"""Windows of speech for the flow: tokens, mel and speaker, always within one speaker's speech.

The corpus is brought into the order of its speakers once. Then every window of it that lies within one speaker's part
is some seconds of that speaker, with sentences ending and beginning wherever they do: what a prompt followed by an
answer looks like.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.data.store import MELS_PER_TOKEN, Corpus
from training.features import mels_of
from vivavoce.checkpoint.config import MelConfig


@dataclass(frozen=True, eq=False)
class SpeakerMajor:
    """A corpus on the device, speaker by speaker.

    tokens: [tokens] int16; mels: [tokens · 2, bins] float16; first, last: [tokens] int32, where the part of a token's
    speaker begins and ends; utterance_first, utterance_count: [tokens] int32, the range of that speaker's utterances;
    embeddings: [utterances, size] float16.
    """

    tokens: Tensor
    mels: Tensor
    first: Tensor
    last: Tensor
    utterance_first: Tensor
    utterance_count: Tensor
    embeddings: Tensor

    @classmethod
    def load(cls, corpus: Corpus, mel: MelConfig, device: torch.device) -> SpeakerMajor:
        """Reorder the corpus and compute its mels on the device."""
        order = np.argsort(corpus.speaker, kind="stable")
        lengths = np.diff(corpus.start)[order]
        speaker = corpus.speaker[order]
        grid = _grid(corpus.start[:-1][order], lengths)
        mels = mels_of(corpus, mel, device)
        by_frame = torch.from_numpy((grid[:, None] * MELS_PER_TOKEN + np.arange(MELS_PER_TOKEN)).reshape(-1))
        of_token = np.repeat(speaker, lengths)
        sizes = np.bincount(of_token, minlength=len(corpus.speakers))
        ends = np.cumsum(sizes)
        counts = np.bincount(speaker, minlength=len(corpus.speakers))
        before = np.cumsum(counts) - counts

        def placed(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(array.astype(np.int32)).to(device)

        return cls(
            tokens=torch.from_numpy(np.asarray(corpus.tokens)[grid]).to(device),
            mels=mels[by_frame.to(device)],
            first=placed((ends - sizes)[of_token]),
            last=placed(ends[of_token]),
            utterance_first=placed(before[of_token]),
            utterance_count=placed(counts[of_token]),
            embeddings=torch.from_numpy(np.asarray(corpus.embeddings)[order]).to(device),
        )

    def draw(self, batch: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Random windows of `size` tokens: tokens [batch, size] int64, mel [batch, 2 · size, bins] float32, embedding
        [batch, size of embeddings] float32 of another utterance of the speaker.
        """
        device = self.tokens.device
        anywhere = torch.randint(len(self.tokens), (batch,), device=device)
        begin = torch.maximum(torch.minimum(anywhere, self.last[anywhere] - size), self.first[anywhere])
        # A speaker with less speech than a window lends from the next one.
        begin = begin.clamp(max=len(self.tokens) - size).long()
        places = begin[:, None] + torch.arange(size, device=device)
        frames = begin[:, None] * MELS_PER_TOKEN + torch.arange(size * MELS_PER_TOKEN, device=device)
        share = torch.rand(batch, device=device)
        utterance = self.utterance_first[anywhere] + (share * self.utterance_count[anywhere]).long()
        utterance = utterance.clamp(max=len(self.embeddings) - 1)
        return self.tokens[places].long(), self.mels[frames].float(), self.embeddings[utterance].float()


def _grid(starts: NDArray[Any], lengths: NDArray[Any]) -> NDArray[Any]:
    """Token positions of ranges, one after another."""
    ends = np.cumsum(lengths)
    shifts = np.repeat(starts - (ends - lengths), lengths)
    positions: NDArray[Any] = np.arange(ends[-1]) + shifts
    return positions
