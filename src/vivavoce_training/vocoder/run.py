"""Trains the vocoder on a corpus folder; writes `hift.pt`, measures and listening examples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from vivavoce.checkpoint.config import ModelConfig
from vivavoce.errors import InvalidRequest
from vivavoce.frontend.audio.encode import write_audio
from vivavoce.models.generations import NETWORKS, NetworkPart
from vivavoce_training.data.store import SAMPLE_RATE, Corpus
from vivavoce_training.loop import Budget, train
from vivavoce_training.utterances import steps_in
from vivavoce_training.vocoder.crops import Crop, Crops, load_crops, starts_apart_from
from vivavoce_training.vocoder.step import (
    BATCH,
    CROP_TOKENS,
    PERIOD_CHANNELS,
    RESOLUTION_CHANNELS,
    Discriminators,
    SpectralLoss,
    Vocoder,
    VocoderStep,
    drawn_noise,
)
from vivavoce_training.weights import initialise, load_part, save_part

PART = "vocoder"
ADVERSARY_FROM = 0.3
"""Share of the budget after which the discriminators join; earlier, they would only learn to tell noise from speech."""
TUNED_ADVERSARY_FROM = 0.1  # The same share if training starts from a trained vocoder.
TUNING_RATE = 0.3  # Factor on the learning rates if training starts from a trained vocoder.


@dataclass(frozen=True)
class Scale:
    batch: int = BATCH
    period_channels: tuple[int, ...] = PERIOD_CHANNELS
    resolution_channels: int = RESOLUTION_CHANNELS


def train_vocoder(
    corpus_folder: Path,
    out: Path,
    budget: Budget,
    device: torch.device,
    config: ModelConfig,
    *,
    seed: int = 0,
    init: Path | None = None,
    rate: float | None = None,
    flow_mels: Path | None = None,
    scale: Scale = Scale(),
) -> Path:
    """Train, or continue in `out`. Write `out/samples` and `out/hift.pt`, and return the path of `hift.pt`.

    config: sizes of the vocoder and of its mel; seed: of initial weights and batches; init: weights to start from: a
    `hift.pt`, a checkpoint folder, or the state of an earlier training (`vocoder.state.pt`) with its discriminators;
    rate: factor on the learning rates; flow_mels: as in `load_crops`; scale: smaller for a trial. ValueError: the
    corpus is too small, or `flow_mels` does not fit it; CheckpointError or InvalidRequest: `init` does not fit
    `config`.
    """
    corpus = Corpus.open(corpus_folder)
    torch.manual_seed(seed + steps_in(out, PART))
    part = NETWORKS[config.generation]["vocoder"]
    model = cast(Vocoder, part.build(config))
    discriminators = Discriminators(scale.period_channels, scale.resolution_channels)
    joins_at = _start_from(init, model, part, discriminators)
    crops = load_crops(corpus, config.mel, device, flow_mels)
    utterances = held_out_utterances(corpus)
    ranges = held_out_ranges(corpus, utterances)
    starts = starts_apart_from(ranges, corpus.num_tokens, CROP_TOKENS).to(device)
    factor = rate or (1.0 if init is None else TUNING_RATE)
    networks = model.to(device), discriminators.to(device)
    step = VocoderStep(crops, starts, *networks, batch=scale.batch, rate=factor, joins_at=joins_at)
    averages = train(PART, step, budget, out, device=device, validate=validation(model, crops, ranges))
    hift = save_part(out, averages, part)
    model.load_state_dict(averages)
    write_samples(model.eval(), corpus, crops, utterances, out / "samples")
    return hift


def _start_from(init: Path | None, model: Vocoder, part: NetworkPart, discriminators: Discriminators) -> float:
    """Load or initialise the networks, and return the share of the budget after which the discriminators join."""
    if init is None:
        initialise(model)
        return ADVERSARY_FROM
    if not init.name.endswith(".state.pt"):
        load_part(model, init, part)
        return TUNED_ADVERSARY_FROM
    state = torch.load(init, map_location="cpu", weights_only=True)
    try:
        model.load_state_dict(state["average"])
        discriminators.load_state_dict(state["modules"]["discriminators"])
    except RuntimeError:
        raise InvalidRequest(f"init: {init} is of a vocoder of other sizes; name its settings by --settings") from None
    return 0.0


MOST_UTTERANCES = 16
ONE_IN = 8
WINDOW_TOKENS = 50  # equal for all, because a GPU searches the fastest convolutions again for each new length
NUM_SAMPLES = 4


def held_out_utterances(corpus: Corpus) -> list[int]:
    """Choose the utterances that are kept from training, evenly spread; ValueError: the corpus is too small."""
    count = min(MOST_UTTERANCES, len(corpus) // ONE_IN)
    if not count or corpus.num_tokens < WINDOW_TOKENS:
        raise ValueError(
            f"corpus: {len(corpus)} utterances, {corpus.num_tokens} tokens; "
            f"give at least {ONE_IN} utterances and {WINDOW_TOKENS} tokens"
        )
    return [i * len(corpus) // count for i in range(count)]


def held_out_ranges(corpus: Corpus, utterances: list[int]) -> list[tuple[int, int]]:
    """Return the tokens [first, last) of the utterances, at least a validation window each."""
    bounds = ((int(corpus.start[i]), int(corpus.start[i + 1])) for i in utterances)
    return [(first, max(last, first + WINDOW_TOKENS)) for first, last in bounds]


def validation(model: Vocoder, crops: Crops, ranges: list[tuple[int, int]]) -> Callable[[], dict[str, float]]:
    """Make a function that vocodes a window of each held-out range with the predicted pitch, and returns the errors.

    These are the STFT and mel losses, the mean pitch error in % over frames where both the predicted and the tracked
    pitch are voiced, and the share of frames in % whose voicing is wrong.
    """
    device = crops.wave.device
    last = crops.num_tokens - WINDOW_TOKENS
    starts = torch.tensor([min(first, last) for first, _ in ranges], device=device)
    spectral = SpectralLoss(model.config.sample_rate).to(device)
    threshold = model.config.voiced_threshold_hz

    def measure() -> dict[str, float]:
        crop = crops.cut(starts, WINDOW_TOKENS)
        pitch = model.f0(crop.mel, None)
        stft, mel = spectral(_vocoded(model, crop, pitch), crop.wave)
        ours, theirs = pitch > threshold, crop.pitch > 0
        both = ours & theirs
        error = ((pitch - crop.pitch).abs() / crop.pitch.clamp(min=1))[both].mean()
        return {
            "stft": float(stft),
            "mel": float(mel),
            "pitch_percent": 100 * float(error.nan_to_num()),
            "voicing_percent": 100 * float((ours != theirs).float().mean()),
        }

    return measure


@torch.no_grad()
def write_samples(model: Vocoder, corpus: Corpus, crops: Crops, utterances: list[int], folder: Path) -> list[Path]:
    """Write a few held-out utterances as `<index>.real.wav` and `<index>.vocoded.wav`, and, if the corpus has the
    flow's mels, the audio from these as `<index>.flow.wav`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for i in utterances[:: max(1, len(utterances) // NUM_SAMPLES)][:NUM_SAMPLES]:
        first, last = int(corpus.start[i]), int(corpus.start[i + 1])
        start = torch.tensor([first], device=crops.wave.device)
        real = crops.cut(start, last - first)
        waves = {"real": real.wave, "vocoded": _vocoded(model, real, model.f0(real.mel, None))}
        if crops.flow_mel is not None:
            flow = crops.cut(start, last - first, flow_share=1.0)
            waves["flow"] = _vocoded(model, flow, model.f0(flow.mel, None))
        for kind, samples in waves.items():
            path = folder / f"{i}.{kind}.wav"
            write_audio(path, samples[0].cpu().numpy(), SAMPLE_RATE)
            written.append(path)
    return written


def _vocoded(model: Vocoder, crop: Crop, pitch: Tensor) -> Tensor:
    """Compute a waveform [batch, samples], equal in each call, because the noise has fixed seeds."""
    seeds = torch.arange(len(pitch), device=pitch.device)[:, None]
    return model.decode(crop.mel, model.source(pitch, drawn_noise(model, pitch, seeds)))
