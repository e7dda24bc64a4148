"""Everything that is measured of one utterance."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from vivavoce.evaluate.edits import Edits
from vivavoce.evaluate.joins import JoinClicks
from vivavoce.evaluate.levels import clipping_share, silence
from vivavoce.evaluate.pitch import pitch
from vivavoce.evaluate.speaking import Clip
from vivavoce.evaluate.wording import num_characters


@dataclass(frozen=True)
class Sound:
    """What the waveform shows; docs/evaluation.md says what each figure means."""

    duration_s: float
    num_characters: int
    s_per_character: float | None
    length_ratio: float | None
    silence_ratio: float
    longest_silence_s: float
    f0_p05_hz: float | None
    f0_p50_hz: float | None
    f0_p95_hz: float | None
    voiced_share: float
    clipping_share: float
    rtf: float | None
    first_audio_s: float | None


@dataclass(frozen=True)
class Recognition:
    """What was to be said, what a recogniser heard, and the edits between the two."""

    unit: str
    """"word" or "character": what `free` and `closed` count."""
    said: str
    unknown: tuple[str, ...]
    """Of what was to be said, what the recogniser cannot write; it is left out of all counts."""
    heard: str
    heard_closed: str | None
    heard_phones: str | None
    free: Edits
    closed: Edits | None
    phone_errors: int
    num_phones: int


@dataclass(frozen=True, eq=False)
class Utterance:
    """One utterance's figures; None where something was not measured."""

    id: str
    voice: str
    text: str
    seed: int | None
    audio: str | None
    """The recording's file name."""
    sound: Sound
    similarities: dict[str, float] | None
    """Cosine of the speaker embeddings of this audio and of each voice's reference; of very many, the nearest and its
    own."""
    joins: JoinClicks | None
    recognition: Recognition | None
    runaway: str | None = None
    """Why it counts as a runaway; None: it does not."""
    num_references: int = 0
    """Voices that it was compared with."""

    @property
    def speaker_similarity(self) -> float | None:
        """With the reference of its own voice."""
        return None if self.similarities is None else self.similarities.get(self.voice)

    @property
    def nearest_voice(self) -> str | None:
        """The voice whose reference is most similar; None unless there are several, its own among them."""
        if self.similarities is None or self.num_references < 2 or self.voice not in self.similarities:
            return None
        return max(self.similarities, key=self.similarities.__getitem__)

    def to_json(self) -> dict[str, Any]:
        """One flat row; the keys are those of docs/evaluation.md."""
        row: dict[str, Any] = {
            "id": self.id,
            "voice": self.voice,
            "text": self.text,
            "seed": self.seed,
            "audio": self.audio,
            **asdict(self.sound),
            "speaker_similarity": self.speaker_similarity,
            "nearest_voice": self.nearest_voice,
            "runaway": self.runaway,
        }
        if self.joins is not None:
            row |= {
                "joins": self.joins.joins,
                "joins_over": self.joins.over,
                "join_worst_ratio": self.joins.worst_ratio,
                "join_median_ratio": self.joins.median_ratio,
            }
        if self.recognition is not None:
            row |= _recognition_json(self.recognition)
        return row


def _recognition_json(found: Recognition) -> dict[str, Any]:
    row: dict[str, Any] = {
        "unit": found.unit,
        "said": found.said,
        "unknown": list(found.unknown),
        "heard_free": found.heard,
        "heard_closed": found.heard_closed,
        "heard_phones": found.heard_phones,
    }
    for name, edits in (("free", found.free), ("closed", found.closed)):
        if edits is not None:
            row |= {f"{name}_{key}": value for key, value in asdict(edits).items()}
            row[f"{name}_errors"] = edits.errors
    if found.heard_phones is not None:
        row |= {"phone_errors": found.phone_errors, "phone_total": found.num_phones}
    return row


def measure_sound(clip: Clip, spoken: str, truth_s: float | None) -> Sound:
    """Measure a clip's waveform and times.

    Args:
        clip: the utterance.
        spoken: its text as it is spoken, numbers in words.
        truth_s: seconds that a person takes for it.
    """
    quiet, voice = silence(clip.samples, clip.sample_rate), pitch(clip.samples, clip.sample_rate)
    count, duration = num_characters(spoken), clip.duration_s
    return Sound(
        duration_s=duration,
        num_characters=count,
        s_per_character=duration / count if count else None,
        length_ratio=duration / truth_s if truth_s else None,
        silence_ratio=quiet.ratio,
        longest_silence_s=quiet.longest_s,
        f0_p05_hz=voice.low_hz,
        f0_p50_hz=voice.median_hz,
        f0_p95_hz=voice.high_hz,
        voiced_share=voice.voiced_share,
        clipping_share=clipping_share(clip.samples),
        rtf=clip.work_s / duration if clip.work_s is not None and duration else None,
        first_audio_s=clip.first_audio_s,
    )
