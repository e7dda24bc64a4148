"""Solving the flow: fixed noise, cosine time schedule, Euler steps, classifier-free guidance (arXiv:2207.12598)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from vivavoce.models.flow.memory import Memory
from vivavoce.models.flow.unet import UNet
from vivavoce.models.layers.masks import additive, visible_keys

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


@dataclass(frozen=True, eq=False)
class Schedule:
    """The Euler steps of one estimator; times and what the estimator makes of them are the same for all rows.

    times: (t, dt); biases: of `UNet.time_biases`, [levels, 1, 1, channels] for each step.
    """

    times: tuple[tuple[float, float], ...]
    biases: tuple[Tensor, ...]

    @classmethod
    def of(cls, estimator: UNet, num_steps: int) -> Schedule:
        """Steps of `estimator` with its present weights."""
        times = time_steps(num_steps)
        t = torch.tensor([t for t, _ in times], device=estimator.out.weight.device)
        return cls(tuple(times), tuple(estimator.time_biases(t)[:, :, None].unbind(1)))


class Path:
    """A batch on its way from noise to mel; `x` is where it is: [batch, frames, bins] float32.

    Each step evaluates the estimator with and without its conditions in one batch of twice the size:
    v = (1 + guidance) · f(conditions) − guidance · f(nothing).

    Args:
        noise, mu, condition: [batch, frames, bins]; speaker: [batch, bins].
        mask: [batch, 1, 1 or frames, keys] bool, True where a frame may look; None: all is seen.
    """

    def __init__(
        self,
        estimator: UNet,
        schedule: Schedule,
        guidance: float,
        noise: Tensor,
        mu: Tensor,
        speaker: Tensor,
        condition: Tensor,
        mask: Tensor | None,
    ) -> None:
        self.x = noise.float()
        self._estimator, self._schedule, self._guidance = estimator, schedule, guidance
        batch, frames, bins = noise.shape
        dtype = estimator.out.weight.dtype
        self._mask = None if mask is None else additive(mask if batch == 1 else mask.repeat(2, 1, 1, 1), dtype)
        self._features = torch.zeros(2, batch, frames, 4 * bins, device=noise.device, dtype=dtype)
        conditional = self._features[0].view(batch, frames, 4, bins)
        conditional[:, :, 1], conditional[:, :, 2], conditional[:, :, 3] = mu, speaker[:, None], condition

    def step(self, number: int, memory: Memory | None = None) -> None:
        """Take step `number`; memory: of this step and twice the batch, the conditional rows first."""
        _, dt = self._schedule.times[number]
        self._features[..., : self.x.shape[-1]] = self.x
        velocity = self._estimator.velocity(
            self._features.flatten(0, 1), self._schedule.biases[number], self._mask, memory
        )
        conditional, free = velocity.float().chunk(2)
        self.x = self.x + dt * ((1 + self._guidance) * conditional - self._guidance * free)


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
    """Follow the flow from noise to mel, whole rows at once.

    noise, mu, condition: [batch, frames, bins]; speaker: [batch, bins]; lengths: [batch] int64
    →  [batch, frames, bins] float32
    """
    mask = visible_keys(lengths, noise.shape[1], estimator.config.chunk if chunked else None)
    path = Path(estimator, Schedule.of(estimator, num_steps), guidance, noise, mu, speaker, condition, mask)
    for number in range(num_steps):
        path.step(number)
    return path.x
