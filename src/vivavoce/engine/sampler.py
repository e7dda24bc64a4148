"""Choosing the next speech token of every running sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from vivavoce.checkpoint.config import SamplingDefaults
from vivavoce.engine.request import SamplingParams
from vivavoce.models.counter_noise import Stream, uniform
from vivavoce.models.lm.sampling import SamplingRows, sample


class Sampler(Protocol):
    """Decides one id per sequence; a test may put its own in this place."""

    def __call__(self, scores: Tensor, rows: Sequence[int], decoded: Sequence[Sequence[int]]) -> Tensor:
        """Choose.

        scores: [n, ids] log-probabilities, −inf where forbidden; rows: which sequence of the batch each of the n is;
        decoded: ids that each of the n has sampled so far  →  [n] int64
        """


class RepetitionAwareSampler:
    """Repetition-aware sampling; each sequence draws from its own seed, by its own step."""

    def __init__(
        self, params: Sequence[SamplingParams], seeds: Sequence[int], defaults: SamplingDefaults, device: torch.device
    ) -> None:
        settings = [_filled(one, defaults) for one in params]
        self._window = max(one.win_size for one in settings)
        self._seeds = torch.tensor(seeds, dtype=torch.int64, device=device)
        self._settings = SamplingRows(
            top_p=torch.tensor([one.top_p for one in settings], device=device),
            top_k=torch.tensor([one.top_k for one in settings], device=device),
            window=torch.tensor([one.win_size for one in settings], device=device),
            max_repeats=torch.tensor([math.ceil(one.win_size * one.tau_r) for one in settings], device=device),
        )

    def __call__(self, scores: Tensor, rows: Sequence[int], decoded: Sequence[Sequence[int]]) -> Tensor:
        """See `Sampler`."""
        device = scores.device
        index = torch.tensor(rows, device=device)
        recent = torch.tensor([_tail(ids, self._window) for ids in decoded], device=device)
        steps = torch.tensor([len(ids) for ids in decoded], device=device)
        seeds = self._seeds[index]
        uniforms = torch.stack((uniform(seeds, Stream.NUCLEUS, steps), uniform(seeds, Stream.FALLBACK, steps)), dim=-1)
        return sample(scores, recent, self._settings.select(index), uniforms)


def _filled(params: SamplingParams, defaults: SamplingDefaults) -> SamplingDefaults:
    return SamplingDefaults(
        top_p=defaults.top_p if params.top_p is None else params.top_p,
        top_k=defaults.top_k if params.top_k is None else params.top_k,
        win_size=defaults.win_size if params.win_size is None else params.win_size,
        tau_r=defaults.tau_r if params.tau_r is None else params.tau_r,
    )


def _tail(ids: Sequence[int], size: int) -> list[int]:
    tail = list(ids[-size:])
    return [-1] * (size - len(tail)) + tail
