"""The plain loop with the methods of `vivavoce.Vivavoce` that a benchmark calls; requests run one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.plain.speech import plain_speech, plain_stream
from vivavoce.checkpoint.config import Generation
from vivavoce.checkpoint.folder import ModelCard
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.request import AudioChunk, SamplingParams, SegmentRequest
from vivavoce.frontend.front_end import load_front_end
from vivavoce.frontend.voices.registry import VoiceRegistry
from vivavoce.frontend.voices.stores import open_voice_store
from vivavoce.frontend.voices.voice import Voice, built_in_voices
from vivavoce.models.build import build_models


@dataclass(frozen=True, eq=False)
class Whole:
    """A whole text's audio; samples: [n] float32."""

    samples: NDArray[np.float32]


class PlainTalker:
    """One loaded model, and one request at a time: the next one begins when the last one's audio is complete."""

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        dtype: torch.dtype,
        variant: str | None = None,
        voices: Path | None = None,
    ) -> None:
        self.device, self.dtype = device, dtype
        self._models = build_models(folder, device, dtype, variant)
        self._front_end = load_front_end(folder, self._models.config)
        extractor = self._front_end.extractor
        store = open_voice_store(voices)
        self._registry = VoiceRegistry(extractor, store, built_in_voices(folder), extractor.fingerprint)
        self.voices, self.voice = self._registry.names, self._registry.resolve
        self.embed = extractor.embedding
        self._worker = ThreadPoolExecutor(1, "plain")
        self._turn = asyncio.Lock()

    def normalize(self, text: str) -> str:
        """The text with numbers and signs in words, as it is spoken."""
        return self._front_end.text.explain(text).spoken

    @property
    def card(self) -> ModelCard:
        """The model's card: its name and description."""
        return self._front_end.card

    @property
    def generation(self) -> Generation:
        return self._models.config.generation

    @property
    def sample_rate(self) -> int:
        """Samples per second of all audio."""
        return self._models.config.rates.sample_rate

    def warm_up(self) -> None:
        """Do nothing: the plain loop needs no warm-up."""

    def close(self) -> None:
        """Stop the worker thread."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    async def aspeak(self, text: str, voice: Voice | None, *, seed: int, sampling: SamplingParams) -> Whole:
        """Speak a whole text, segment by segment, when all earlier requests are done."""

        def work() -> list[NDArray[np.float32]]:
            requests = self._requests(text, voice, seed, sampling)
            return [plain_speech(self._models, request).samples for request in requests]

        return Whole(np.concatenate(await asyncio.get_running_loop().run_in_executor(self._worker, work)))

    async def astream(
        self, text: str, voice: Voice | None, *, policy: ChunkPolicy, seed: int, sampling: SamplingParams
    ) -> AsyncIterator[AudioChunk]:
        """Stream a text when all earlier requests are done; each chunk comes as soon as it is made."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            pieces = self._pieces(text, voice, seed, sampling, policy)
            index = 0
            while (samples := await loop.run_in_executor(self._worker, next, pieces, None)) is not None:
                yield AudioChunk(samples, self.sample_rate, index, False)
                index += 1

    def _pieces(
        self, text: str, voice: Voice | None, seed: int, sampling: SamplingParams, policy: ChunkPolicy
    ) -> Iterator[NDArray[np.float32]]:
        for request in self._requests(text, voice, seed, sampling):
            yield from plain_stream(self._models, request, policy)

    def _requests(
        self, text: str, voice: Voice | None, seed: int, sampling: SamplingParams
    ) -> Sequence[SegmentRequest]:
        chosen = voice or self.voice()
        conditioning = self._front_end.conditioning(chosen)
        text_front_end = self._front_end.text
        return [
            SegmentRequest(conditioning, text_front_end.encode(segment), sampling=sampling, seed=seed + place)
            for place, segment in enumerate(text_front_end.segments(text, reading="natural"))
        ]
