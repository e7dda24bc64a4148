"""The speaker encoder's training from a corpus folder to `campplus.onnx` and the corpus's embeddings."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from training.data.store import Corpus, write_array
from training.loop import Budget, train
from training.onnx_graph import round_to_half
from training.record import log
from training.speaker.degrade import Degrade
from training.speaker.export import export_speaker_encoder
from training.speaker.extract import extract_embeddings
from training.speaker.measure import equal_error_rate, identified
from training.speaker.model import SpeakerNet, SpeakerSizes
from training.speaker.step import BATCH, CROP_SAMPLES, Step
from training.speaker.waves import load_waves
from training.utterances import evenly_by_speaker, heard, held_out, steps_in
from vivavoce.checkpoint.folder import SPEAKER_ENCODER
from vivavoce.models.speaker_encoder.onnx import SpeakerEncoder

PART = "speaker"
COMPARED_UTTERANCES = 20
JUDGED_UTTERANCES = 1000


@dataclass(frozen=True)
class Sizes:
    """What a test makes small; hours: of the corpus that the training holds on the device."""

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
    """Train, or continue in `out`; then export and write the corpus's `embeddings.npy`.

    Args:
        corpus_folder: see `training.data.store`.
        out: for the state, the log, `campplus.onnx` and `speaker.measures.json`.
        budget: of this training.
        device: where to.
        seed: of first weights and batches.
        others: a corpus folder of other speakers to measure by, which gets its `embeddings.npy` too; if None, some
            utterances of the corpus itself are kept from the training for this.
        sizes: of everything.

    Returns:
        The path of the exported model.
    """
    corpus = Corpus.open(corpus_folder)
    unseen = Corpus.open(others) if others else None
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    net = SpeakerNet(sizes.model).to(device)
    kept = held_out(corpus)
    learned = evenly_by_speaker(corpus, sizes.hours, None if unseen else ~kept)
    waves = load_waves(corpus, learned, device, max(sizes.crop_samples))
    judged_corpus, judged = (unseen, np.arange(len(unseen))) if unseen else (corpus, np.flatnonzero(kept))
    step = Step(corpus, waves, net, batch=sizes.batch, crop_samples=sizes.crop_samples)
    torch.manual_seed(seed + steps_in(out, PART))
    averages = train(
        PART,
        step,
        step.optimizers,
        step.modules,
        budget,
        out,
        device=device,
        variant=step.variant,
        averaged="net",
        validate=validation(judged_corpus, judged, net, device),
    )
    net.load_state_dict(averages)
    del waves, step
    return _finish(corpus, unseen, net, out, device)


def validation(
    corpus: Corpus, utterances: NDArray[np.int64], net: SpeakerNet, device: torch.device
) -> Callable[[], dict[str, float]]:
    """A function that measures equal error rate and identification among eight, also of degraded utterances."""
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


def _finish(corpus: Corpus, unseen: Corpus | None, net: SpeakerNet, out: Path, device: torch.device) -> Path:
    """Export, extract, measure."""
    round_to_half(net)
    path = out / SPEAKER_ENCODER
    export_speaker_encoder(net, path)
    measures = {}
    for name, one in (("corpus", corpus), ("others", unseen)):
        if one is not None:
            embeddings = extract_embeddings(one, net, device)
            write_array(one.folder / "embeddings.npy", embeddings.astype(np.float16))
            found = {
                "equal_error": equal_error_rate(embeddings, one.speaker),
                "of_8": identified(embeddings, embeddings, one.speaker),
                "lowest_cosine_to_onnx": lowest_cosine_to_onnx(one, embeddings, path),
            }
            log.info("%s: %s  %s", PART, name, "  ".join(f"{key} {value:.4g}" for key, value in found.items()))
            measures[name] = found
    (out / f"{PART}.measures.json").write_text(json.dumps(measures, indent=1), encoding="utf-8")
    return path


def lowest_cosine_to_onnx(corpus: Corpus, embeddings: NDArray[np.float32], path: Path, seed: int = 0) -> float:
    """The least cosine between some embeddings and those of the exported model with Kaldi's own features."""
    encoder = SpeakerEncoder.from_file(path)
    lowest = 1.0
    for utterance in np.random.default_rng(seed).permutation(len(corpus))[:COMPARED_UTTERANCES]:
        wave = heard(corpus, np.array([utterance]), torch.device("cpu"))[0]
        ours, theirs = torch.from_numpy(embeddings[utterance]), encoder(wave)
        lowest = min(lowest, float(torch.cosine_similarity(ours, theirs, dim=0)))
    return lowest
