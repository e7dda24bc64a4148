"""One training step of the speaker encoder."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from training.data.store import Corpus
from training.loop import Optimizer, Recipe
from training.speaker.degrade import Degrade
from training.speaker.fbank import Fbank
from training.speaker.model import MarginHead, SpeakerNet, TraitHead
from training.speaker.waves import Waves

BATCH = 96
CROP_SAMPLES = (24_000, 40_000, 64_000)
"""1.5, 2.5 and 4 s at 16 kHz; one variant of the step each."""
RECIPE = Recipe(learning_rate=1e-3, warmup_steps=200, weight_decay=0.05)

TRAIT_WEIGHT = 0.5
AGREEMENT_WEIGHT = 2.0
TRACT_DEVIATION, PITCH_DEVIATION = 0.09, 0.14
"""Of the logarithms of both factors over the training's speakers, about."""


class Step:
    """What `training.loop.train` calls.

    Each crop is heard twice, once as it is and once degraded: the speaker is told from either, and both embeddings
    shall point the same way.
    """

    def __init__(
        self,
        corpus: Corpus,
        waves: Waves,
        net: SpeakerNet,
        *,
        batch: int = BATCH,
        crop_samples: tuple[int, ...] = CROP_SAMPLES,
    ) -> None:
        device = waves.samples.device
        self._waves, self._net, self._batch, self._crop_samples = waves, net, batch, crop_samples
        self._fbank, self._degrade = Fbank().to(device), Degrade().to(device)
        self._margin = MarginHead(len(corpus.speakers)).to(device)
        self._trait = TraitHead().to(device)
        self._traits = torch.tensor(
            [
                (math.log(speaker.tract) / TRACT_DEVIATION, math.log(speaker.pitch) / PITCH_DEVIATION)
                for speaker in corpus.speakers
            ],
            device=device,
        )
        self.modules = {"net": net, "margin": self._margin, "trait": self._trait}
        learned = [parameter for module in self.modules.values() for parameter in module.parameters()]
        self.optimizers = {"speaker": Optimizer(learned, RECIPE)}

    def variant(self, step: int, progress: float) -> int:
        """The crops' lengths in turn."""
        return step % len(self._crop_samples)

    def __call__(self, variant: int) -> dict[str, Tensor]:
        """One step on a fresh batch of crops of the variant's length."""
        crops, speaker = self._waves.draw(self._batch, self._crop_samples[variant])
        energies = self._fbank(torch.cat([crops, self._degrade(crops)]))
        with torch.autocast(energies.device.type, torch.bfloat16, enabled=energies.is_cuda):
            embeddings = self._net(energies)
        margin, right = self._margin(embeddings, speaker.repeat(2))
        trait = self._trait(embeddings, self._traits[speaker].repeat(2, 1))
        plain, degraded = embeddings.chunk(2)
        agreement = functional.cosine_similarity(plain, degraded).mean()
        self.optimizers["speaker"].update(margin + TRAIT_WEIGHT * trait + AGREEMENT_WEIGHT * (1 - agreement))
        return {"margin": margin, "right": right, "trait": trait, "agreement": agreement}
