from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile

from benchmarks.watermark import marked
from vivavoce.engine.watermark import Samples

DATA = Path(__file__).parents[1] / "data"
RATE = 24_000


@pytest.fixture(scope="session")
def speech() -> Samples:
    """Two sentences of two speakers, 6.8 s at 24 kHz."""
    files = ("mini/unheard.flac", "parity/wavs/zero_shot_prompt.wav")
    return np.concatenate([soundfile.read(DATA / file, dtype="float32")[0] for file in files])


@pytest.fixture(scope="session")
def speech_with_mark(speech: Samples) -> Samples:
    return marked(speech, RATE)
