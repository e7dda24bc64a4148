"""The engine inside this process as the target of `vivavoce bench`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from vivavoce.bench.load import MAX_CONCURRENCY
from vivavoce.bench.target import Piece, Refused, Utterance
from vivavoce.errors import Overloaded

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from vivavoce.checkpoint.folder import ModelCard
    from vivavoce.engine.chunk_policy import ChunkPolicy
    from vivavoce.engine.request import SamplingParams
    from vivavoce.service.voices.voice import Voice


class Audio(Protocol):
    """A chunk, or a whole text."""

    @property
    def samples(self) -> NDArray[np.float32]:
        """[n]."""
        ...


class Talker(Protocol):
    """What is used of what `vivavoce.load` gives."""

    @property
    def card(self) -> ModelCard:
        """The model's name, and what it says of itself."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Of language model and flow."""
        ...

    @property
    def sample_rate(self) -> int:
        """Of all its audio."""
        ...

    def voices(self) -> Sequence[str]:
        """The names that `voice` knows."""
        ...

    def voice(self, voice: Any = None, prompt_text: str = "") -> Voice:
        """The voice of a name or a recording; None: the default one."""
        ...

    def normalize(self, text: str) -> str:
        """The text as it is spoken."""
        ...

    def embed(self, source: Any) -> Any:
        """The speaker embedding of a recording: [speaker size]."""
        ...

    def speak(self, text: str, voice: Any, *, seed: int, sampling: SamplingParams) -> Audio:
        """Speak a text whole."""
        ...

    def astream(
        self, text: str, voice: Any, *, seed: int, sampling: SamplingParams, policy: ChunkPolicy
    ) -> AsyncIterator[Audio]:
        """Speak it in chunks."""
        ...

    def warm_up(self) -> None:
        """Prepare, before the first request."""
        ...

    def close(self) -> None:
        """Stop."""
        ...


@dataclass(frozen=True, eq=False)
class Manner:
    """How every request is spoken."""

    policy: ChunkPolicy | None
    """How streams are cut; None for whole utterances."""
    sampling: SamplingParams
    keep: bool
    """Hand out the samples with the pieces."""


class EngineTarget:
    """Speaks through the Python interface of a loaded model."""

    def __init__(self, tts: Talker, voices: Mapping[str, Voice], manner: Manner) -> None:
        """`voices`: by the names that utterances use, extracted already."""
        self._tts, self._voices, self._manner = tts, voices, manner
        self._threads = ThreadPoolExecutor(MAX_CONCURRENCY, "bench-offline")  # it starts those that are used

    @property
    def sample_rate(self) -> int:
        """See `Target`."""
        return self._tts.sample_rate

    async def speak(self, utterance: Utterance) -> AsyncIterator[Piece]:
        """See `Target`."""
        voice = None if utterance.voice is None else self._voices[utterance.voice]
        keywords: dict[str, Any] = {"seed": utterance.seed, "sampling": self._manner.sampling}
        try:
            if self._manner.policy is None:
                loop = asyncio.get_running_loop()
                speak = self._tts.speak
                speech = await loop.run_in_executor(self._threads, lambda: speak(utterance.text, voice, **keywords))
                yield self._piece(speech.samples)
                return
            async for chunk in self._tts.astream(utterance.text, voice, policy=self._manner.policy, **keywords):
                yield self._piece(chunk.samples)
        except Overloaded as error:
            raise Refused(error.retry_after_s) from error

    async def close(self) -> None:
        """See `Target`; the model is closed by whoever loaded it."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _piece(self, samples: Any) -> Piece:
        return Piece(len(samples), samples if self._manner.keep else None)
