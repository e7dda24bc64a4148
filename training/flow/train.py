"""One training step of the flow, and the whole training (conditional flow matching, arXiv:2210.02747)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from training.flow.windows import SpeakerMajor
from training.loop import Budget, Optimizer, Recipe, train
from training.utterances import steps_in
from vivavoce.errors import InvalidRequest
from vivavoce.models.flow.model import Flow
from vivavoce.models.layers.masks import valid_positions

SIGMA_MIN = 1e-6
MU_WEIGHT = 0.1
"""Weight of the distance between mu and the mel: it gives the encoder a gradient of its own (Matcha-TTS's prior loss,
arXiv:2309.03199, in the simplest form)."""


@dataclass(frozen=True)
class FlowRecipe:
    """What the flow's training is made of."""

    optimizer: Recipe = field(default_factory=lambda: Recipe(1e-3, warmup_steps=500))
    windows: tuple[tuple[int, int], ...] = ((100, 72), (200, 36), (350, 20))
    """(speech tokens, windows in a batch)."""
    prompted: float = 0.7
    """Share of windows that begin with a prompt."""
    most_prompt: float = 0.6
    """A prompt's share of the window, at most."""
    unconditioned: float = 0.2
    """Share of windows without any condition, for classifier-free guidance (arXiv:2207.12598)."""
    unfinished: float = 0.5
    """Share of windows whose last tokens are context only, as in a stream."""
    chunked: float = 0.5
    """Share of steps with attention chunk by chunk."""


def train_flow(
    flow: Flow,
    speech: SpeakerMajor,
    budget: Budget,
    folder: Path,
    *,
    device: torch.device,
    recipe: FlowRecipe,
    seed: int = 0,
) -> dict[str, Tensor]:
    """Train → averaged weights by our names."""
    torch.manual_seed(seed + steps_in(folder, "flow"))
    step = Step(flow.to(device), speech, recipe)
    return train(
        "flow",
        step,
        {"flow": step.optimizer},
        {"flow": flow},
        budget,
        folder,
        device=device,
        variant=_variants(len(recipe.windows), recipe.chunked, seed),
        averaged="flow",
    )


class Step:
    """What `training.loop.train` calls; variant 2 n + c takes the n-th kind of windows, chunk by chunk if c is 1.

    Raises InvalidRequest for a corpus that is shorter than a window.
    """

    def __init__(self, flow: Flow, speech: SpeakerMajor, recipe: FlowRecipe) -> None:
        longest, length = max(size for size, _ in recipe.windows), len(speech.tokens)
        if length < longest:
            raise InvalidRequest(f"corpus: has {length} tokens of 40 ms, and {longest} are needed; add recordings")
        self._flow, self._speech, self._recipe = flow.requires_grad_(True), speech, recipe
        self.optimizer = Optimizer(flow.parameters(), recipe.optimizer)

    def __call__(self, variant: int) -> dict[str, Tensor]:
        """One step on a fresh batch of windows."""
        size, batch = self._recipe.windows[variant // 2]
        windows = self._speech.draw(batch, size)
        device = self._speech.tokens.device
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            losses = flow_losses(self._flow, *windows, self._recipe, chunked=bool(variant % 2))
        self.optimizer.update(losses["cfm"] + MU_WEIGHT * losses["mu"])
        return losses


def start_at_mean(flow: Flow, speech: SpeakerMajor) -> None:
    """Let an untrained flow answer the mean mel: log-mels lie far from zero."""
    mean = speech.mels[:: max(1, len(speech.mels) // 100_000)].float().mean(0)
    with torch.no_grad():
        for bias in (flow.estimator.out.bias, flow.encoder.mu_projection.bias):
            assert bias is not None
            bias.copy_(mean)


def flow_losses(
    flow: Flow, tokens: Tensor, mel: Tensor, embedding: Tensor, recipe: FlowRecipe, *, chunked: bool
) -> dict[str, Tensor]:
    """Losses of one batch of windows; shapes as of `SpeakerMajor.draw`.

    cfm: squared error of the velocity after the prompt, per value; mu: absolute error of the encoder's output.
    """
    batch, size = tokens.shape
    device = tokens.device

    def happens(share: float) -> Tensor:
        return torch.rand(batch, device=device) < share

    mu, frames = flow.encode(tokens, torch.full((batch,), size, device=device), ~happens(recipe.unfinished), chunked)
    length = mel.shape[1]
    inside = valid_positions(frames, length)
    prompt = (torch.rand(batch, device=device) * recipe.most_prompt * length).long()
    prompt = torch.where(happens(recipe.prompted), prompt, torch.zeros_like(prompt))
    in_prompt = valid_positions(prompt, length)
    kept = (~happens(recipe.unconditioned))[:, None, None].to(mu.dtype)
    # Steps of the solver crowd at the start of its path, and so do the times of training.
    t = 1 - torch.cos(torch.rand(batch, device=device) * (math.pi / 2))
    noise = torch.randn_like(mel)
    along = t[:, None, None]
    point = (1 - (1 - SIGMA_MIN) * along) * noise + along * mel
    velocity = flow.estimator(
        point,
        mu * kept,
        flow.speaker(embedding) * kept[:, 0],
        mel * in_prompt[..., None] * kept,
        t,
        frames,
        chunked,
    )
    counted = (inside & ~in_prompt)[..., None].float()
    wanted = mel - (1 - SIGMA_MIN) * noise
    cfm = ((velocity.float() - wanted).square() * counted).sum() / (counted.sum() * mel.shape[-1])
    spoken = inside[..., None].float()
    distance = ((mu.float() - mel).abs() * spoken).sum() / (spoken.sum() * mel.shape[-1])
    return {"cfm": cfm, "mu": distance}


def _variants(num_windows: int, chunked: float, seed: int) -> Callable[[int, float], int]:
    """Window length and kind of attention of each step, the same for the same seed."""

    def choose(step: int, progress: float) -> int:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        window, kind = torch.rand(2, generator=generator).tolist()
        return 2 * min(num_windows - 1, int(window * num_windows)) + int(kind < chunked)

    return choose
