"""One training step of the speech tokenizer: it learns to hear what the labels spell."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from vivavoce_training.data.spelling import BASE, PHONE_DIGITS
from vivavoce_training.loop import Optimizer, Recipe, TrainingStep
from vivavoce_training.tokenizer.features import Augment, Features
from vivavoce_training.tokenizer.model import TokenEncoder, digit_weights

BATCH = 96
CROP_TOKENS = 128
RECIPE = Recipe(learning_rate=1e-3, warmup_steps=200)
ROUND_WITHIN = 0.25
"""Errors below this count as squares, larger ones as they are: where a sound is uncertain, a digit takes the likelier
value and not the mean of both."""


class TokenizerStep(TrainingStep):
    def __init__(
        self, features: Features, encoder: TokenEncoder, *, batch: int = BATCH, crop_tokens: int = CROP_TOKENS
    ) -> None:
        self._features, self._batch, self._crop_tokens = features, batch, crop_tokens
        self._encoder = encoder
        self._augment = Augment().to(features.mel.device)
        self.modules = {"encoder": encoder}
        self.optimizers = {"tokenizer": Optimizer(encoder.parameters(), RECIPE)}

    def __call__(self, variant: int) -> dict[str, Tensor]:
        starts, _ = self._features.speakers.draw(self._batch, self._crop_tokens)
        mel, tokens = self._features.cut(starts, self._crop_tokens)
        view = self._augment(mel)
        with torch.autocast(view.device.type, torch.bfloat16, enabled=view.is_cuda):
            digits = self._encoder(view)
        target = spelled(tokens)
        loss = functional.smooth_l1_loss(digits.float(), target, beta=ROUND_WITHIN)
        self.optimizers["tokenizer"].update(loss)
        right = digits.detach().round() == target
        phone = right[..., :PHONE_DIGITS].all(-1)
        return {
            "loss": loss,
            "digits_right": right.float().mean(),
            "tokens_right": right.all(-1).float().mean(),
            "phones_right": phone.float().mean(),
        }


def spelled(tokens: Tensor) -> Tensor:
    """Tokens [..] int64  →  their digits [.., 8] float32, each -1, 0 or 1."""
    return tokens[..., None] // digit_weights(tokens.device).long() % BASE - 1.0
