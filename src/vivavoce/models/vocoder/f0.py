"""Pitch from mel."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import elu

from vivavoce.models.layers.masks import zero_padding
from vivavoce.models.layers.precision import full_precision_convolutions

NUM_CONVS = 5
KERNEL = 3


class F0Predictor(nn.Module):
    """Five convolutions with ELU and one linear layer; the absolute value is the pitch in Hz."""

    def __init__(self, mel_bins: int, channels: int) -> None:
        super().__init__()
        sizes = [mel_bins] + [channels] * NUM_CONVS
        self.convs = nn.ModuleList(
            nn.Conv1d(before, after, KERNEL, padding=KERNEL // 2) for before, after in pairwise(sizes)
        )
        self.out = nn.Linear(channels, 1)

    def forward(self, mel: Tensor, lengths: Tensor | None) -> Tensor:
        """mel: [batch, bins, frames]; lengths: [batch] or None if all are full  →  [batch, frames] Hz, 0 past the end.

        A frame's pitch depends on `NUM_CONVS` frames on either side.
        """
        x = zero_padding(mel, lengths)
        # The source sums the pitch up to phases: an error of a thousandth is half a cycle within a second.
        with full_precision_convolutions():
            for conv in self.convs:
                x = zero_padding(elu(conv(x)), lengths)
        f0 = torch.abs(self.out(x.transpose(1, 2)))[..., 0]
        return zero_padding(f0[:, None], lengths)[:, 0]
