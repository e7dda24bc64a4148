"""The excerpts and the official feature values for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from vivavoce.service.audio.decode import decode_audio
from vivavoce.service.audio.resample import resample_sinc

DATA = Path(__file__).parents[2] / "data" / "audio"


@pytest.fixture
def speech() -> Callable[[str, int], torch.Tensor]:
    """Name and rate → samples [n] of an excerpt."""

    def load(name: str, sample_rate: int) -> torch.Tensor:
        audio = decode_audio(DATA / f"{name}.wav")
        return resample_sinc(audio.samples, audio.sample_rate, sample_rate)

    return load


@pytest.fixture
def official() -> Callable[[str, str], np.ndarray]:
    """Name and feature → what the official front end computed."""

    def load(name: str, feature: str) -> np.ndarray:
        with np.load(DATA / "goldens.npz") as goldens:
            return goldens[f"{name}/{feature}"]

    return load
