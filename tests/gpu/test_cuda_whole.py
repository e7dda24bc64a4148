"""CosyVoice 1 on a CUDA device: what the CPU says, in padded batches, and in 16 bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.engine.engine_helpers import MUTE, given, offline, running, segment, stream, voice
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.request import EngineRequest
from vivavoce.models.build import build_models

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
IDS, OFFICIAL = 4096, ChunkPolicy.official()
PROMPTED, OTHER = voice(1, 30, IDS), voice(2, 12, IDS)
REQUESTS = (
    offline(segment(40, seed=1, voice=PROMPTED), segment(9, seed=2, voice=MUTE)),
    stream(segment(130, seed=3, voice=OTHER), policy=OFFICIAL),
    stream(given(140, seed=4, voice=PROMPTED, ids=IDS), policy=OFFICIAL),
    offline(given(33, seed=5, speed=1.3, voice=OTHER, ids=IDS)),
)


def spoken(folder: Path, device: str, dtype: torch.dtype, requests: tuple[EngineRequest, ...] = REQUESTS):
    models = build_models(folder, torch.device(device), dtype)
    with running(models, source_noise=False) as engine:
        return [handle.result() for handle in [engine.submit(one) for one in requests]]


def test_float32_says_what_the_cpu_says(babble_v1):
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    try:
        found = spoken(babble_v1, "cuda", torch.float32)
    finally:
        torch.backends.cudnn.allow_tf32 = before
    for ours, theirs in zip(found, spoken(babble_v1, "cpu", torch.float32), strict=True):
        assert ours.tokens == theirs.tokens
        assert float(np.sqrt(np.square(ours.samples - theirs.samples).mean())) < 5e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_speak(babble_v1, dtype):
    for ours, theirs in zip(spoken(babble_v1, "cuda", dtype), spoken(babble_v1, "cpu", torch.float32), strict=True):
        assert len(ours.samples) == len(theirs.samples)
        assert 0.5 < np.abs(ours.samples).mean() / np.abs(theirs.samples).mean() < 2
