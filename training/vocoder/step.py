"""One training step of the vocoder: pitch, reconstruction, and the adversary once it has joined."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from training.data.store import MELS_PER_TOKEN, TOKEN_SAMPLES
from training.loop import Optimizer, Recipe
from training.vocoder.augment import augment
from training.vocoder.crops import Crop, Crops
from training.vocoder.discriminators import Discriminators
from training.vocoder.losses import SpectralLoss, feature_distance, judged_made, judged_real
from vivavoce.models.vocoder.hift import HiFT

ALONE, WITH_ADVERSARY = 0, 1
"""Variants of the step."""

BATCH = 32
CROP_TOKENS = 26
MARGIN_TOKENS = 1
"""Cut off at either end before the losses: the network saw zeros there where speech goes on."""
JUDGED_TOKENS = 12
"""The middle of each crop is what the adversary sees."""

GENERATOR = Recipe(learning_rate=6e-4, betas=(0.8, 0.99), clip_norm=50.0)
PITCH = Recipe(learning_rate=1e-3, clip_norm=10.0, weight_decay=0.0)
"""Without decay: the last layer counts in hertz, and weights of 100 would decay as fast as they learn."""
ADVERSARY = Recipe(learning_rate=3e-4, betas=(0.8, 0.99), clip_norm=10.0)

STFT_WEIGHT, MEL_WEIGHT = 4.0, 20.0
JUDGED_WEIGHT, FEATURE_WEIGHT = 2.0, 10.0
PREDICTED_SHARE = 0.5
"""Crops whose source follows the predicted pitch, as it will; the true pitch teaches the others sharp harmonics."""
FLOW_SHARE = 0.7
"""Crops that take the flow's mel, where there is one."""
PITCH_UNIT_HZ = 50.0


class Step:
    """What `training.loop.train` calls; it owns the batches' source, the losses and the optimizers.

    The networks run in float32: on TF32 units that costs them little, since they are small and their activations
    large, and the source's phases need it. The discriminators run in bfloat16.
    """

    def __init__(
        self,
        crops: Crops,
        starts: Tensor,
        model: HiFT,
        discriminators: Discriminators,
        *,
        batch: int = BATCH,
        rate: float = 1.0,
    ) -> None:
        """starts: [n] int64, token positions to draw crops from; rate: factor on all learning rates."""
        self._crops, self._starts, self._batch = crops, starts, batch
        self._model, self._discriminators = model, discriminators
        self._spectral = SpectralLoss(model.config.sample_rate).to(starts.device)
        pitch = list(model.f0.parameters())
        known = {id(parameter) for parameter in pitch}
        rest = [parameter for parameter in model.parameters() if id(parameter) not in known]
        self.optimizers = {
            "generator": Optimizer(rest, _scaled(GENERATOR, rate)),
            "pitch": Optimizer(pitch, _scaled(PITCH, rate)),
            "adversary": Optimizer(discriminators.parameters(), _scaled(ADVERSARY, rate)),
        }

    def __call__(self, variant: int) -> dict[str, Tensor]:
        """One step on a fresh batch: `ALONE` or `WITH_ADVERSARY`."""
        at = torch.randint(len(self._starts), (self._batch,), device=self._starts.device)
        crop = augment(self._crops.cut(self._starts[at], CROP_TOKENS, FLOW_SHARE))
        predicted = self._model.f0(crop.mel, None)
        values = {"pitch": self._learn_pitch(predicted, crop.pitch)}
        made, real = _middle(self._decode(crop, predicted.detach()), CROP_TOKENS), _middle(crop.wave, CROP_TOKENS)
        stft, mel = self._spectral(made, real)
        values |= {"stft": stft, "mel": mel}
        loss = STFT_WEIGHT * stft + MEL_WEIGHT * mel
        if variant == WITH_ADVERSARY:
            length = JUDGED_TOKENS * TOKEN_SAMPLES
            first = (made.shape[1] - length) // 2
            part = made[:, first : first + length]
            slope, judged = self._judge(part.detach(), real[:, first : first + length])
            values |= judged
            # Its gradient is the adversary's verdict, which need not be computed twice.
            loss = loss + (part * slope).sum()
        self.optimizers["generator"].update(loss)
        return values

    def _learn_pitch(self, predicted: Tensor, tracked: Tensor) -> Tensor:
        """L1 in Hz, whose best answer is the median: 0 wherever a frame is more often unvoiced than voiced."""
        edge = MARGIN_TOKENS * MELS_PER_TOKEN
        error = (predicted - tracked)[:, edge:-edge].abs().mean()
        self.optimizers["pitch"].update(error / PITCH_UNIT_HZ)
        return error

    def _decode(self, crop: Crop, predicted: Tensor) -> Tensor:
        chosen = torch.rand(len(predicted), 1, device=predicted.device) < PREDICTED_SHARE
        pitch = torch.where(chosen, predicted, crop.pitch)
        shape = self._model.noise_shape(pitch.shape[1])
        noise = torch.randn(len(pitch), *shape, device=pitch.device)
        return self._model.decode(crop.mel, self._model.source(pitch, noise))

    def _judge(self, made: Tensor, real: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Update the adversary; give the generator's slope at its waveform [batch, samples], and what to log.

        Both are of the same forward pass, so the generator meets the adversary as it was before its update.
        """
        made = made.requires_grad_()
        cached = nn.utils.parametrize.cached()
        with torch.autocast(made.device.type, torch.bfloat16), cached:
            real_scores, real_features = self._discriminators(real)
            made_scores, made_features = self._discriminators(made)
        fooled, features = judged_real(made_scores), feature_distance(made_features, real_features)
        verdict = JUDGED_WEIGHT * fooled + FEATURE_WEIGHT * features
        (slope,) = torch.autograd.grad(verdict, made, retain_graph=True)
        loss = judged_real(real_scores) + judged_made(made_scores)
        self.optimizers["adversary"].update(loss)
        return slope, {"adversary": loss, "fooled": fooled, "features": features}


def _middle(wave: Tensor, tokens: int) -> Tensor:
    """Without the margins."""
    return wave[:, MARGIN_TOKENS * TOKEN_SAMPLES : (tokens - MARGIN_TOKENS) * TOKEN_SAMPLES]


def _scaled(recipe: Recipe, rate: float) -> Recipe:
    return replace(recipe, learning_rate=recipe.learning_rate * rate)
