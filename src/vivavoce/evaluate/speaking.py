"""Speech to be measured: spoken now by a model, or read from recordings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import InvalidRequest
from vivavoce.evaluate.audio_files import read_recording, recording_seconds
from vivavoce.evaluate.cases import Case

Samples = NDArray[np.float32]


UNNAMED = "recordings"
"""What the voice of recordings is called that come with none."""


class _Sound(Protocol):
    @property
    def samples(self) -> Samples: ...


class VoiceLike(Protocol):
    """What is used of a `vivavoce.Voice`."""

    @property
    def embedding(self) -> Any:
        """[speaker size]."""
        ...


class Talker(Protocol):
    """What is used of what `vivavoce.load` gives."""

    @property
    def sample_rate(self) -> int:
        """Of all its audio."""
        ...

    def speak(self, text: str, voice: Any, *, mode: Any, instruct: str | None, seed: int, sampling: Any) -> _Sound:
        """Speak a text whole."""
        ...

    def stream(
        self, text: str, voice: Any, *, mode: Any, instruct: str | None, seed: int, sampling: Any
    ) -> Iterator[_Sound]:
        """Speak it in chunks."""
        ...

    def normalize(self, text: str) -> str:
        """The text as it is spoken."""
        ...

    def embed(self, source: Any) -> Any:
        """The speaker embedding of a recording: [speaker size]."""
        ...


@dataclass(frozen=True)
class Manner:
    """How sentences are spoken; see `vivavoce.Vivavoce.speak`.

    The sentence number i (from 0) is spoken with the seed `seed` + i, by every voice.
    """

    mode: Any = None
    instruct: str | None = None
    seed: int = 0
    sampling: Any = None
    stream: bool = False
    """Speak each sentence as a stream, which is what is scored, and whole with the same seed, for comparison."""

    def keywords(self, place: int) -> dict[str, Any]:
        """For `speak` and `stream` of the sentence at that place."""
        return {"mode": self.mode, "instruct": self.instruct, "seed": self.seed + place, "sampling": self.sampling}


@dataclass(frozen=True, eq=False)
class Clip:
    """One utterance; samples: [n] float32 in ±1."""

    case: Case
    voice: str
    samples: Samples
    sample_rate: int
    seed: int | None = None
    """None, like all that follows: it was not spoken now."""
    work_s: float | None = None
    """Seconds of work."""
    first_audio_s: float | None = None
    """Seconds to a stream's first chunk."""
    joins: tuple[int, ...] = ()
    """Where a stream's chunks meet: the first sample of each but the first."""
    whole: Samples | None = None
    """The same text and seed, not as a stream."""

    @property
    def duration_s(self) -> float:
        """Seconds of audio."""
        return len(self.samples) / self.sample_rate


def plan(cases: Sequence[Case], voices: Sequence[str]) -> list[tuple[int, Case, str]]:
    """(place of the sentence, case, voice) of everything to be spoken: voice by voice, but for cases with their own."""
    own = [(place, case, case.voice) for place, case in enumerate(cases) if case.voice is not None]
    shared = [(place, case, voice) for voice in voices for place, case in enumerate(cases) if case.voice is None]
    return [*own, *shared]


def speak_all(
    tts: Talker,
    cases: Sequence[Case],
    voices: Mapping[str, Any],
    manner: Manner = Manner(),
    show: Callable[[int], None] = lambda _: None,
) -> Iterator[Clip]:
    """Speak all cases, each when it is asked for; see `plan` for the order.

    Args:
        tts: a loaded model.
        cases: what to say.
        voices: by name. Each speaks the cases that name no voice; those that name one find it here.
        manner: how.
        show: called with the number of clips begun.
    """
    for number, (place, case, voice) in enumerate(plan(cases, list(voices)), start=1):
        show(number)
        yield _speak(tts, case, voice, voices[voice], manner, place)


def _speak(tts: Talker, case: Case, name: str, voice: Any, manner: Manner, place: int) -> Clip:
    keywords = manner.keywords(place)
    started = time.perf_counter()
    whole = tts.speak(case.text, voice, **keywords).samples
    work_s = time.perf_counter() - started
    if not manner.stream:
        return Clip(case, name, whole, tts.sample_rate, keywords["seed"], work_s)
    pieces, first_s, started = [], 0.0, time.perf_counter()
    for chunk in tts.stream(case.text, voice, **keywords):
        first_s = first_s or time.perf_counter() - started
        pieces.append(chunk.samples)
    work_s = time.perf_counter() - started
    joins = tuple(int(end) for end in np.cumsum([len(piece) for piece in pieces])[:-1])
    samples = np.concatenate(pieces)
    return Clip(case, name, samples, tts.sample_rate, keywords["seed"], work_s, first_s, joins, whole)


def read_all(
    cases: Sequence[Case], voice: str = UNNAMED, show: Callable[[int], None] = lambda _: None
) -> Iterator[Clip]:
    """Read the recordings of cases, each when it is asked for.

    Args:
        cases: all with `audio`.
        voice: of those cases that name none.
        show: called with the number of recordings begun.

    Raises:
        InvalidAudio: a recording cannot be read.
    """
    for number, case in enumerate(cases, start=1):
        show(number)
        if case.audio is None:
            raise InvalidRequest(f"audio: sentence {case.id} has no recording; give one for each")
        samples, rate = read_recording(case.audio)
        yield Clip(case, case.voice or voice, samples, rate)


def truth_seconds(case: Case) -> float | None:
    """How long a person takes for the text, if that is known; errors as in `read_recording`."""
    return recording_seconds(case.truth) if case.truth is not None else case.truth_s
