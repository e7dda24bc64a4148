"""A corpus of hummed utterances, and networks small enough for a CPU."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from training.configs import mini_config
from training.data.store import TOKEN_SAMPLES, Corpus, Speaker, write_corpus
from vivavoce.checkpoint.config import ModelConfig

UTTERANCES, TOKENS = 10, 10


def hum(pitch: float, samples: int) -> torch.Tensor:
    """A voice of five equal harmonics that fades in and out."""
    phase = 2 * math.pi * pitch * torch.arange(samples) / 24_000
    fade = torch.hann_window(samples, periodic=False).sqrt()
    return 0.08 * fade * sum(torch.sin(k * phase) for k in range(1, 6))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    waves = [hum(110 + 15 * i, TOKENS * TOKEN_SAMPLES) for i in range(UTTERANCES)]
    pcm = (torch.cat(waves) * 32767).round().numpy().astype(np.int16)
    folder: Path = tmp_path_factory.mktemp("corpus")
    phones = np.zeros(UTTERANCES * TOKENS * 2, np.uint8)
    speakers = [Speaker("hum", "hum")]
    return write_corpus(folder, pcm, phones, [TOKENS] * UTTERANCES, [0] * UTTERANCES, ["hm"] * UTTERANCES, speakers)


@pytest.fixture(scope="session")
def config() -> ModelConfig:
    mini = mini_config()
    return replace(mini, vocoder=replace(mini.vocoder, base_channels=16, f0_channels=64))
