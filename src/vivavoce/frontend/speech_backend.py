"""The interface between a server's protocols (such as HTTP) and a backend, which makes the speech.

A backend is an engine in a process of its own, or another server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypedDict, runtime_checkable

from typing_extensions import Unpack

from vivavoce.checkpoint.folder import ModelCard
from vivavoce.engine.adapters import AdapterInfo
from vivavoce.engine.statistics import StatisticsSnapshot
from vivavoce.frontend.speech import Recording, SpeechEvent, SpeechRequest, Verdict
from vivavoce.frontend.voices.consent import Consent
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce_textnorm import NormalizedText


class VoiceOptions(TypedDict, total=False):
    """Options to store a voice. replace: overwrite a voice of the same name; adapter: its LoRA adapter, or ""."""

    description: str
    replace: bool
    consent: Consent | None
    adapter: str


class SpeechStream(Protocol):
    """One accepted request for speech. Only one listener may use it, in the event loop that made the request."""

    @property
    def sample_rate(self) -> int: ...

    @property
    def verdict(self) -> Verdict | None: ...

    def __aiter__(self) -> AsyncGenerator[SpeechEvent, None]:
        """Yield each segment's text and then its audio, in order; the audio has chunks of one sample or more.

        Raises the request's error. The end of the iteration does not end the request; `cancel` does."""

    async def push(self, text: str) -> None:
        """Append a piece to a streamed text. Raises InvalidText if it cannot be spoken; earlier pieces are spoken."""

    async def end(self) -> None: ...

    def cancel(self) -> None:
        """End the request and the iteration; its memory is freed within one step. Does nothing after the end."""


@dataclass(frozen=True)
class BackendStatistics:
    """Statistics of one engine at one moment.

    engine: counters since the start of the engine's process. memory_used, memory_total: bytes of the GPU; on a CPU,
    bytes used by the process and bytes of the machine. voices_extracted: number of voices that were extracted from
    recordings; voices_remembered: number of recordings with a cached voice. voice_store: "ok", or the problem.
    starts: number of engine processes started so far. streams, capacity: as in `EngineLoad`."""

    engine: StatisticsSnapshot
    memory_used: int
    memory_total: int
    voices_extracted: int
    voices_remembered: int
    voice_store: str = "ok"
    starts: int = 1
    streams: int = 0
    capacity: int = 1


@dataclass(frozen=True)
class ModelInfo:
    """A served model. sample_rate: hertz. demo: whether it is only a demo, or untrained. instructions: whether it
    follows instructions. languages: ISO 639 codes. marks: the special tokens that it knows in a text, such as
    "[laughter]" or "[ǎo]". generation: v1, v2 or v3, or "" if unknown. loaded: whether it is in memory. others: the
    server's further models; only the default model lists them."""

    name: str
    description: str
    sample_rate: int
    demo: bool
    instructions: bool = True
    languages: tuple[str, ...] = ModelCard.languages
    marks: frozenset[str] = frozenset()
    generation: str = ""
    loaded: bool = True
    others: tuple[ModelInfo, ...] = ()

    @classmethod
    def described(cls, card: ModelCard, generation: str, rate: int, marks: frozenset[str], name: str = "") -> ModelInfo:
        """Describe a model by its card. rate: sample rate in hertz; name: its name, or "" for the card's name."""
        demo, own = card.demo or not card.trained, name or card.name
        return cls(own, card.description, rate, demo, card.instructions, card.languages, marks, generation)

    def of(self, name: str) -> ModelInfo:
        """Return the model of this name among `others`; this model itself for "" and for other names."""
        return next((one for one in self.others if one.name == name), self) if name else self


class SpeechBackend(Protocol):
    @property
    def about(self) -> ModelInfo:
        """The model, or the default model of several. Raises EngineStopped while that model is not loaded."""

    @property
    def ready(self) -> bool: ...

    @property
    def stuck(self) -> bool: ...

    @property
    def voice_store(self) -> str:
        """The last known state of the voice store: "ok", or the problem."""

    async def speak(self, request: SpeechRequest) -> SpeechStream:
        """Accept a request. Raises a VivavoceError if its input is bad, the queue is full or no engine is ready."""

    async def normalize(self, request: SpeechRequest) -> NormalizedText: ...

    async def voices(self, owner: str) -> list[VoiceSummary]: ...

    async def add_voice(
        self, owner: str, name: str, recording: Recording, **options: Unpack[VoiceOptions]
    ) -> VoiceSummary:
        """Extract and store a voice; owner "" makes it public. Raises VoiceExists, InvalidRequest, InvalidAudio …"""

    async def remove_voice(self, owner: str, name: str) -> None:
        """Delete an owner's stored voice, or with owner "" a public voice. Raises as `VoiceRegistry.remove`."""

    async def statistics(self) -> BackendStatistics | None: ...


@runtime_checkable
class SeveralModels(Protocol):
    """A `SpeechBackend` that serves several models, with a further `SpeechBackend` for each model."""

    async def backend_of(self, model: str) -> SpeechBackend:
        """Wait until a model is loaded, and return its backend. Use it soon: the model may be unloaded later.

        model: the model's name, or "" for the default model. Raises ModelNotFound if the name is unknown, and
        EngineStopped if the model is not loaded in time or does not fit into memory."""


async def backend_of(backend: SpeechBackend, model: str) -> SpeechBackend:
    """Return the backend of a model, see `SeveralModels`; `backend` itself if it has only one model."""
    return await backend.backend_of(model) if isinstance(backend, SeveralModels) else backend


@runtime_checkable
class AdapterBackend(Protocol):
    """A `SpeechBackend` with LoRA adapters that can change while it runs. Raises as `Engine.load_adapter` and so on."""

    async def adapters(self) -> tuple[AdapterInfo, ...]: ...

    async def add_adapter(self, name: str, folder: str) -> AdapterInfo: ...

    async def remove_adapter(self, name: str) -> None: ...


def engines_of(backend: SpeechBackend) -> Mapping[str, SpeechBackend]:
    """Return the engines of a backend by their names; empty if the backend has only one engine."""
    engines: Mapping[str, SpeechBackend] = getattr(backend, "engines", {})
    return engines if len(engines) > 1 else {}
