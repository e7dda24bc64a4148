"""The vocoder's training from a corpus folder to `hift.pt` and listening examples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from training.data.store import Corpus
from training.loop import Budget, train
from training.utterances import steps_in
from training.vocoder.crops import load_crops, starts_apart_from
from training.vocoder.discriminators import PERIOD_CHANNELS, RESOLUTION_CHANNELS, Discriminators
from training.vocoder.step import ALONE, BATCH, CROP_TOKENS, WITH_ADVERSARY, Step
from training.vocoder.validation import held_out_ranges, held_out_utterances, validation, write_samples
from training.vocoder.weights import initialise, load_official, save_official
from vivavoce.checkpoint.config import ModelConfig
from vivavoce.models.vocoder.hift import HiFT

PART = "vocoder"
ADVERSARY_FROM = 0.3
"""Share of the budget after which the adversary joins: before, it would only learn that noise is no speech."""
TUNING_RATE = 0.3
"""Factor on the learning rates when the training starts from a trained vocoder."""


@dataclass(frozen=True)
class Scale:
    """How large a step is, apart from the model."""

    batch: int = BATCH
    period_channels: tuple[int, ...] = PERIOD_CHANNELS
    resolution_channels: int = RESOLUTION_CHANNELS


FULL_SCALE = Scale()


def train_vocoder(
    corpus_folder: Path,
    out: Path,
    budget: Budget,
    device: torch.device,
    config: ModelConfig,
    *,
    seed: int = 0,
    init: Path | None = None,
    flow_mels: Path | None = None,
    scale: Scale = FULL_SCALE,
) -> Path:
    """Train, or continue in `out`, and write `out/hift.pt` and `out/samples`.

    Args:
        corpus_folder: see `training.data.store`.
        out: for the state, the log and the results.
        budget: of this training.
        device: where to.
        config: sizes of the vocoder and of its mel.
        seed: of first weights and batches.
        init: start from these weights: a `hift.pt`, a checkpoint folder, or the state of an earlier training
            (`vocoder.state.pt`), which brings its adversary along.
        flow_mels: mels of the flow, see `load_crops`.
        scale: smaller for a trial.

    Returns:
        The path of `hift.pt`.

    Raises:
        ValueError: the corpus is too small, or `flow_mels` does not fit it.
        CheckpointError: `init` does not fit `config`.
    """
    corpus = Corpus.open(corpus_folder)
    torch.manual_seed(seed + steps_in(out, PART))
    model = HiFT(config.vocoder)
    discriminators = Discriminators(scale.period_channels, scale.resolution_channels)
    joins_at = _start_from(init, model, discriminators)
    model.to(device)
    discriminators.to(device)

    crops = load_crops(corpus, config.mel, device, flow_mels)
    utterances = held_out_utterances(corpus)
    ranges = held_out_ranges(corpus, utterances)
    starts = starts_apart_from(ranges, corpus.num_tokens, CROP_TOKENS).to(device)
    rate = 1.0 if init is None else TUNING_RATE
    step = Step(crops, starts, model, discriminators, batch=scale.batch, rate=rate)
    averages = train(
        PART,
        step,
        step.optimizers,
        {"generator": model, "discriminators": discriminators},
        budget,
        out,
        device=device,
        variant=lambda _, progress: WITH_ADVERSARY if progress >= joins_at else ALONE,
        averaged="generator",
        validate=validation(model, crops, ranges),
    )
    save_official(averages, out / "hift.pt")
    model.load_state_dict(averages)
    write_samples(model.eval(), corpus, crops, utterances, out / "samples")
    return out / "hift.pt"


def _start_from(init: Path | None, model: HiFT, discriminators: Discriminators) -> float:
    """Fill the networks; the share of the budget after which the adversary joins."""
    if init is None:
        initialise(model)
        return ADVERSARY_FROM
    if not init.name.endswith(".state.pt"):
        load_official(model, init)
        return ADVERSARY_FROM
    state = torch.load(init, map_location="cpu", weights_only=True)
    model.load_state_dict(state["average"])
    discriminators.load_state_dict(state["modules"]["discriminators"])
    return 0.0
