"""Stand-in encoders, the excerpts and what the encoders make of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from vivavoce.service.audio.decode import decode_audio
from vivavoce.service.audio.resample import resample_sinc


@pytest.fixture
def encoder_data() -> Path:
    return Path(__file__).parents[2] / "data" / "audio"


@pytest.fixture
def speech(encoder_data: Path) -> Callable[[str], torch.Tensor]:
    """Name → samples [n] of an excerpt at 16 kHz."""

    def load(name: str) -> torch.Tensor:
        audio = decode_audio(encoder_data / f"{name}.wav")
        return resample_sinc(audio.samples, audio.sample_rate, 16_000)

    return load


@pytest.fixture
def expected(encoder_data: Path) -> Callable[[str, str], np.ndarray]:
    """Name and output → stored values."""

    def load(name: str, output: str) -> np.ndarray:
        with np.load(encoder_data / "goldens.npz") as goldens:
            return goldens[f"{name}/{output}"]

    return load
