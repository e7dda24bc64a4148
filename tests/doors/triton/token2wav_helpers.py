"""Token2wav on the tiny checkpoint, what clients send it, and the engine's answer to the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from tests.doors.triton.fake_backend import FakeBackend, InferenceRequest, output
from tests.engine.engine_helpers import joined, running
from vivavoce.doors.triton.models.flow_prompts import Prompt
from vivavoce.doors.triton.models.synthesis import Synthesis
from vivavoce.doors.triton.models.token2wav import Token2Wav
from vivavoce.doors.triton.models.token2wav_streams import Bounds
from vivavoce.engine.chunk_policy import ChunkPolicy, Progress
from vivavoce.engine.request import Conditioning, SpeechRequest, SynthesisRequest
from vivavoce.engine.settings import MemoryPlan
from vivavoce.models.build import Models

TEXT_SIZE, LOOKAHEAD, SAMPLES_PER_TOKEN = 300, 3, 960
"""Where speech begins in the merged vocabulary: merged and plain ids overlap, as in all small models."""
BACKEND = FakeBackend()


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def halves(seed: int = 7, prompt: int = 30) -> Conditioning:
    """A voice of random features that lose nothing on their way in FP16."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 6561, (prompt,), generator=generator)
    return Conditioning(
        embedding=torch.randn(192, generator=generator).half().float(),
        flow_tokens=tokens,
        flow_mel=torch.randn(2 * prompt, 80, generator=generator).half().float() if prompt else torch.zeros(0, 0),
    )


VOICE, OTHER, BARE = halves(), halves(8, 21), halves(9, 0)
"""Two with a prompt; one without."""


def drawn(count: int, seed: int = 3) -> tuple[int, ...]:
    """Random speech tokens."""
    return tuple(torch.randint(0, 6561, (count,), generator=torch.Generator().manual_seed(seed)).tolist())


def made(models: Models, default: Conditioning | None = None, **options: Any) -> Token2Wav:
    """The model, without a server."""
    memory = MemoryPlan(1, 64, options.pop("state_bytes", 64 << 20), options.pop("batch_frames", None))
    synthesis = Synthesis(models, memory)
    prompt = None if default is None else Prompt(b"", default)
    return Token2Wav(BACKEND, models, synthesis, TEXT_SIZE, prompt, options.pop("bounds", Bounds()), **options)


def merged(tokens: Sequence[int]) -> np.ndarray:
    return np.array(tokens, np.int32)[None] + np.int32(TEXT_SIZE)


def voice_tensors(voice: Conditioning | None) -> dict[str, np.ndarray]:
    if voice is None:
        return {}
    tensors = {"prompt_spk_embedding": voice.embedding.numpy().astype(np.float16)[None]}
    if len(voice.flow_tokens):
        tensors["prompt_speech_tokens"] = merged(voice.flow_tokens.tolist())
        tensors["prompt_speech_feat"] = voice.flow_mel.numpy().astype(np.float16)[None]
    return tensors


def asked(
    tokens: Sequence[int],
    voice: Conditioning | None = VOICE,
    *,
    name: str = "",
    offset: int | None = None,
    last: bool | None = None,
    seed: int | None = None,
    speed: float | None = None,
) -> InferenceRequest:
    """A request as a client sends it; numbers of a step have the batch dimension only."""
    tensors = {"target_speech_tokens": merged(tokens), **voice_tensors(voice)}
    if offset is not None:
        tensors["token_offset"] = np.array([offset], np.int32)
    if last is not None:
        tensors["finalize"] = np.array([last])
    if seed is not None:
        tensors["seed"] = np.array([[seed]], np.int64)
    if speed is not None:
        tensors["speed"] = np.array([[speed]], np.float32)
    return BACKEND.request(name, model_name="token2wav", **tensors)


def steps(tokens: Sequence[int], hops: Sequence[int], name: str, **given: Any) -> Iterator[InferenceRequest]:
    """The requests of a stream that is cut like this."""
    spoken = 0
    for number, hop in enumerate(hops):
        last = number == len(hops) - 1
        there = tokens if last else tokens[: spoken + hop + LOOKAHEAD]
        yield asked(there, name=name, offset=spoken, last=last, **given)
        spoken += hop


def hops_of(policy: ChunkPolicy, count: int, prompt: int = 30) -> list[int]:
    """The chunks of so many tokens that were all there from the start."""
    cut: list[int] = []
    while True:
        spoken = sum(cut)
        hop = policy.next_hop(Progress(len(cut), spoken, count - spoken, prompt, 0.0))
        if count - spoken < hop + LOOKAHEAD:
            return [*cut, count - spoken]
        cut.append(hop)


def waves(model: Token2Wav, *requests: InferenceRequest) -> list[np.ndarray]:
    """Waveforms [n] of a batch of which none is refused."""
    answers = [output(response, "waveform") for response in model.execute(requests)]
    assert all(wave.dtype == np.float32 and wave.shape[0] == 1 and wave.ndim == 2 for wave in answers)
    return [wave[0] for wave in answers]


def engine_wave(
    models: Models,
    tokens: Sequence[int],
    voice: Conditioning,
    policy: ChunkPolicy | None = None,
    seed: int = 0,
    speed: float = 1.0,
) -> np.ndarray:
    """What the engine makes of the same: whole, or as a stream."""
    request = SynthesisRequest(voice, speech_tokens=tuple(tokens), seed=seed, speed=speed)
    with running(models) as engine:
        return joined(engine.submit(SpeechRequest((request,), policy)))
