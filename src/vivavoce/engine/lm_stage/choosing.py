"""Choosing the next id of every running slot."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from vivavoce.checkpoint.config import SamplingDefaults
from vivavoce.engine.request import SamplingParams
from vivavoce.models.counter_noise import Stream, uniform
from vivavoce.models.lm.sampling import SamplingRows, sample


@dataclass(frozen=True)
class SamplingState:
    """What the choice in each of n slots may depend on.

    counts: [n] int64, ids sampled in the slot so far, control ids included; history: [n, window] int64, the newest
    of them last (what is further back than `counts` belongs to nobody); seeds: [n] int64; settings: n rows.
    """

    counts: Tensor
    history: Tensor
    seeds: Tensor
    settings: SamplingRows


class Chooser(Protocol):
    """Decides one id per slot; a test may put its own in this place."""

    def __call__(self, scores: Tensor, state: SamplingState) -> Tensor:
        """Choose.

        scores: [n, ids] float32 log-probabilities, −inf where forbidden  →  [n] int64
        """


def repetition_aware(scores: Tensor, state: SamplingState) -> Tensor:
    """Repetition-aware sampling (a `Chooser`); each slot draws from its own seed, by its own count."""
    settings = state.settings
    uniforms = torch.stack([uniform(state.seeds, one, state.counts) for one in (Stream.NUCLEUS, Stream.FALLBACK)], -1)
    # A window that reaches further back than the slot's first id would look at its earlier occupants.
    window = torch.minimum(settings.window, state.counts)
    known = SamplingRows(settings.top_p, settings.top_k, window, settings.max_repeats, settings.most)
    return sample(scores, state.history, known, uniforms)


@dataclass(frozen=True)
class Settings:
    """Sampling parameters with the checkpoint's own filled in, as the formulas want them."""

    top_p: float
    top_k: int
    window: int
    max_repeats: int


def filled(params: SamplingParams, defaults: SamplingDefaults) -> Settings:
    """What a request leaves open, the checkpoint decides."""
    window = defaults.win_size if params.win_size is None else params.win_size
    tau_r = defaults.tau_r if params.tau_r is None else params.tau_r
    return Settings(
        top_p=defaults.top_p if params.top_p is None else params.top_p,
        top_k=defaults.top_k if params.top_k is None else params.top_k,
        window=window,
        max_repeats=math.ceil(window * tau_r),
    )
