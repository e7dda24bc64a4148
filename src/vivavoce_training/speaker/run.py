"""Trains the speaker encoder on a corpus folder; writes `campplus.onnx` and the corpus's embeddings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from vivavoce.checkpoint.folder import SPEAKER_ENCODER
from vivavoce.models.encoders import SpeakerEncoder
from vivavoce.models.features import speaker_fbank
from vivavoce_training.data.store import Corpus, write_array
from vivavoce_training.loop import Budget, Optimizer, Recipe, TrainingStep, train
from vivavoce_training.onnx_graph import round_to_half
from vivavoce_training.record import write_measures
from vivavoce_training.speaker.measure import equal_error_rate, extract_embeddings, identified
from vivavoce_training.speaker.model import MarginHead, SpeakerNet, SpeakerSizes, TraitHead, export_speaker_encoder
from vivavoce_training.speaker.waves import Degrade, Waves, load_waves
from vivavoce_training.utterances import Split, heard_alone, steps_in

BATCH = 96
CROP_SAMPLES = (24_000, 40_000, 64_000)  # 1.5, 2.5 and 4 s at 16 kHz; one variant of the step each
RECIPE = Recipe(learning_rate=1e-3, warmup_steps=200, weight_decay=0.05)

TRAIT_WEIGHT = 0.5
AGREEMENT_WEIGHT = 2.0


class SpeakerStep(TrainingStep):
    """A training step of the speaker encoder; each variant is a length of crops.

    The encoder gets each crop twice, as it is and degraded. It learns to identify the speaker from both versions, and
    to give both embeddings the same direction.
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
        self._degrade = Degrade().to(device)
        self._margin = MarginHead(len(corpus.speakers)).to(device)
        self._traits = torch.tensor([speaker.traits for speaker in corpus.speakers], device=device)
        self._trait = TraitHead(self._traits.shape[1]).to(device)
        self.modules = {"net": net, "margin": self._margin, "trait": self._trait}
        learned = [parameter for module in self.modules.values() for parameter in module.parameters()]
        self.optimizers = {"speaker": Optimizer(learned, RECIPE)}

    def variant(self, step: int, progress: float) -> int:
        return step % len(self._crop_samples)

    def __call__(self, variant: int) -> dict[str, Tensor]:
        crops, speaker = self._waves.draw(self._batch, self._crop_samples[variant])
        energies = speaker_fbank(torch.cat([crops, self._degrade(crops)]))
        with torch.autocast(energies.device.type, torch.bfloat16, enabled=energies.is_cuda):
            embeddings = self._net(energies)
        margin, right = self._margin(embeddings, speaker.repeat(2))
        trait = self._trait(embeddings, self._traits[speaker].repeat(2, 1))
        plain, degraded = embeddings.chunk(2)
        agreement = functional.cosine_similarity(plain, degraded).mean()
        self.optimizers["speaker"].update(margin + TRAIT_WEIGHT * trait + AGREEMENT_WEIGHT * (1 - agreement))
        return {"margin": margin, "right": right, "trait": trait, "agreement": agreement}


PART = "speaker"
COMPARED_UTTERANCES = 20
JUDGED_UTTERANCES = 1000


@dataclass(frozen=True)
class Sizes:
    """Settings that a test makes small; hours: part of the corpus that is held on the device for training."""

    model: SpeakerSizes = field(default_factory=SpeakerSizes)
    batch: int = BATCH
    crop_samples: tuple[int, ...] = CROP_SAMPLES
    hours: float = 15.0


def train_speaker(
    corpus_folder: Path,
    out: Path,
    budget: Budget,
    device: torch.device,
    *,
    seed: int = 0,
    others: Path | None = None,
    sizes: Sizes = Sizes(),
) -> Path:
    """Train, or continue the training in `out`; then export, and write the corpus's `embeddings.npy`.

    out: gets the state, the log, `campplus.onnx` and `speaker.measures.json`; seed: of initial weights and batches;
    others: as in `Split`, a corpus folder that gets its `embeddings.npy` too. Returns the path of the exported model.
    """
    split = Split.open(corpus_folder, others, sizes.hours)
    torch.manual_seed(seed)
    net = SpeakerNet(sizes.model).to(device)
    waves = load_waves(split.corpus, split.learned, device, max(sizes.crop_samples))
    step = SpeakerStep(split.corpus, waves, net, batch=sizes.batch, crop_samples=sizes.crop_samples)
    torch.manual_seed(seed + steps_in(out, PART))
    judge = validation(split.judged_of, split.judged, net, device)
    net.load_state_dict(train(PART, step, budget, out, device=device, validate=judge))
    del waves, step
    round_to_half(net)
    path = out / SPEAKER_ENCODER
    export_speaker_encoder(net, path)
    write_measures(PART, out, {name: _written(one, net, path, device) for name, one in split.corpora.items()})
    return path


def validation(
    corpus: Corpus, utterances: NDArray[np.int64], net: SpeakerNet, device: torch.device
) -> Callable[[], dict[str, float]]:
    """Make a function that measures the equal error rate, and identification among 8 speakers, also if degraded."""
    if len(utterances) > JUDGED_UTTERANCES:
        utterances = utterances[np.linspace(0, len(utterances) - 1, JUDGED_UTTERANCES).astype(np.int64)]
    speaker = corpus.speaker[utterances]
    degrade = Degrade().to(device)

    def measure() -> dict[str, float]:
        plain = extract_embeddings(corpus, net, device, utterances=utterances)
        degraded = extract_embeddings(corpus, net, device, utterances=utterances, change=degrade)
        return {
            "equal_error": equal_error_rate(plain, speaker),
            "of_8": identified(plain, plain, speaker),
            "degraded_of_8": identified(plain, degraded, speaker),
        }

    return measure


def _written(corpus: Corpus, net: SpeakerNet, path: Path, device: torch.device) -> dict[str, float]:
    """Write a corpus's embeddings. Return their measures, and how near the exported model's embeddings are."""
    embeddings = extract_embeddings(corpus, net, device)
    write_array(corpus.folder / "embeddings.npy", embeddings.astype(np.float16))
    encoder = SpeakerEncoder.from_file(path)
    compared = np.random.default_rng(0).permutation(len(corpus))[:COMPARED_UTTERANCES]
    cosines = [
        float(torch.cosine_similarity(torch.from_numpy(embeddings[one]), encoder(heard_alone(corpus, one)), dim=0))
        for one in compared
    ]
    return {
        "equal_error": equal_error_rate(embeddings, corpus.speaker),
        "of_8": identified(embeddings, embeddings, corpus.speaker),
        "lowest_cosine_to_onnx": min(1.0, *cosines),
    }
