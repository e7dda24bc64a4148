"""Repetition-aware nucleus sampling over a batch (VALL-E 2, arXiv:2406.05370, section 4.2).

A candidate is drawn from the nucleus. If it stands too often among the last tokens, it is forbidden and another is
drawn from all ids. Everything is vectorised; uniforms come in as arguments, one column per draw.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SamplingRows:
    """Settings of each row of a batch: top_p [batch] float32, top_k [batch] int64, window [batch] int64 (tokens
    looked back), max_repeats [batch] int64 (as many repeats in the window, or more, forbid a candidate).
    """

    top_p: Tensor
    top_k: Tensor
    window: Tensor
    max_repeats: Tensor

    def select(self, rows: Tensor) -> SamplingRows:
        """The given rows only; rows: [n] int64."""
        return SamplingRows(self.top_p[rows], self.top_k[rows], self.window[rows], self.max_repeats[rows])


def nucleus(probabilities: Tensor, top_p: Tensor, top_k: Tensor) -> tuple[Tensor, Tensor]:
    """Candidates by falling probability: as long as the sum *before* one is below top_p, and at most top_k.

    probabilities: [batch, ids]; top_p, top_k: [batch]  →  ids and their probabilities, both [batch, ids]; what is no
    candidate has probability 0. Ties keep the order of ids.
    """
    ranked, ids = probabilities.sort(dim=-1, descending=True, stable=True)
    # Added one by one in the row's own precision: a library's cumulative sum rounds otherwise, and a sum that meets
    # top_p exactly must fall on the official side of it.
    kept = torch.zeros_like(ranked)
    before = torch.zeros_like(ranked[:, 0])
    for rank in range(min(ranked.shape[-1], int(top_k.max()))):
        inside = ((before < top_p) & (rank < top_k)) | (rank == 0)
        kept[:, rank] = ranked[:, rank] * inside
        before = before + ranked[:, rank]
    return ids, kept


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Index drawn with probability proportional to its weight (inverse of the cumulative sum).

    weights: [batch, n] ≥ 0, not all 0; uniforms: [batch] in (0, 1)  →  [batch] int64
    """
    cumulative = weights.cumsum(dim=-1)
    target = uniforms[:, None] * cumulative[:, -1:]
    index = (cumulative <= target).sum(dim=-1)
    # Rounding may put the target on the total: the last index that has any weight is meant then.
    last = weights.shape[-1] - 1 - (weights > 0).flip(-1).int().argmax(dim=-1)
    return torch.minimum(index, last)


def repeats(recent: Tensor, window: Tensor, candidate: Tensor) -> Tensor:
    """How often the candidate stands among the last `window` tokens.

    recent: [batch, n] int64, newest last, −1 where there is none; window, candidate: [batch]  →  [batch] int64
    """
    age = torch.arange(recent.shape[-1], 0, -1, device=recent.device)
    inside = age <= window[:, None]
    return ((recent == candidate[:, None]) & inside).sum(dim=-1)


def sample(scores: Tensor, recent: Tensor, settings: SamplingRows, uniforms: Tensor) -> Tensor:
    """Draw one id per row.

    scores: [batch, ids] logits or log-probabilities, −inf where forbidden; recent: as in `repeats`;
    uniforms: [batch, 2], for the nucleus and for the fallback  →  [batch] int64
    """
    ids, weights = nucleus(scores.softmax(dim=-1), settings.top_p, settings.top_k)
    first = ids.gather(-1, draw(weights, uniforms[:, 0])[:, None])[:, 0]
    repeated = repeats(recent, settings.window, first) >= settings.max_repeats
    others = fallback_probabilities(scores, first)
    second = draw(others, uniforms[:, 1])
    return torch.where(repeated, second, first)


def fallback_probabilities(scores: Tensor, forbidden: Tensor) -> Tensor:
    """All ids but the forbidden one; scores: [batch, ids], forbidden: [batch]  →  [batch, ids]."""
    return scores.scatter(-1, forbidden[:, None], float("-inf")).softmax(dim=-1)
