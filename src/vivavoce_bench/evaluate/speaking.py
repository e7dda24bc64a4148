"""Makes or reads the speech to evaluate, spoils speech for control runs, and compares voices."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import soundfile
from numpy.typing import NDArray

from vivavoce.errors import InvalidAudio, InvalidRequest
from vivavoce.frontend.audio.decode import decode_audio
from vivavoce_bench.evaluate.cases import Case

if TYPE_CHECKING:
    from vivavoce.api import Vivavoce


Samples = NDArray[np.float32]

UNNAMED = "recordings"
"""Name of the voice of recordings, if no voice is given."""


class VoiceLike(Protocol):
    @property
    def embedding(self) -> Any:
        """The speaker embedding, [speaker size]."""
        ...


@dataclass(frozen=True)
class Manner:
    """Options of `vivavoce.Vivavoce.speak`; sentence i (from 0) has the seed `seed` + i."""

    mode: Any = None
    instructions: str | None = None
    seed: int = 0
    sampling: Any = None
    stream: bool = False
    """Score streamed audio. For comparison, each sentence is also generated at once with the same seed."""


@dataclass(frozen=True, eq=False)
class Clip:
    """An utterance. samples: [n] float32 in ±1. Fields after `sample_rate` are set only for audio made by vivavoce."""

    case: Case
    voice: str
    samples: Samples
    sample_rate: int
    seed: int | None = None
    work_s: float | None = None
    first_audio_s: float | None = None
    joins: tuple[int, ...] = ()
    """Index of the first sample of each chunk, except the first chunk."""
    whole: Samples | None = None


def speak_all(
    tts: Vivavoce,
    cases: Sequence[Case],
    voices: Mapping[str, Any],
    manner: Manner = Manner(),
    show: Callable[[str], None] = lambda _: None,
) -> Iterator[Clip]:
    """Yield the speech of all cases: first cases that name a voice; then every voice speaks all other cases."""
    plan = [(index, case, case.voice) for index, case in enumerate(cases) if case.voice is not None]
    plan += [(index, case, voice) for voice in voices for index, case in enumerate(cases) if case.voice is None]
    began = time.perf_counter()
    for number, (index, case, voice) in enumerate(plan, start=1):
        left_s = (time.perf_counter() - began) / max(1, number - 1) * (len(plan) - number + 1)
        left = f", about {left_s / 60:.0f} min left" if number > 1 and left_s >= 60 else ""
        show(f"speaking … {number} of {len(plan)}{left}")
        yield _speak(tts, case, voice, voices[voice], manner, manner.seed + index)


def _speak(tts: Vivavoce, case: Case, name: str, voice: Any, manner: Manner, seed: int) -> Clip:
    keywords = {"mode": manner.mode, "instructions": manner.instructions, "sampling": manner.sampling, "seed": seed}
    started = time.perf_counter()
    whole = tts.speak(case.text, voice, **keywords).samples
    work_s = time.perf_counter() - started
    if not manner.stream:
        return Clip(case, name, whole, tts.sample_rate, seed, work_s)
    pieces, first_s, started = [], 0.0, time.perf_counter()
    for chunk in tts.stream(case.text, voice, **keywords):
        first_s = first_s or time.perf_counter() - started
        pieces.append(chunk.samples)
    work_s = time.perf_counter() - started
    joins = tuple(np.cumsum([len(piece) for piece in pieces])[:-1].tolist())
    return Clip(case, name, np.concatenate(pieces), tts.sample_rate, seed, work_s, first_s, joins, whole)


def read_all(
    cases: Sequence[Case], voice: str = UNNAMED, show: Callable[[str], None] = lambda _: None
) -> Iterator[Clip]:
    """Yield the recordings of all cases. voice: the name for cases that have no voice."""
    for number, case in enumerate(cases, start=1):
        show(f"measuring … {number} of {len(cases)}")
        if case.audio is None:
            raise InvalidRequest(f"audio: sentence {case.id} has no recording; give one for each")
        audio = decode_audio(case.audio, field="audio")
        yield Clip(case, case.voice or voice, audio.samples, audio.sample_rate)


def truth_seconds(case: Case) -> float | None:
    """Return the seconds that a person needs for the text, if known; `InvalidAudio`: a recording cannot be read."""
    if (path := case.truth) is None:
        return case.truth_s
    try:
        return float(soundfile.info(path).duration)
    except (soundfile.LibsndfileError, OSError) as error:
        raise InvalidAudio(f"audio: {str(path)!r} cannot be read ({error}); give a wav, flac, ogg or mp3") from None


_PIECE_S = 0.16


class Control(str, Enum):
    """Ways to spoil utterances, to check that figures are worse for bad speech."""

    SHUFFLED = "shuffled"
    """Shuffle 160 ms pieces of the audio."""
    WRONG_TEXT = "wrong-text"
    """Compare the audio with the text of the next utterance."""
    REVERSED = "reversed"


def parse_control(name: str) -> Control:
    try:
        return Control(name.replace("_", "-"))
    except ValueError:
        known = ", ".join(control.value for control in Control)
        raise InvalidRequest(f"control: {name!r} is unknown; choose one of {known}") from None


def spoil_audio(samples: Samples, sample_rate: int, control: Control | None) -> Samples:
    """Spoil the audio, in the same way in each run; its length does not change."""
    if control is Control.REVERSED:
        return samples[::-1].copy()
    if control is Control.SHUFFLED and len(samples):
        size = round(_PIECE_S * sample_rate)
        pieces = [samples[start : start + size] for start in range(0, len(samples), size)]
        return np.concatenate([pieces[index] for index in np.random.default_rng(0).permutation(len(pieces))])
    return samples


def spoil_texts(texts: Sequence[str], control: Control | None) -> list[str]:
    """Return the texts to compare with transcripts. `WRONG_TEXT` replaces a text by the next text that is different."""
    if control is not Control.WRONG_TEXT:
        return list(texts)
    if len(set(texts)) < 2:
        raise InvalidRequest("control: wrong-text needs two different sentences or more; give more")
    after = [*texts, *texts]
    return [next(other for other in after[index + 1 :] if other != text) for index, text in enumerate(texts)]


Embed = Callable[[Samples, int], NDArray[np.float32] | None]
"""(samples, sample rate) → speaker embedding [n], or None if short or silent audio has none."""

_LONGEST_S = 30.0


def embed_with(embed_recording: Callable[[bytes], Any]) -> Embed:
    def embed(samples: Samples, sample_rate: int) -> NDArray[np.float32] | None:
        file = io.BytesIO()
        soundfile.write(file, samples[: int(_LONGEST_S * sample_rate)], sample_rate, format="WAV", subtype="FLOAT")
        try:
            return as_vector(embed_recording(file.getvalue()))
        except InvalidAudio:
            return None

    return embed


def as_vector(embedding: Any) -> NDArray[np.float32]:
    return np.asarray(embedding, dtype=np.float32).reshape(-1)


def cosines(embedding: NDArray[np.float32], references: Mapping[str, NDArray[np.float32]]) -> dict[str, float]:
    """Return the cosine similarity of an embedding [n] with each reference."""
    found = {}
    for name, vector in references.items():
        lengths = float(np.linalg.norm(embedding) * np.linalg.norm(vector))
        found[name] = float(np.dot(embedding, vector)) / lengths if lengths else 0.0
    return found
