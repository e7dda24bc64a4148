"""One training step of the speech tokenizer, and how a token spells what is spoken."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from vivavoce_training.data.store import MELS_PER_TOKEN, PHONES
from vivavoce_training.loop import Optimizer, Recipe, TrainingStep
from vivavoce_training.tokenizer.features import Augment, Features
from vivavoce_training.tokenizer.model import TokenEncoder

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
        self._spellings = spelling(features.mel.device)
        self.modules = {"encoder": encoder}
        self.optimizers = {"tokenizer": Optimizer(encoder.parameters(), RECIPE)}

    def __call__(self, variant: int) -> dict[str, Tensor]:
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


DIGITS_PER_PHONE = 4

_SPELLED = {
    "pau": "1111",
    "iy": "0001", "ih": "0000", "eh": "0010", "ey": "0012", "ae": "0020", "ay": "0022",
    "ax": "0110", "er": "0111", "ah": "0120", "aw": "0122",
    "uw": "0201", "uh": "0200", "ow": "0212", "oy": "0211", "ao": "0210", "aa": "0220",
    "m": "1000", "n": "1100", "ng": "1200", "l": "1120", "r": "1122", "w": "1022", "y": "1222",
    "p": "2000", "b": "2002", "t": "2100", "d": "2102", "k": "2200", "g": "2202",
    "f": "2010", "v": "2012", "s": "2110", "z": "2112", "sh": "2210", "zh": "2212", "hh": "2211",
    "th": "2020", "dh": "2022", "ch": "2220", "jh": "2222",
}  # fmt: skip


def spelling(device: torch.device | None = None) -> Tensor:
    """[phones, 4] float32 of -1, 0 and 1: the digits of each phone of `PHONES`."""
    return torch.tensor([[int(digit) - 1.0 for digit in _SPELLED[phone]] for phone in PHONES], device=device)


def spell(phones: Tensor, spellings: Tensor) -> Tensor:
    """Phones [batch, tokens · 2] int64 → digits [batch, tokens, 8] float32: the first half's, then the second's.

    spellings: of `spelling`, on the device of the phones; a captured step may not bring them there.
    """
    digits = spellings[phones]
    return digits.view(len(phones), -1, MELS_PER_TOKEN * DIGITS_PER_PHONE)
