"""Streams of meaningless speech, which the engine speaks to measure the machine."""

from __future__ import annotations

import torch

from vivavoce.engine.chunk_policy import policy_for
from vivavoce.engine.request import Conditioning, EngineRequest, SamplingParams, SegmentRequest
from vivavoce.models.build import LanguageModel, Models

WARMUP_PROMPT, WARMUP_TOKENS = 100, 75
"""Number of speech tokens in the voice's prompt, and in the three seconds that are spoken."""


def warmup_stream(models: Models | LanguageModel, seed: int, from_text: bool) -> EngineRequest:
    """A stream of three seconds in a random voice; from_text: the language model makes its tokens."""
    assert isinstance(models, Models)
    generator, config = torch.Generator().manual_seed(seed), models.config
    tokens = torch.randint(config.flow.num_tokens, (WARMUP_PROMPT,), generator=generator)
    mel = torch.zeros(config.rates.frames_of(WARMUP_PROMPT), config.flow.num_mel_bins)
    voice = Conditioning(torch.ones(config.flow.speaker_size), (1,), tuple(tokens.tolist()), tokens, mel)
    if from_text:
        sampling = SamplingParams(exact_tokens=WARMUP_TOKENS)
        segment = SegmentRequest(voice, text=(1,) * 10, sampling=sampling, seed=seed)
    else:
        segment = SegmentRequest(voice, speech_tokens=tuple(tokens[:WARMUP_TOKENS].tolist()), seed=seed)
    return EngineRequest((segment,), policy_for(config.generation, None))
