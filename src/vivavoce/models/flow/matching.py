"""Solving the flow: fixed noise, cosine time schedule, Euler steps, classifier-free guidance (arXiv:2207.12598)."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from vivavoce.models.flow.unet import UNet

MAX_FRAMES = 15_000
"""Mel frames for which the official code draws noise: 300 s, prompt included."""


@cache
def fixed_noise(num_bins: int) -> Tensor:
    """The noise that every request of CosyVoice2 starts from, by position: [MAX_FRAMES, bins] float32.

    Drawn once from torch's CPU generator with seed 0, as the official code does while it builds the model. It is
    constant, so the copy that this function keeps is shared by all.
    """
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, num_bins, MAX_FRAMES, generator=generator)[0].T.contiguous()


def time_steps(num_steps: int) -> list[tuple[float, float]]:
    """(t, dt) of each Euler step along 1 − cos(π/2 · k/n).

    t is the running float32 sum of the steps, not the schedule's own value: the official estimator sees that sum.
    """
    span = 1 - torch.cos(torch.linspace(0, 1, num_steps + 1) * (0.5 * math.pi))
    t, dt = span[0], span[1] - span[0]
    steps = []
    for k in range(1, num_steps + 1):
        steps.append((float(t), float(dt)))
        t = t + dt
        if k < num_steps:
            dt = span[k + 1] - t
    return steps


def solve(
    estimator: UNet,
    noise: Tensor,
    mu: Tensor,
    speaker: Tensor,
    condition: Tensor,
    lengths: Tensor,
    chunked: bool,
    num_steps: int,
    guidance: float,
) -> Tensor:
    """Follow the flow from noise to mel.

    Each step evaluates the estimator with and without its conditions in one batch of twice the size:
    v = (1 + guidance) · f(conditions) − guidance · f(nothing).

    noise, mu, condition: [batch, frames, bins]; speaker: [batch, bins]; lengths: [batch] int64
    →  [batch, frames, bins] float32
    """
    dtype = estimator.out.weight.dtype
    x = noise.float()
    mu, speaker, condition = (
        torch.cat((value, torch.zeros_like(value))).to(dtype) for value in (mu, speaker, condition)
    )
    lengths = torch.cat((lengths, lengths))
    for t, dt in time_steps(num_steps):
        time = torch.full((len(lengths),), t, device=x.device)
        velocity = estimator(torch.cat((x, x)).to(dtype), mu, speaker, condition, time, lengths, chunked)
        conditional, free = velocity.float().chunk(2)
        x = x + dt * ((1 + guidance) * conditional - guidance * free)
    return x
