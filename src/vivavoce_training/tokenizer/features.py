"""Training data of the speech tokenizer on the device: features and labels, cut into crops, and augmentation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vivavoce.models.features import whisper_log_mel
from vivavoce_training.data.store import FEATURES_PER_TOKEN, Corpus
from vivavoce_training.tokenizer.model import NUM_BINS
from vivavoce_training.utterances import Speakers, by_token, chance, find_speakers, positions, uniform


@dataclass(frozen=True, eq=False)
class Features:
    """Utterances one after another, ordered by speaker, on one device.

    mel: float16 [tokens · 4, 128]; labels: int16 [tokens]; speakers: their ranges in tokens.
    """

    mel: Tensor
    labels: Tensor
    speakers: Speakers

    def cut(self, starts: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """Cut crops at tokens `starts`: features [batch, 128, tokens · 4] float32 and labels [batch, tokens] int64."""
        mel = self.mel[positions(starts, tokens, FEATURES_PER_TOKEN)].float()
        return mel.transpose(1, 2), self.labels[positions(starts, tokens, 1)].long()


def load_features(corpus: Corpus, utterances: NDArray[np.int64], device: torch.device, crop_tokens: int) -> Features:
    """Load `utterances`, which are ordered by speaker; 1 GB on the device for ten hours.

    ValueError: no speaker has as much speech as a crop.
    """
    speakers = find_speakers(corpus, utterances, crop_tokens, device)
    mel = by_token(corpus, utterances, device, lambda heard: whisper_log_mel(heard).transpose(1, 2).half())
    starts, ends = corpus.start[utterances], corpus.start[utterances + 1]
    labels = np.concatenate([corpus.labels[a:b] for a, b in zip(starts, ends, strict=True)])
    return Features(mel, torch.from_numpy(labels).to(device), speakers)


UNIT_DECADES = 4.0  # A unit of the features is this many powers of ten, of energy.
RANGE_UNITS = 2.0  # The features' floor is this far below the loudest value.
TOP_HZ = 8000.0

WARP = (0.85, 1.18)
WARP_SHARE = 0.75
LEVEL_UNITS = (-0.8, 0.25)  # Range of added level: -32 to +10 dB, as the corpus is loud already.
TILT_UNITS = 0.3  # Largest rise or fall from the lowest to the highest bin: 12 dB.
FLOOR_UNITS = (-2.0, -0.7)  # Range of background noise: 80 to 28 dB below the loudest value.
NOISE_TILT_UNITS = 0.5
JITTER_UNITS = 0.1
LOW_PASS_SHARE = 0.3
LOWEST_EDGE = 0.55  # Smallest share of the bins that a low-pass keeps; bin 70 of 128 is 2.5 kHz.
BLUR_SHARE = 0.15  # Share of rows; small, as blur hides the harmonics, which show the pitch.


class Augment(nn.Module):
    """Changes features [batch, 128, frames] float32 at random, as recordings differ in voice, device and noise."""

    hertz: Tensor
    height: Tensor

    def __init__(self) -> None:
        super().__init__()
        hertz = _mel_to_hertz(torch.arange(1, NUM_BINS + 1) * _BIN_MELS)
        self.register_buffer("hertz", hertz, persistent=False)
        self.register_buffer("height", torch.linspace(-0.5, 0.5, NUM_BINS), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        loudest = features.amax(dim=(1, 2), keepdim=True)
        view = self._blur(self._warp(features))
        view = view + uniform(view, -TILT_UNITS, TILT_UNITS) * self.height[:, None]
        view = self._low_pass(view, loudest)
        view = self._noise(view, loudest)
        view = torch.maximum(view, view.amax(dim=(1, 2), keepdim=True) - RANGE_UNITS)
        return view + uniform(view, *LEVEL_UNITS)

    def _warp(self, view: Tensor) -> Tensor:
        """Scale all frequencies of a row by one factor, like another vocal tract (VTLP, Jaitly & Hinton 2013)."""
        low, high = math.log(WARP[0]), math.log(WARP[1])
        factor = uniform(view, low, high).exp()
        factor = torch.where(chance(view, WARP_SHARE), factor, 1.0)
        at = _hertz_to_mel(factor[:, 0] * self.hertz) / _BIN_MELS - 1
        at = at.clamp(0, NUM_BINS - 1)
        below = at.floor().clamp(max=NUM_BINS - 2)
        share = (at - below)[..., None]
        index = below.long()[..., None].expand(-1, -1, view.shape[2])
        return torch.lerp(view.gather(1, index), view.gather(1, index + 1), share)

    def _blur(self, view: Tensor) -> Tensor:
        """Blur the harmonics, which show the pitch: mix each bin with its neighbours by a random share, twice."""
        share = uniform(view, 0.0, 1 / 3) * chance(view, BLUR_SHARE)
        for step in (1, 2):
            lower = torch.cat([view[:, :1].expand(-1, step, -1), view[:, :-step]], dim=1)
            upper = torch.cat([view[:, step:], view[:, -1:].expand(-1, step, -1)], dim=1)
            view = (1 - 2 * share) * view + share * (lower + upper)
        return view

    def _low_pass(self, view: Tensor, loudest: Tensor) -> Tensor:
        edge = uniform(view, LOWEST_EDGE, 1.0) - 0.5
        cut = (self.height[:, None] > edge) & chance(view, LOW_PASS_SHARE)
        return torch.where(cut, loudest - RANGE_UNITS, view)

    def _noise(self, view: Tensor, loudest: Tensor) -> Tensor:
        """Add steady noise of a random level and tilt, and a random jitter to each value."""
        floor = loudest + uniform(view, *FLOOR_UNITS)
        floor = floor + uniform(view, -NOISE_TILT_UNITS, NOISE_TILT_UNITS) * self.height[:, None]
        floor = floor + JITTER_UNITS * torch.randn_like(view)
        nepers = UNIT_DECADES * math.log(10)
        mixed = torch.logaddexp(nepers * view, nepers * floor) / nepers
        return mixed + uniform(view, 0.0, JITTER_UNITS) * torch.randn_like(view)


_KNEE_HZ = 1000.0
_KNEE_MEL = 15.0
_LOG_STEP = math.log(6.4) / 27
_BIN_MELS = (_KNEE_MEL + math.log(TOP_HZ / _KNEE_HZ) / _LOG_STEP) / (NUM_BINS + 1)
"""Width of a bin on Slaney's mel scale (see `vivavoce.models.features`): linear to 1 kHz, logarithmic above."""


def _hertz_to_mel(hertz: Tensor) -> Tensor:
    logarithmic = _KNEE_MEL + torch.log(hertz.clamp(min=1.0) / _KNEE_HZ) / _LOG_STEP
    return torch.where(hertz < _KNEE_HZ, hertz * (_KNEE_MEL / _KNEE_HZ), logarithmic)


def _mel_to_hertz(mels: Tensor) -> Tensor:
    logarithmic = _KNEE_HZ * torch.exp(_LOG_STEP * (mels - _KNEE_MEL))
    return torch.where(mels < _KNEE_MEL, mels * (_KNEE_HZ / _KNEE_MEL), logarithmic)
