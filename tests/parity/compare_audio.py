"""Audio front end: resampling, mels, speaker features of the recordings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tests.parity.check import Check, Skip, close, guarded
from tests.parity.reference import Arrays, Golden, Reference
from vivavoce.checkpoint.config import MelConfig
from vivavoce.frontend.audio.decode import decode_audio
from vivavoce.frontend.audio.resample import resample_sinc
from vivavoce.models.features import prompt_mel, speaker_fbank, whisper_log_mel

V2 = MelConfig(24_000, 1920, 1920, 480, 80, 0.0, 8_000.0)
V3 = MelConfig(24_000, 1920, 1920, 480, 80, 0.0, 12_000.0)
V1 = MelConfig(22_050, 1024, 1024, 256, 80, 0.0, 8_000.0)
MELS = {"mel_v2": (V2, 24_000), "mel_v3": (V3, 24_000), "mel_v1": (V1, 24_000), "mel_v1_true22k": (V1, 22_050)}


MEL_FLOOR = 1e-3
"""Mels below it are a sum of what an FFT leaves of far louder neighbours: their logarithm tells its rounding."""


def compare_mels(name: str, ours: Tensor, theirs: Tensor) -> Iterator[Check]:
    """Natural-log mels [frames, bins]: the logarithms above the floor, and all of them as magnitudes."""
    loud = math.log(MEL_FLOOR)
    yield close(name, ours.clamp(min=loud), theirs.clamp(min=loud), 5e-4)
    yield close(f"{name} linear", ours.double().exp(), theirs.double().exp(), 5e-6)


def compare(golden: Golden, reference: Reference) -> Iterator[Check | Skip]:
    for case, settings in golden.meta["cases"].items():
        name = f"{golden.label} {case}"
        yield from guarded(name, _case(name, case, settings, golden.arrays, reference))


def _case(
    name: str, case: str, settings: dict[str, Any], arrays: Arrays, reference: Reference
) -> Iterator[Check | Skip]:
    audio = decode_audio(reference.wav(settings["file"]))
    waves = {rate: resample_sinc(audio.samples, audio.sample_rate, rate) for rate in (16_000, 22_050, 24_000)}
    for rate in (16_000, 24_000):
        head = arrays[f"{case}/wave{rate // 1000}k_head"]
        yield close(f"{name} {rate} Hz", waves[rate][: len(head)], head, 1e-5)
    for key, rate in (("samples_16k", 16_000), ("samples_22k", 22_050), ("samples_24k", 24_000)):
        if key in settings:
            yield close(f"{name} {key}", len(waves[rate]), settings[key], 0)
    for array, (config, rate) in MELS.items():
        if f"{case}/{array}" in arrays:
            theirs = arrays.tensor(f"{case}/{array}")
            yield from compare_mels(f"{name} {array}", prompt_mel(waves[rate][None], config)[0, : len(theirs)], theirs)
    speech = waves[16_000]
    yield close(f"{name} whisper mel", whisper_log_mel(speech), arrays[f"{case}/whisper_logmel128"], 5e-4)
    fbank = speaker_fbank(speech)
    yield close(f"{name} fbank", fbank, arrays[f"{case}/fbank"], 2e-3)
    # What is subtracted is the mean of the raw energies: features and mean together give them back.
    mean = arrays.tensor(f"{case}/fbank_time_mean")
    yield close(f"{name} fbank mean is gone", fbank.mean(0), torch.zeros_like(mean), 1e-4)
