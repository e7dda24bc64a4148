"""What the engine is asked and what it answers: immutable values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.errors import InvalidRequest

MIN_SPEED, MAX_SPEED = 0.5, 2.0


@dataclass(frozen=True)
class SamplingParams:
    """How speech tokens are drawn. `None` means: as the checkpoint's yaml sets it.

    An id is drawn from the nucleus (top_p, top_k); if it stands in the last `win_size` tokens `win_size · tau_r`
    times or more, another is drawn from all ids. Speech lasts at least `min_ratio` and at most `max_ratio` tokens
    per text token.
    """

    top_p: float | None = None
    top_k: int | None = None
    win_size: int | None = None
    tau_r: float | None = None
    min_ratio: float = 2.0
    max_ratio: float = 20.0

    def __post_init__(self) -> None:
        _check("top_p", self.top_p, 0.001, 1.0)
        _check("top_k", self.top_k, 1, 10_000)
        _check("win_size", self.win_size, 1, 200)
        _check("tau_r", self.tau_r, 0.0, 1.0)
        _check("max_ratio", self.max_ratio, 1.0, 50.0)
        _check("min_ratio", self.min_ratio, 0.0, self.max_ratio)


@dataclass(frozen=True, eq=False)
class Conditioning:
    """Which features of a voice reach which stage (`service/modes.py` fills this in).

    lm_prompt_text: text ids of the reference's transcript, or of an instruction; lm_prompt_tokens: its speech tokens;
    flow_tokens: [n] int64; flow_mel: [frames, bins] float32; embedding: [speaker size] float32.
    """

    embedding: Tensor
    lm_prompt_text: tuple[int, ...] = ()
    lm_prompt_tokens: tuple[int, ...] = ()
    flow_tokens: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    flow_mel: Tensor = field(default_factory=lambda: torch.zeros(0, 0))


@dataclass(frozen=True, eq=False)
class SynthesisRequest:
    """One sequence to be spoken: text ids, or speech tokens as they are (voice conversion)."""

    conditioning: Conditioning
    text: tuple[int, ...] = ()
    speech_tokens: tuple[int, ...] | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int = 0
    speed: float = 1.0

    def __post_init__(self) -> None:
        check_speed(self.speed)
        if not self.text and not self.speech_tokens:
            raise InvalidRequest("text: no tokens to speak; give some text")


@dataclass(frozen=True, eq=False)
class StreamRequest:
    """A sequence whose audio is wanted piece by piece, and whose text may arrive so too.

    `text_pieces`: an iterable of text ids that is read while speech is made; None: the request's text is all.
    """

    request: SynthesisRequest
    policy: ChunkPolicy
    text_pieces: Iterable[tuple[int, ...]] | None = None


@dataclass(frozen=True, eq=False)
class AudioChunk:
    """A piece of audio, in order; samples: [n] float32 in [−1, 1]."""

    samples: np.ndarray
    sample_rate: int
    index: int
    final: bool

    @property
    def duration_s(self) -> float:
        """Seconds of audio in this chunk."""
        return len(self.samples) / self.sample_rate


@dataclass(frozen=True, eq=False)
class Utterance:
    """One finished sequence: its speech tokens, mel [frames, bins] before the speed is applied, samples [n] float32."""

    tokens: tuple[int, ...]
    mel: Tensor
    samples: np.ndarray


@dataclass(frozen=True)
class StageTimings:
    """Seconds spent in each stage."""

    lm_s: float
    flow_s: float
    vocoder_s: float

    @classmethod
    def total(cls, parts: Sequence[StageTimings]) -> StageTimings:
        """The sum over batches."""
        return cls(
            sum(part.lm_s for part in parts), sum(part.flow_s for part in parts), sum(part.vocoder_s for part in parts)
        )


@dataclass(frozen=True, eq=False)
class Batch:
    """What one run over several requests gave, in their order."""

    utterances: list[Utterance]
    timings: StageTimings


def check_speed(speed: float) -> None:
    """Refuse a speed outside of 0.5 … 2.0."""
    if speed is None:
        raise InvalidRequest(f"speed: None is outside of {MIN_SPEED} … {MAX_SPEED}; choose a number inside")
    _check("speed", speed, MIN_SPEED, MAX_SPEED)


def _check(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not (isinstance(value, Real) and low <= value <= high):
        raise InvalidRequest(f"{name}: {value!r} is outside of {low} … {high}; choose a number inside")
