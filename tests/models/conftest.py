"""Excerpts of recordings, and what the official front end and stand-in encoders made of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from vivavoce.frontend.audio.decode import decode_audio
from vivavoce.frontend.audio.resample import resample_sinc


@pytest.fixture
def audio_data() -> Path:
    return Path(__file__).parents[1] / "data" / "audio"


@pytest.fixture
def speech(audio_data: Path) -> Callable[..., torch.Tensor]:
    """Name and rate → samples [n] of an excerpt."""

    def load(name: str, sample_rate: int = 16_000) -> torch.Tensor:
        audio = decode_audio(audio_data / f"{name}.wav")
        return resample_sinc(audio.samples, audio.sample_rate, sample_rate)

    return load


@pytest.fixture
def stored(audio_data: Path) -> Callable[[str, str], np.ndarray]:
    """Name and feature or output → stored values."""

    def load(name: str, key: str) -> np.ndarray:
        with np.load(audio_data / "goldens.npz") as goldens:
            return goldens[f"{name}/{key}"]

    return load
