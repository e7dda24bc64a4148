"""The flow: speech tokens, a prompt and a speaker → mel, by an ODE solver with guidance (arXiv:2207.12598)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vivavoce.checkpoint.config import FlowConfig, LookaheadConfig, UNetConfig
from vivavoce.models.flow.dit import DiT, LookaheadEncoder
from vivavoce.models.flow.unet import TokenEncoder, UNet, VelocityContext
from vivavoce.models.layers import Memory, PairRunner, additive

if TYPE_CHECKING:
    from vivavoce.models.flow.external import ExternalEncoder, ExternalEstimator

    Encoder = TokenEncoder | LookaheadEncoder | ExternalEncoder
    Estimator = UNet | DiT | ExternalEstimator

MAX_FRAMES = 15_000  # frames of noise that the official code draws: 300 s, including the prompt


@cache
def fixed_noise(num_bins: int) -> Tensor:
    """CosyVoice2's noise [MAX_FRAMES, bins] float32 for all requests, drawn from torch's CPU generator, seed 0."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, num_bins, MAX_FRAMES, generator=generator)[0].T.contiguous()


def time_steps(num_steps: int) -> list[tuple[float, float]]:
    """Return (t, dt) of each Euler step on the schedule 1 − cos(π/2 · k/n). As in the official code, t is the float32
    sum of the previous dt, which differs from the schedule's value by rounding."""
    span = 1 - torch.cos(torch.linspace(0, 1, num_steps + 1) * (0.5 * math.pi))
    t, dt = span[0], span[1] - span[0]
    steps = []
    for k in range(1, num_steps + 1):
        steps.append((float(t), float(dt)))
        t = t + dt
        if k < num_steps:
            dt = span[k + 1] - t
    return steps


FAST_STEPS = 3
"""Number of midpoint steps in the fast schedule. With mini's flow, three midpoint steps have an error of 4.6 % relative
to the exact solution, ten Euler steps 2.1 %, and five Euler steps 4.8 %."""


class Evaluation(NamedTuple):
    """An evaluation of the estimator, which computes the velocity v at flow time t.

    x is the solution at the beginning of the solver's current step. The next evaluation is at x + reach · v. Then move
    · v is added to x; move is 0 if the step needs another evaluation."""

    t: float
    reach: float
    move: float


@dataclass(frozen=True, eq=False)
class FlowSchedule:
    """The calls of the estimator that lead from noise to mel, in order.

    biases: for each call, the estimator's `time_biases` [levels, 1, 1, channels], the same for all rows.
    """

    evaluations: tuple[Evaluation, ...]
    biases: tuple[Tensor, ...]

    @classmethod
    def euler(cls, estimator: Estimator, num_steps: int) -> FlowSchedule:
        return cls._of(estimator, [Evaluation(t, dt, dt) for t, dt in time_steps(num_steps)])

    @classmethod
    def fast(cls, estimator: Estimator, num_steps: int) -> FlowSchedule:
        """Return three explicit midpoint steps (six evaluations), or `num_steps` Euler steps if at most six."""
        if num_steps <= 2 * FAST_STEPS:
            return cls.euler(estimator, num_steps)
        steps = time_steps(FAST_STEPS)
        halves = [(Evaluation(t, dt / 2, 0.0), Evaluation(t + dt / 2, dt, dt)) for t, dt in steps]
        return cls._of(estimator, [one for pair in halves for one in pair])

    @classmethod
    def _of(cls, estimator: Estimator, evaluations: list[Evaluation]) -> FlowSchedule:
        t = torch.tensor([one.t for one in evaluations], device=estimator.out.weight.device)
        return cls(tuple(evaluations), tuple(estimator.time_biases(t)[:, :, None].unbind(1)))

    def __len__(self) -> int:
        return len(self.evaluations)


class Path:
    """Solves the flow's ODE for a batch. x: the solution at the beginning of a step, [batch, frames, bins] float32.

    Each `step` evaluates the estimator f with and without the conditions, for classifier-free guidance: v = (1 +
    guidance) · f(conditions) − guidance · f(no conditions). noise, mu, condition: [batch, frames, bins]. speaker:
    [batch, bins]. mask: [batch, 1, 1 or frames, keys] bool, True for keys that a frame attends to; None means all keys.
    positions: [batch, frames] int, positions in the whole row; None means 0, 1, 2 …. both: computes f with conditions
    and f without conditions, for example in parallel; if None, f runs on one batch of twice the size.
    """

    def __init__(
        self,
        estimator: Estimator,
        schedule: FlowSchedule,
        guidance: float,
        noise: Tensor,
        mu: Tensor,
        speaker: Tensor,
        condition: Tensor,
        mask: Tensor | None,
        positions: Tensor | None = None,
        both: PairRunner | None = None,
    ) -> None:
        self.x = self._point = noise.float()
        self._both = both
        self._positions = positions if positions is None or both else positions.repeat(2, 1)
        self._estimator, self._schedule, self._guidance = estimator, schedule, guidance
        batch, frames, bins = noise.shape
        dtype = estimator.out.weight.dtype
        if mask is not None:
            mask = additive(mask if batch == 1 or both else mask.repeat(2, 1, 1, 1), dtype)
        self._mask = mask
        self._features = torch.zeros(2, batch, frames, 4 * bins, device=noise.device, dtype=dtype)
        conditional = self._features[0].view(batch, frames, 4, bins)
        conditional[:, :, 1], conditional[:, :, 2], conditional[:, :, 3] = mu, speaker[:, None], condition

    def step(self, number: int, *memories: Memory) -> None:
        """Do evaluation `number` of the schedule. memories: without `both`, one memory for the doubled batch (rows with
        conditions first); with `both`, one memory for rows with conditions, one for rows without; none without past."""
        (_, reach, move), biases = self._schedule.evaluations[number], self._schedule.biases[number]
        self._features[..., : self.x.shape[-1]] = self._point
        contexts = [VelocityContext(biases, self._mask, past, self._positions) for past in memories or (None, None)]
        velocity = self._estimator.velocity
        if self._both is None:
            conditional, free = velocity(self._features.flatten(0, 1), contexts[0]).float().chunk(2)
        else:
            halves = zip(self._features, contexts, strict=True)
            conditional, free = (one.float() for one in self._both(*(partial(velocity, *half) for half in halves)))
        guided = (1 + self._guidance) * conditional - self._guidance * free
        self._point = self.x + reach * guided
        if move:
            self.x = self._point if move == reach else self.x + move * guided


class Flow(nn.Module):
    def __init__(self, config: FlowConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.num_tokens, config.encoder.input_size)
        self.speaker_projection = nn.Linear(config.speaker_size, config.num_mel_bins)
        encoder, estimator = config.encoder, config.estimator
        self.encoder = (
            LookaheadEncoder(encoder)
            if isinstance(encoder, LookaheadConfig)
            else TokenEncoder(encoder, config.num_mel_bins)
        )
        self.estimator = UNet(estimator) if isinstance(estimator, UNetConfig) else DiT(estimator)

    def speaker(self, embedding: Tensor) -> Tensor:
        return self.speaker_projection(normalize(embedding, dim=1).to(self.speaker_projection.weight.dtype))

    def lay_out(self) -> None:
        """Store the weights in the memory order that is fastest for inference, without changing names or values."""
        self.encoder.lay_out()
        self.estimator.lay_out()
