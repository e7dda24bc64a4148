"""Part of the corpus as the speaker encoder's training hears it: waveforms on the device, by speaker."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from training.data.store import Corpus
from training.utterances import (
    HEARD_SAMPLES,
    Speakers,
    equal_length_batches,
    exact_float32,
    find_speakers,
    heard,
    placed_tokens,
)


@dataclass(frozen=True, eq=False)
class Waves:
    """Utterances at 16 kHz one after another, ordered by speaker, on one device.

    samples: int16 [n]; speakers: their places in samples.
    """

    samples: Tensor
    speakers: Speakers

    def draw(self, batch: int, length: int) -> tuple[Tensor, Tensor]:
        """Crops [batch, length] float32 within one speaker each, and the speakers' indices [batch] int64."""
        starts, speaker = self.speakers.draw(batch, length)
        crops = self.samples[starts[:, None] + torch.arange(length, device=starts.device)]
        return crops.float() / 32768, speaker


def load_waves(corpus: Corpus, utterances: NDArray[np.int64], device: torch.device, longest: int) -> Waves:
    """Bring `utterances`, which are ordered by speaker, to the device; 1.2 GB for ten hours.

    longest: crop that will be drawn, in samples.

    Raises:
        ValueError: no speaker has so much.
    """
    speakers = find_speakers(corpus, utterances, -(-longest // HEARD_SAMPLES), device, HEARD_SAMPLES)
    placed = placed_tokens(corpus, utterances)
    samples = torch.empty(int(placed[-1]), HEARD_SAMPLES, dtype=torch.int16, device=device)
    with exact_float32():
        for rows in equal_length_batches(corpus, utterances):
            wave = heard(corpus, utterances[rows], device)
            by_token = wave.view(len(wave), -1, HEARD_SAMPLES)
            at = torch.from_numpy(placed[rows]).to(device)[:, None] + torch.arange(by_token.shape[1], device=device)
            samples[at] = (by_token * 32768).round().clamp(-32768, 32767).short()
    return Waves(samples.flatten(), speakers)
