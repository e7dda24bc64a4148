"""One training step of the speech tokenizer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.loop import Optimizer, Recipe
from training.tokenizer.augment import Augment
from training.tokenizer.features import Features
from training.tokenizer.model import PhoneDecoder, SpeakerAdversary, TokenEncoder, round_digits

BATCH = 64
CROP_TOKENS = 128
RECIPE = Recipe(learning_rate=1e-3, warmup_steps=200)

COMMITMENT_WEIGHT = 0.3
AGREEMENT_WEIGHT = 1.0
ROUNDING_NOISE = 0.1
STRENGTH = 0.1
"""Of the reversed gradient."""
RAMP_FROM, RAMP_STEPS = 300, 1500
"""All but the phones' loss grows to its weight over these steps: asked to agree before they mean anything, all tokens
become one."""


class Ramp(nn.Module):
    """Grows from 0 to 1; it counts its steps on the device, as a captured step must."""

    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self) -> Tensor:
        """The next step's share, no dimensions."""
        self.steps += 1
        return ((self.steps - RAMP_FROM) / RAMP_STEPS).clamp(0, 1)


class Step:
    """What `training.loop.train` calls.

    Two views of each crop are encoded. Phones are told from either; the digits shall be near whole numbers, agree
    between the views, and not tell the speaker.
    """

    def __init__(
        self,
        features: Features,
        encoder: TokenEncoder,
        decoder: PhoneDecoder,
        adversary: SpeakerAdversary,
        *,
        batch: int = BATCH,
        crop_tokens: int = CROP_TOKENS,
    ) -> None:
        device = features.first.device
        self._features, self._batch, self._crop_tokens = features, batch, crop_tokens
        self._encoder, self._decoder, self._adversary = encoder, decoder, adversary
        self._ramp = Ramp().to(device)
        self._augment = Augment().to(device)
        self.modules = {"encoder": encoder, "decoder": decoder, "adversary": adversary, "ramp": self._ramp}
        learned = [parameter for module in self.modules.values() for parameter in module.parameters()]
        self.optimizers = {"tokenizer": Optimizer(learned, RECIPE)}

    def __call__(self, variant: int) -> dict[str, Tensor]:
        """One step on a fresh batch; there is one variant."""
        starts, speaker = self._features.draw(self._batch, self._crop_tokens)
        mel, phones = self._features.cut(starts, self._crop_tokens)
        views = self._augment(mel.repeat(2, 1, 1))
        share = self._ramp()
        with torch.autocast(views.device.type, torch.bfloat16, enabled=views.is_cuda):
            digits = self._encoder(views)
            rounded = round_digits(digits, ROUNDING_NOISE)
            scores = self._decoder(rounded)
            by_token, by_crop = self._adversary(rounded, STRENGTH * share)
        target = phones.repeat(2, 1).flatten()
        phone_loss = functional.cross_entropy(scores.float().flatten(0, 1), target)
        commitment = (digits - digits.detach().round()).square().mean()
        first, second = digits.chunk(2)
        agreement = functional.mse_loss(first, second)
        told_at_token, told_over_crop = _told(by_token, by_crop, speaker.repeat(2))
        self.optimizers["tokenizer"].update(
            phone_loss
            + share * (COMMITMENT_WEIGHT * commitment + AGREEMENT_WEIGHT * agreement)
            + told_at_token
            + told_over_crop  # the adversary's own losses: reversed before they reach the encoder
        )
        with torch.no_grad():
            same = (first.round() == second.round()).all(-1).float().mean()
            right = (scores.argmax(-1).flatten() == target).float().mean()
        return {
            "phones": phone_loss,
            "phones_right": right,
            "commitment": commitment,
            "agreement": agreement,
            "same_tokens": same,
            "told_at_token": told_at_token,
            "told_over_crop": told_over_crop,
        }


def _told(by_token: Tensor, by_crop: Tensor, speaker: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the adversary's two answers."""
    each = speaker[:, None].expand(-1, by_token.shape[1]).flatten()
    at_token = functional.cross_entropy(by_token.float().flatten(0, 1), each)
    return at_token, functional.cross_entropy(by_crop.float(), speaker)
