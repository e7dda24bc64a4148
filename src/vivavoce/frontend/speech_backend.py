"""What a server's entry points need of a speaker: an engine in a process of its own, or a server elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from vivavoce.checkpoint.folder import ModelCard
from vivavoce.engine.statistics import StatisticsSnapshot
from vivavoce.frontend.speech import Recording, SpeechEvent, SpeechRequest, Verdict
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce_textnorm import NormalizedText


class SpeechStream(Protocol):
    """One accepted request for speech; one listener, in the event loop that asked for it."""

    @property
    def sample_rate(self) -> int:
        """Samples per second of its audio."""

    @property
    def verdict(self) -> Verdict | None:
        """How it ended; None while it goes on."""

    def __aiter__(self) -> AsyncIterator[SpeechEvent]:
        """Each segment's text before its audio, and audio (chunks of one sample or more), in order.

        Raises what it failed with; leaving the iteration early does not end it, `cancel` does.
        """

    async def push(self, text: str) -> None:
        """More of a text that arrives; InvalidText: the piece cannot be spoken, what came before goes on."""

    async def end(self) -> None:
        """All of an arriving text has come."""

    def cancel(self) -> None:
        """Give it up: what it holds is freed within a step, and the iteration ends. After the end: nothing happens."""


@dataclass(frozen=True)
class BackendStatistics:
    """Figures of one moment.

    engine: counters since the engine's process began; memory_used, memory_total: bytes of the device (of the process,
    and of the machine, on a CPU); voices_extracted, voices_remembered: recordings whose voices were made, and taken
    from memory; voice_store: "ok", or what is wrong with it in one line; starts: engine processes begun so far;
    streams, capacity: that the engine has, and keeps up with as its admission reckons.
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
    """The model that speaks.

    name: as clients ask for it; description: what it says of itself; sample_rate: of all audio; demo: it shows how the
    program works and is no real voice; instructions: it follows them; languages: that it speaks, as codes of ISO 639.
    """

    name: str
    description: str
    sample_rate: int
    demo: bool
    instructions: bool = True
    languages: tuple[str, ...] = ModelCard.languages


class SpeechBackend(Protocol):
    """Speaks for a server's entry points, for any number of listeners at once; all of it in one event loop."""

    @property
    def about(self) -> ModelInfo:
        """The model that speaks; EngineStopped before it was ready for the first time."""

    @property
    def ready(self) -> bool:
        """It takes requests now."""

    @property
    def stuck(self) -> bool:
        """It takes none because its engine gives no sign of life just now."""

    @property
    def voice_store(self) -> str:
        """Answer "ok", or what is wrong with the place where voices are kept, as it was found last."""

    async def speak(self, request: SpeechRequest) -> SpeechStream:
        """Take a request in; what can be refused is refused here: bad input, no room now, not ready."""

    async def normalize(self, request: SpeechRequest) -> NormalizedText:
        """How the text of a request would be read, without an engine's time; what is bad input is refused."""

    async def voices(self, owner: str) -> list[VoiceSummary]:
        """The public voices, and the owner's own."""

    async def add_voice(
        self, owner: str, name: str, recording: Recording, *, description: str = "", replace: bool = False
    ) -> VoiceSummary:
        """Extract and keep a voice, public if `owner` is ""; VoiceExists, InvalidRequest (a full quota), and so on."""

    async def remove_voice(self, owner: str, name: str) -> None:
        """Forget the owner's stored voice (a public one: ""); VoiceNotFound, or InvalidRequest for a built-in one."""

    async def statistics(self) -> BackendStatistics | None:
        """What it has done so far; None where that is not known."""


def engines_of(speaker: SpeechBackend) -> Mapping[str, SpeechBackend]:
    """The engines behind a speaker that has several, by their names; of others, none."""
    engines: Mapping[str, SpeechBackend] = getattr(speaker, "engines", {})
    return engines
