"""What the doors of a server need of whatever speaks: an engine in a process of its own, or a server elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from vivavoce.service.host.figures import SpeakerStatistics
from vivavoce.service.host.order import Recording, SpeechOrder
from vivavoce.service.host.verdict import Verdict


@dataclass(frozen=True)
class SegmentText:
    """A segment of the text, told before its first audio: it speaks the characters start … end − 1 of the input."""

    place: int
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class SpeechPiece:
    """Audio, in order; samples: [n] float32 in [−1, 1], n ≥ 1, all of one segment."""

    samples: NDArray[np.float32]
    segment: int


SpeechEvent = SegmentText | SpeechPiece


class SpeechStream(Protocol):
    """One accepted request for speech; one listener, in the event loop that asked for it."""

    @property
    def sample_rate(self) -> int:
        """Samples per second of its audio."""

    @property
    def verdict(self) -> Verdict | None:
        """How it ended, its audio as far as it was taken from here; None while it goes on."""

    def __aiter__(self) -> AsyncIterator[SpeechEvent]:
        """What it says, in order. Raises what it failed with; leaving the iteration early does not end it: `cancel`."""

    async def push(self, text: str) -> None:
        """More of a text that arrives piece by piece.

        Raises:
            InvalidText: the piece cannot be spoken; what came before goes on.
        """

    async def end(self) -> None:
        """All of an arriving text has come."""

    def cancel(self) -> None:
        """Give it up: what it holds is freed within a step, and the iteration ends. After the end: nothing happens."""


@dataclass(frozen=True)
class ModelAbout:
    """The model that speaks.

    name: as clients ask for it; description: what it says of itself; sample_rate: of all audio; demo: it shows how the
    program works and is no real voice; arriving_text: it takes texts piece by piece.
    """

    name: str
    description: str
    sample_rate: int
    demo: bool
    arriving_text: bool = True


@dataclass(frozen=True)
class VoiceSummary:
    """A voice that may be asked for by its name.

    kind: "built_in" (of the model) or "stored"; public: all callers see it, else its owner alone; transcript: what its
    reference says, "" if unknown; has_prompt: it has reference speech, beside the speaker embedding.
    """

    name: str
    kind: Literal["built_in", "stored"]
    public: bool
    description: str = ""
    transcript: str = ""
    has_prompt: bool = True


class Speaker(Protocol):
    """Speaks for a server's doors, for any number of listeners at once; all of it in one event loop."""

    @property
    def about(self) -> ModelAbout:
        """The model that speaks; EngineStopped before it was ready for the first time."""

    @property
    def ready(self) -> bool:
        """It takes requests now."""

    async def speak(self, order: SpeechOrder) -> SpeechStream:
        """Take a request in; what can be refused is refused here.

        Raises:
            VivavoceError: bad input (InvalidRequest, VoiceNotFound), no room now (Overloaded), not ready
                (EngineStopped).
        """

    async def voices(self, owner: str) -> list[VoiceSummary]:
        """The public voices, and the owner's own."""

    async def add_voice(
        self, owner: str, name: str, recording: Recording, *, description: str = "", replace: bool = False
    ) -> VoiceSummary:
        """Extract and keep a voice; public if `owner` is "".

        Raises:
            VivavoceError: bad input, VoiceExists, a quota that is full (InvalidRequest), a store that refuses.
        """

    async def remove_voice(self, owner: str, name: str) -> None:
        """Forget a stored voice of the owner, or, with owner "", a public one.

        Raises:
            VoiceNotFound: the owner has none of that name.
            InvalidRequest: it is built into the model.
        """

    async def statistics(self) -> SpeakerStatistics | None:
        """What it has done so far; None where it does not tell."""

    async def close(self, drain_s: float) -> None:
        """Take no more requests, let accepted ones finish for so many seconds, then stop."""
