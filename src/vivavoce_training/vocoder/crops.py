"""Training data of the vocoder on the device: the corpus, crops of it, and their augmentation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from vivavoce.checkpoint.config import MelConfig
from vivavoce_training.data.store import MELS_PER_TOKEN, TOKEN_SAMPLES, Corpus
from vivavoce_training.utterances import chance, mels_of, positions
from vivavoce_training.vocoder.pitch import track_pitch

PIECE_TOKENS = 500
PIECES_AT_ONCE = 64
MARGIN_TOKENS = 8
"""Context on either side of a piece whose pitch is tracked, in tokens; more than the tracker's neighbourhood."""


@dataclass(frozen=True, eq=False)
class Crop:
    """wave: [batch, samples] float32; mel: [batch, bins, frames] float32; pitch: [batch, frames] Hz, 0 unvoiced."""

    wave: Tensor
    mel: Tensor
    pitch: Tensor


@dataclass(frozen=True, eq=False)
class Crops:
    """All utterances, one after another, on one device.

    wave: int16 [tokens · 960]; mel: float16 [tokens · 2, 80]; pitch: float32 [tokens · 2];
    flow_mel: float16 [tokens · 2, 80], the mel that the flow makes of the same speech, or None.
    """

    wave: Tensor
    mel: Tensor
    pitch: Tensor
    flow_mel: Tensor | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.pitch) // MELS_PER_TOKEN

    def cut(self, starts: Tensor, tokens: int, flow_share: float = 0.0) -> Crop:
        """Cut crops of `tokens` tokens at token positions `starts` [batch] int64.

        Each row takes the flow's mel instead of the real mel with the probability `flow_share`.
        """
        frames = positions(starts, tokens, MELS_PER_TOKEN)
        wave = self.wave[positions(starts, tokens, TOKEN_SAMPLES)].float() / 32768
        mel = self.mel[frames].float()
        if self.flow_mel is not None and flow_share > 0:
            from_flow = chance(mel, flow_share)
            mel = torch.where(from_flow, self.flow_mel[frames].float(), mel)
        return Crop(wave, mel.transpose(1, 2), self.pitch[frames])


def load_crops(corpus: Corpus, config: MelConfig, device: torch.device, flow_mels: Path | None = None) -> Crops:
    """Load a corpus (one token or more) to `device`, and compute its mel and pitch there: 2 GiB per 10 hours.

    flow_mels: `.npy`, float16 [tokens · 2, 80], aligned with the corpus; ValueError: it has another shape or dtype.
    """
    wave, mel = _to_device(corpus.wav, device), mels_of(corpus, config, device)
    flow_mel = None
    if flow_mels is not None:
        array = np.load(flow_mels, mmap_mode="r")
        if array.shape != mel.shape or array.dtype != np.float16:
            raise ValueError(
                f"{flow_mels.name}: {array.dtype} {list(array.shape)} does not fit the corpus; "
                f"give float16 {list(mel.shape)}"
            )
        flow_mel = _to_device(array, device)
    return Crops(wave, mel, _pitch_of(wave), flow_mel)


def _to_device(array: NDArray[np.generic], device: torch.device, rows: int = 1 << 26) -> Tensor:
    """Copy a mapped array to the device piece by piece, because it may be larger than the host's free memory."""
    pieces = (torch.from_numpy(np.array(array[i : i + rows])).to(device) for i in range(0, len(array), rows))
    return torch.cat(list(pieces))


def _pitch_of(wave: Tensor) -> Tensor:
    """Track the pitch in pieces, whose margins are cut off. wave: int16 [tokens · 960]  →  Hz [tokens · 2]."""
    tokens = len(wave) // TOKEN_SAMPLES
    within = torch.arange((PIECE_TOKENS + 2 * MARGIN_TOKENS) * TOKEN_SAMPLES, device=wave.device)
    inner = slice(MARGIN_TOKENS * MELS_PER_TOKEN, -MARGIN_TOKENS * MELS_PER_TOKEN)
    found = []
    for starts in torch.split(torch.arange(0, tokens, PIECE_TOKENS, device=wave.device), PIECES_AT_ONCE):
        # Beyond the corpus's ends, its first or last sample is repeated.
        where = (starts[:, None] - MARGIN_TOKENS) * TOKEN_SAMPLES + within
        pieces = wave[where.clamp(0, len(wave) - 1)].float() / 32768
        found.append(track_pitch(pieces)[:, inner].reshape(-1))
    return torch.cat(found)[: tokens * MELS_PER_TOKEN]


def starts_apart_from(held_out: Sequence[tuple[int, int]], num_tokens: int, crop_tokens: int) -> Tensor:
    """Find all token positions [n] int64 where a crop of `crop_tokens` can start without touching `held_out`.

    held_out: ranges of tokens [first, last); ValueError: every crop touches one of these ranges.
    """
    allowed = torch.ones(max(0, num_tokens - crop_tokens + 1), dtype=torch.bool)
    for first, last in held_out:
        allowed[max(0, first - crop_tokens + 1) : last] = False
    starts = allowed.nonzero()[:, 0]
    if not len(starts):
        raise ValueError(f"corpus: {num_tokens} tokens hold no crop of {crop_tokens}; make a longer corpus")
    return starts


NOISE_SHARE, LARGEST_NOISE = 0.5, 0.15
"""Share of the crops that get noise; the noise's largest standard deviation, in natural logarithms of magnitude."""
BLUR_SHARE, LARGEST_BLUR = 0.3, 0.25
"""Share of the crops that are smoothed along time or frequency; the largest weight of a neighbour."""
GAIN_SHARE, LOWEST_GAIN = 0.5, math.log(0.3)
FLOOR = math.log(1e-5)  # the lowest value of the mel, see `prompt_mel`


def augment(crop: Crop) -> Crop:
    """Make some crops quieter, both wave and mel; then blur some crops' mel, and add noise to some crops' mel."""
    mel = crop.mel
    gain = _some(mel, GAIN_SHARE) * LOWEST_GAIN
    mel = (mel + gain).clamp(min=FLOOR)
    mel = _blurred(mel, _some(mel, BLUR_SHARE) * LARGEST_BLUR, _some(mel, BLUR_SHARE) * LARGEST_BLUR)
    mel = mel + _some(mel, NOISE_SHARE) * LARGEST_NOISE * torch.randn_like(mel)
    return Crop(crop.wave * gain[:, 0].exp(), mel, crop.pitch)


def _some(mel: Tensor, share: float) -> Tensor:
    """Draw numbers [batch, 1, 1]: uniform in [0, 1) for this share of the rows, 0 for other rows."""
    chosen, value = torch.rand(2, len(mel), 1, 1, device=mel.device)
    some: Tensor = value * (chosen < share)
    return some


def _blurred(mel: Tensor, in_time: Tensor, in_frequency: Tensor) -> Tensor:
    """Mix each value with its neighbours by these shares [batch, 1, 1]; mel: [batch, bins, frames]  →  same shape."""
    for share, sides in ((in_time, (1, 1, 0, 0)), (in_frequency, (0, 0, 1, 1))):
        wide = pad(mel, sides, mode="replicate")
        before, after = (wide[..., :-2], wide[..., 2:]) if sides[0] else (wide[:, :-2], wide[:, 2:])
        mel = torch.lerp(mel, (before + after) / 2, 2 * share)
    return mel
