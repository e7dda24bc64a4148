"""How the pieces of a stream are joined."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from vivavoce.engine.chunk_policy import Joins

OVERLAP_FRAMES = 8
"""Frames at the end of each piece that wait for the next one to be faded into."""
CONTEXT_FRAMES = 12
"""Frames before the overlap that a seamless piece sees again. The generator reaches 13 frames to the left, and the
farthest weighs less than 1e-4 of the whole; without the second farthest, seams of 4e-3 can be measured."""


@dataclass(frozen=True, eq=False)
class JoinRule:
    """What is carried from piece to piece."""

    mel_frames: int
    """Frames seen again, the overlap included."""
    source_frames: int
    """How many of them keep the source that was made for them."""
    fade_frames: int
    """How many frames of the overlap the fade takes; the rest are the new piece's."""
    window: Tensor
    """Fade in, then fade out: [2 · fade_frames · hop] float32."""
    continuous: bool
    """The source's phase runs on from the last kept frame; otherwise it starts anew."""


@lru_cache(maxsize=8)
def join_rule(joins: Joins, hop: int, device: torch.device) -> JoinRule:
    """The rule of a model with `hop` samples per frame. The cache is shared: a rule is a constant."""
    if joins is Joins.OFFICIAL:
        window = torch.from_numpy(np.hamming(2 * OVERLAP_FRAMES * hop).astype(np.float32)).to(device)
        return JoinRule(OVERLAP_FRAMES, OVERLAP_FRAMES, OVERLAP_FRAMES, window, continuous=False)
    # One frame is enough: there the old version has most of its right neighbours and the new one all it needs.
    # A raised cosine between sample centres adds up to one everywhere.
    size = 2 * hop
    window = torch.sin(torch.pi * (torch.arange(size) + 0.5) / size).square().to(device)
    return JoinRule(OVERLAP_FRAMES + CONTEXT_FRAMES, CONTEXT_FRAMES, 1, window, continuous=True)
