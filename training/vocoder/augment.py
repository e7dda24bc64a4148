"""What a real mel lacks of a predicted one: the flow's mels are smoother here, noisier there, louder or softer.

A vocoder that has only met exact mels answers each deviation with a buzz.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from training.vocoder.crops import Crop

NOISE_SHARE, LARGEST_NOISE = 0.5, 0.15
"""Share of the crops that get noise; its largest standard deviation, in natural logarithms of magnitude."""
BLUR_SHARE, LARGEST_BLUR = 0.3, 0.25
"""Share of the crops that are smoothed along time or frequency; the largest weight of a neighbour."""
GAIN_SHARE, LOWEST_GAIN = 0.5, math.log(0.3)
FLOOR = math.log(1e-5)
"""The lowest value of the mel, see `prompt_mel`."""


def augment(crop: Crop) -> Crop:
    """A level for some crops, wave and mel alike; then blur and noise for some, in the mel alone."""
    mel = crop.mel
    gain = _some(mel, GAIN_SHARE) * LOWEST_GAIN
    mel = (mel + gain).clamp(min=FLOOR)
    mel = _blurred(mel, _some(mel, BLUR_SHARE) * LARGEST_BLUR, _some(mel, BLUR_SHARE) * LARGEST_BLUR)
    mel = mel + _some(mel, NOISE_SHARE) * LARGEST_NOISE * torch.randn_like(mel)
    return Crop(crop.wave * gain[:, 0].exp(), mel, crop.pitch)


def _some(mel: Tensor, share: float) -> Tensor:
    """[batch, 1, 1]: uniform in [0, 1) for this share of the rows, else 0."""
    chosen, value = torch.rand(2, len(mel), 1, 1, device=mel.device)
    some: Tensor = value * (chosen < share)
    return some


def _blurred(mel: Tensor, in_time: Tensor, in_frequency: Tensor) -> Tensor:
    """Each value gives these shares [batch, 1, 1] to its neighbours; [batch, bins, frames]  →  the same."""
    for share, sides in ((in_time, (1, 1, 0, 0)), (in_frequency, (0, 0, 1, 1))):
        wide = pad(mel, sides, mode="replicate")
        before, after = (wide[..., :-2], wide[..., 2:]) if sides[0] else (wide[:, :-2], wide[:, 2:])
        mel = torch.lerp(mel, (before + after) / 2, 2 * share)
    return mel
