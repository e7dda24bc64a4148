"""Training of the flow (conditional flow matching, arXiv:2210.02747): speech tokens, a speaker and a prompt → mel.

The corpus is sorted by speaker once. A training window is some seconds of one speaker, cut anywhere in a sentence: a
prompt, followed by the speech to generate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.checkpoint.config import MelConfig
from vivavoce.errors import InvalidRequest
from vivavoce.models.flow.dit import DiT
from vivavoce.models.flow.model import Flow
from vivavoce.models.flow.unet import TokenEncoder
from vivavoce.models.layers import valid_positions
from vivavoce_training.data.store import MELS_PER_TOKEN, Corpus
from vivavoce_training.loop import Budget, Optimizer, Recipe, TrainingStep, train
from vivavoce_training.utterances import mels_of, positions, steps_in
from vivavoce_training.whole_rows import encode, velocity


@dataclass(frozen=True, eq=False)
class SpeakerMajor:
    """A corpus on the device, ordered by speaker.

    tokens: [tokens] int16; mels: [tokens · 2, bins] float16; first, last: [tokens] int32, first and end token of the
    token's speaker; utterance_first, utterance_count: [tokens] int32, this speaker's first utterance and their number;
    embeddings: [utterances, size] float16.
    """

    tokens: Tensor
    mels: Tensor
    first: Tensor
    last: Tensor
    utterance_first: Tensor
    utterance_count: Tensor
    embeddings: Tensor

    @classmethod
    def load(cls, corpus: Corpus, mel: MelConfig, device: torch.device) -> SpeakerMajor:
        order = np.argsort(corpus.speaker, kind="stable")
        lengths = np.diff(corpus.start)[order]
        speaker = corpus.speaker[order]
        grid = speaker_grid(corpus)
        mels = mels_of(corpus, mel, device)
        by_frame = torch.from_numpy((grid[:, None] * MELS_PER_TOKEN + np.arange(MELS_PER_TOKEN)).reshape(-1))
        of_token = np.repeat(speaker, lengths)
        sizes = np.bincount(of_token, minlength=len(corpus.speakers))
        ends = np.cumsum(sizes)
        counts = np.bincount(speaker, minlength=len(corpus.speakers))
        before = np.cumsum(counts) - counts

        def placed(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(array.astype(np.int32)).to(device)

        return cls(
            tokens=torch.from_numpy(np.asarray(corpus.tokens)[grid]).to(device),
            mels=mels[by_frame.to(device)],
            first=placed((ends - sizes)[of_token]),
            last=placed(ends[of_token]),
            utterance_first=placed(before[of_token]),
            utterance_count=placed(counts[of_token]),
            embeddings=torch.from_numpy(np.asarray(corpus.embeddings)[order]).to(device),
        )

    def draw(self, batch: int, size: int) -> tuple[Tensor, Tensor, Tensor]:
        """Draw random windows of `size` tokens: tokens [batch, size] int64, mel [batch, 2 · size, bins] float32, and
        the embedding [batch, size of embeddings] float32 of a random utterance of the speaker.
        """
        device = self.tokens.device
        anywhere = torch.randint(len(self.tokens), (batch,), device=device)
        begin = torch.maximum(torch.minimum(anywhere, self.last[anywhere] - size), self.first[anywhere])
        # If a speaker has less speech than a window, the window continues into the next speaker.
        begin = begin.clamp(max=len(self.tokens) - size).long()
        places, frames = positions(begin, size, 1), positions(begin, size, MELS_PER_TOKEN)
        share = torch.rand(batch, device=device)
        utterance = self.utterance_first[anywhere] + (share * self.utterance_count[anywhere]).long()
        utterance = utterance.clamp(max=len(self.embeddings) - 1)
        return self.tokens[places].long(), self.mels[frames].float(), self.embeddings[utterance].float()


def speaker_grid(corpus: Corpus) -> NDArray[np.int64]:
    """Return the positions in the corpus of all tokens, ordered by speaker: [tokens]."""
    order = np.argsort(corpus.speaker, kind="stable")
    starts, lengths = corpus.start[:-1][order], np.diff(corpus.start)[order]
    ends = np.cumsum(lengths)
    positions: NDArray[np.int64] = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
    return positions


SIGMA_MIN = 1e-6
MU_WEIGHT = 0.1
"""Weight of the loss `mu`, which gives the encoder a gradient of its own (the simplest form of Matcha-TTS's prior loss,
arXiv:2309.03199)."""


@dataclass(frozen=True)
class FlowRecipe:
    optimizer: Recipe = field(default_factory=lambda: Recipe(1e-3, warmup_steps=500))
    windows: tuple[tuple[int, int], ...] = ((100, 72), (200, 36), (350, 20))  # (speech tokens, windows in a batch).
    prompted: float = 0.7  # Share of windows that begin with a prompt.
    most_prompt: float = 0.6  # Longest prompt, as a share of the window.
    unconditioned: float = 0.2
    """Share of windows without any condition, for classifier-free guidance (arXiv:2207.12598)."""
    unfinished: float = 0.5  # Share of windows whose last tokens are only lookahead, as in a stream.
    chunked: float = 0.5  # Share of training steps with chunked attention.


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
    torch.manual_seed(seed + steps_in(folder, "flow"))
    return train("flow", FlowStep(flow.to(device), speech, recipe, seed), budget, folder, device=device)


class FlowStep(TrainingStep):
    """A training step of the flow. Variant 2 n + c uses `FlowRecipe.windows[n]`, with chunked attention if c is 1.

    InvalidRequest: the corpus is shorter than a window.
    """

    def __init__(self, flow: Flow, speech: SpeakerMajor, recipe: FlowRecipe, seed: int = 0) -> None:
        longest, length = max(size for size, _ in recipe.windows), len(speech.tokens)
        if length < longest:
            raise InvalidRequest(f"corpus: has {length} tokens of 40 ms, and {longest} are needed; add recordings")
        self._flow, self._speech, self._recipe, self._seed = flow.requires_grad_(True), speech, recipe, seed
        self._optimizer = Optimizer(flow.parameters(), recipe.optimizer)
        self.modules, self.optimizers = {"flow": flow}, {"flow": self._optimizer}

    def variant(self, step: int, progress: float) -> int:
        window, kind = torch.rand(2, generator=torch.Generator().manual_seed(self._seed * 1_000_003 + step)).tolist()
        count = len(self._recipe.windows)
        return 2 * min(count - 1, int(window * count)) + int(kind < self._recipe.chunked)

    def __call__(self, variant: int) -> dict[str, Tensor]:
        size, batch = self._recipe.windows[variant // 2]
        windows = self._speech.draw(batch, size)
        device = self._speech.tokens.device
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            losses = flow_losses(self._flow, *windows, self._recipe, chunked=bool(variant % 2))
        self._optimizer.update(losses["cfm"] + MU_WEIGHT * losses["mu"])
        return losses


def start_at_mean(flow: Flow, speech: SpeakerMajor) -> None:
    """Make an untrained flow output the mean mel, because log-mels are far from zero.

    In CosyVoice3's flow, also make each block add zeros at first: it learns faster then (adaLN-Zero, arXiv:2212.09748).
    """
    mean = speech.mels[:: max(1, len(speech.mels) // 100_000)].float().mean(0)
    encoder, estimator = flow.encoder, flow.estimator
    last = encoder.mu_projection if isinstance(encoder, TokenEncoder) else encoder.history_conv
    with torch.no_grad():
        for bias in (estimator.out.bias, last.bias):
            assert bias is not None
            bias.copy_(mean)
        for name, parameter in estimator.named_parameters() if isinstance(estimator, DiT) else ():
            if "modulation" in name:
                parameter.zero_()


def flow_losses(
    flow: Flow, tokens: Tensor, mel: Tensor, embedding: Tensor, recipe: FlowRecipe, *, chunked: bool
) -> dict[str, Tensor]:
    """Compute the losses of one batch of windows. tokens, mel, embedding: as from `SpeakerMajor.draw`.

    cfm: mean squared error of the velocity after the prompt; mu: mean absolute error of the encoder's output.
    """
    batch, size = tokens.shape
    device = tokens.device

    def happens(share: float) -> Tensor:
        return torch.rand(batch, device=device) < share

    mu, frames = encode(flow, tokens, torch.full((batch,), size, device=device), ~happens(recipe.unfinished), chunked)
    length = mel.shape[1]
    inside = valid_positions(frames, length)
    prompt = (torch.rand(batch, device=device) * recipe.most_prompt * length).long()
    prompt = torch.where(happens(recipe.prompted), prompt, torch.zeros_like(prompt))
    in_prompt = valid_positions(prompt, length)
    kept = (~happens(recipe.unconditioned))[:, None, None].to(mu.dtype)
    # The solver takes more steps at the start of its path. Draw training times near the start more often, too.
    t = 1 - torch.cos(torch.rand(batch, device=device) * (math.pi / 2))
    noise = torch.randn_like(mel)
    along = t[:, None, None]
    point = (1 - (1 - SIGMA_MIN) * along) * noise + along * mel
    speaker, condition = flow.speaker(embedding) * kept[:, 0], mel * in_prompt[..., None] * kept
    found = velocity(flow.estimator, point, mu * kept, speaker, condition, t, frames, chunked)
    counted = (inside & ~in_prompt)[..., None].float()
    wanted = mel - (1 - SIGMA_MIN) * noise
    cfm = ((found.float() - wanted).square() * counted).sum() / (counted.sum() * mel.shape[-1])
    spoken = inside[..., None].float()
    distance = ((mu.float() - mel).abs() * spoken).sum() / (spoken.sum() * mel.shape[-1])
    return {"cfm": cfm, "mu": distance}
