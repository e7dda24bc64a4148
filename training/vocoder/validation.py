"""Measurements and listening examples on utterances that the training leaves out."""

from __future__ import annotations

import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from training.data.store import SAMPLE_RATE, Corpus
from training.vocoder.crops import Crop, Crops
from training.vocoder.losses import SpectralLoss
from vivavoce.models.vocoder.hift import HiFT

MOST_UTTERANCES = 16
ONE_IN = 8
WINDOW_TOKENS = 50
"""Windows of one length: on a GPU, each new one would cost a search for the fastest convolutions."""
NUM_SAMPLES = 4


def held_out_utterances(corpus: Corpus) -> list[int]:
    """Indices of the utterances that are kept from training, evenly spread.

    Raises:
        ValueError: the corpus is too small to spare one.
    """
    count = min(MOST_UTTERANCES, len(corpus) // ONE_IN)
    if not count or corpus.num_tokens < WINDOW_TOKENS:
        raise ValueError(
            f"corpus: {len(corpus)} utterances, {corpus.num_tokens} tokens; "
            f"give at least {ONE_IN} utterances and {WINDOW_TOKENS} tokens"
        )
    return [i * len(corpus) // count for i in range(count)]


def held_out_ranges(corpus: Corpus, utterances: list[int]) -> list[tuple[int, int]]:
    """Tokens [first, last) of the utterances, at least a validation window each."""
    bounds = ((int(corpus.start[i]), int(corpus.start[i + 1])) for i in utterances)
    return [(first, max(last, first + WINDOW_TOKENS)) for first, last in bounds]


def validation(model: HiFT, crops: Crops, ranges: list[tuple[int, int]]) -> Callable[[], dict[str, float]]:
    """A function that vocodes a window of each held-out range from its predicted pitch, and measures.

    It gives the STFT and mel losses, the mean pitch error in % over frames voiced on both sides, and the share of
    frames in % whose voicing is wrong.
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
def write_samples(model: HiFT, corpus: Corpus, crops: Crops, utterances: list[int], folder: Path) -> list[Path]:
    """Write a few held-out utterances as `<index>.real.wav` and `<index>.vocoded.wav`; from the flow's mel too, where
    there is one, as `<index>.flow.wav`.
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
            _write_wav(path, samples[0])
            written.append(path)
    return written


def _vocoded(model: HiFT, crop: Crop, pitch: Tensor) -> Tensor:
    """[batch, samples], the same each time: the source's noise has a generator of its own."""
    generator = torch.Generator(pitch.device).manual_seed(0)
    shape = (len(pitch), *model.noise_shape(pitch.shape[1]))
    noise = torch.randn(shape, device=pitch.device, generator=generator)
    return model.decode(crop.mel, model.source(pitch, noise))


def _write_wav(path: Path, samples: Tensor) -> None:
    """samples: [n] float in ±1  →  16-bit mono."""
    pcm = (samples.clamp(-1, 1) * 32767).round().short().cpu().numpy()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes(pcm.astype(np.dtype("<i2")).tobytes())
