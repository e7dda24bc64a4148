"""One training step of the speech tokenizer."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from training.loop import Optimizer, Recipe
from training.tokenizer.articulation import spell, spelling
from training.tokenizer.augment import Augment
from training.tokenizer.features import Features
from training.tokenizer.model import TokenEncoder

BATCH = 96
CROP_TOKENS = 128
RECIPE = Recipe(learning_rate=1e-3, warmup_steps=200)
ROUND_WITHIN = 0.25
"""Errors below this count as squares, larger ones as they are: where a sound is uncertain, a digit takes the likelier
value and not the mean of both."""


class Step:
    """What `training.loop.train` calls: the digits shall spell the phones in any view of the speech."""

    def __init__(
        self, features: Features, encoder: TokenEncoder, *, batch: int = BATCH, crop_tokens: int = CROP_TOKENS
    ) -> None:
        self._features, self._batch, self._crop_tokens = features, batch, crop_tokens
        self._encoder = encoder
        self._augment = Augment().to(features.mel.device)
        self._spellings = spelling(features.mel.device)
        self.modules = {"encoder": encoder}
        self.optimizers = {"tokenizer": Optimizer(encoder.parameters(), RECIPE)}

    def __call__(self, variant: int) -> dict[str, Tensor]:
        """One step on a fresh batch; there is one variant."""
        starts, _ = self._features.speakers.draw(self._batch, self._crop_tokens)
        mel, phones = self._features.cut(starts, self._crop_tokens)
        view = self._augment(mel)
        with torch.autocast(view.device.type, torch.bfloat16, enabled=view.is_cuda):
            digits = self._encoder(view)
        target = spell(phones, self._spellings)
        loss = functional.smooth_l1_loss(digits.float(), target, beta=ROUND_WITHIN)
        self.optimizers["tokenizer"].update(loss)
        right = digits.detach().round() == target
        return {"loss": loss, "digits_right": right.float().mean(), "tokens_right": right.all(-1).float().mean()}
