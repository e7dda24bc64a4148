"""Random choices for each row of a batch, without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor


def uniform(like: Tensor, low: float, high: float) -> Tensor:
    """A number between the bounds for each row of `like`: [batch, 1, 1]."""
    return low + (high - low) * torch.rand(len(like), 1, 1, device=like.device)


def chance(like: Tensor, share: float) -> Tensor:
    """True for that share of the rows of `like`: [batch, 1, 1] bool."""
    return torch.rand(len(like), 1, 1, device=like.device) < share


def positions(starts: Tensor, tokens: int, per_token: int) -> Tensor:
    """starts: [batch] tokens  →  [batch, tokens · per_token] places of whatever there are `per_token` of in a token."""
    return starts[:, None] * per_token + torch.arange(tokens * per_token, device=starts.device)
