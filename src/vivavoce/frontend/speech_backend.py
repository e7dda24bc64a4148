"""The interface between a server's protocols and a backend: an engine in a process of its own, or another server."""

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
    """Options of storing a voice; replace: in place of another voice of that name; adapter: its name, "" for none."""

    description: str
    replace: bool
    consent: Consent | None
    adapter: str


class SpeechStream(Protocol):
    """One accepted request for speech; used by one listener in the event loop that asked for it."""

    @property
    def sample_rate(self) -> int: ...

    @property
    def verdict(self) -> Verdict | None: ...

    def __aiter__(self) -> AsyncGenerator[SpeechEvent, None]:
        """Segments and audio in order: each segment's text before its audio, in chunks of one sample or more.

        Raises the request's error. The end of the iteration does not end the request; `cancel` does.
        """

    async def push(self, text: str) -> None:
        """Add to a streamed text; InvalidText: the piece cannot be spoken, and the text before it goes on."""

    async def end(self) -> None: ...

    def cancel(self) -> None:
        """End the request: its memory is freed within a step, and the iteration ends. After the end: does nothing."""


@dataclass(frozen=True)
class BackendStatistics:
    """Statistics of one engine at one moment.

    engine: counters since the start of the engine's process; memory_used, memory_total: bytes of the device (of the
    process and the machine, on a CPU); voices_extracted, voices_remembered: recordings whose voices were extracted, and
    found in memory; voice_store: "ok", or the problem; starts: engine processes started so far; streams, capacity: as
    in `EngineLoad`.
    """

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
    """A served model. demo: it is a demo only; instructions: it follows them; languages: codes of ISO 639.

    marks: the marks that it knows in a text, such as "[laughter]" or "[ǎo]"; generation: v1, v2 or v3, "" if that is
    unknown; loaded: it is in memory; others: of the default model, the further models of the same server.
    """

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

    def of(self, name: str) -> ModelInfo:
        """The further model of that name; "", and the own name: this one."""
        return next((one for one in self.others if one.name == name), self) if name else self


class SpeechBackend(Protocol):
    @property
    def about(self) -> ModelInfo:
        """The model, of several the default one; EngineStopped: it is not loaded yet."""

    @property
    def ready(self) -> bool: ...

    @property
    def stuck(self) -> bool: ...

    @property
    def voice_store(self) -> str:
        """The last known state of the voice store: "ok", or the problem."""

    async def speak(self, request: SpeechRequest) -> SpeechStream:
        """Accept a request, or refuse it: bad input, no room, not ready."""

    async def normalize(self, request: SpeechRequest) -> NormalizedText: ...

    async def voices(self, owner: str) -> list[VoiceSummary]: ...

    async def add_voice(
        self, owner: str, name: str, recording: Recording, **options: Unpack[VoiceOptions]
    ) -> VoiceSummary:
        """Extract and store a voice, public if `owner` is ""; VoiceExists, InvalidRequest (a full quota), and so on."""

    async def remove_voice(self, owner: str, name: str) -> None:
        """Delete the owner's stored voice (a public one: ""); VoiceNotFound, or InvalidRequest for a built-in one."""

    async def statistics(self) -> BackendStatistics | None: ...


@runtime_checkable
class SeveralModels(Protocol):
    """A `SpeechBackend` that has one of its own for each of several models."""

    async def backend_of(self, model: str) -> SpeechBackend:
        """Wait until a model is loaded, and return its backend. Use it at once: the model may be unloaded later.

        model: its name, "" for the default one.

        ModelNotFound: the name is unknown; EngineStopped: it is not loaded in time, or there is no room for it.
        """


async def backend_of(backend: SpeechBackend, model: str) -> SpeechBackend:
    """The backend of a model, see `SeveralModels`. A backend that has one model only is returned itself."""
    return await backend.backend_of(model) if isinstance(backend, SeveralModels) else backend


@runtime_checkable
class AdapterBackend(Protocol):
    """A `SpeechBackend` whose LoRA adapters change while it runs; errors as `Engine.load_adapter`, `remove_adapter`."""

    async def adapters(self) -> tuple[AdapterInfo, ...]: ...

    async def add_adapter(self, name: str, folder: str) -> AdapterInfo: ...

    async def remove_adapter(self, name: str) -> None: ...


def engines_of(backend: SpeechBackend) -> Mapping[str, SpeechBackend]:
    """The engines of a backend that has several, by name; empty for others."""
    engines: Mapping[str, SpeechBackend] = getattr(backend, "engines", {})
    return engines if len(engines) > 1 else {}
