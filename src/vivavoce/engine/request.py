"""What the engine is asked and what it answers: immutable values."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from numbers import Integral, Real

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
    exact_tokens: int | None = None
    """Speech lasts exactly so many tokens, whatever the model says: for measurements with random weights."""

    def __post_init__(self) -> None:
        _check("top_p", self.top_p, 0.001, 1.0)
        _check_whole("top_k", self.top_k, 1, 10_000)
        _check_whole("win_size", self.win_size, 1, 200)
        _check("tau_r", self.tau_r, 0.0, 1.0)
        _check("max_ratio", self.max_ratio, 1.0, 50.0)
        _check("min_ratio", self.min_ratio, 0.0, self.max_ratio)
        _check_whole("exact_tokens", self.exact_tokens, 1, 7_500)


@dataclass(frozen=True, eq=False)
class Conditioning:
    """Which features of a voice reach which stage (`service/modes.py` fills this in).

    Whoever makes it once for all requests of a voice has what follows from it worked out once; its tensors stay as they
    are.

    lm_prompt_text: text ids of the reference's transcript, or of an instruction; lm_prompt_tokens: its speech tokens;
    flow_tokens: [n] int64; flow_mel: [frames, bins] float32; embedding: [speaker size] float32.
    """

    embedding: Tensor
    lm_prompt_text: tuple[int, ...] = ()
    lm_prompt_tokens: tuple[int, ...] = ()
    flow_tokens: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    flow_mel: Tensor = field(default_factory=lambda: torch.zeros(0, 0))

    @cached_property
    def flow_prompt(self) -> tuple[int, ...]:
        """`flow_tokens` as numbers."""
        return tuple(self.flow_tokens.tolist())

    @cached_property
    def flow_key(self) -> bytes:
        """A key that two voices share only if the flow hears the same of both."""
        digest = hashlib.blake2b(digest_size=16)
        for tensor in (self.flow_tokens, self.flow_mel, self.embedding):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.digest()


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
        # One table holds the numbers of all that are read together: what is no int64 would spoil the neighbours' too.
        _check_whole("seed", self.seed, -(2**63), 2**63 - 1)
        if not self.text and not self.speech_tokens:
            raise InvalidRequest("text: no tokens to speak; give some text")


class Arrival(Enum):
    """How the text of a request comes."""

    WHOLE = "whole"
    """It is all there."""
    TOKENS = "tokens"
    """The one segment's text is only its beginning; more is pushed through the handle while speech is made of it."""
    SEGMENTS = "segments"
    """More segments are pushed through the handle; there may be none yet."""


@dataclass(frozen=True, eq=False)
class SpeechRequest:
    """What the engine is asked for: segments that are heard one after the other.

    `policy`: the audio is wanted in chunks, each before its listener has played the ones before; None: offline, one
    chunk for each whole segment.
    """

    segments: tuple[SynthesisRequest, ...]
    policy: ChunkPolicy | None = None
    arrival: Arrival = Arrival.WHOLE

    def __post_init__(self) -> None:
        if not self.segments and self.arrival is not Arrival.SEGMENTS:
            raise InvalidRequest("text: no segments to speak; give some text")
        if self.arrival is not Arrival.WHOLE and self.policy is None:
            raise InvalidRequest("text: only a stream can take its text piece by piece; give a chunk policy")
        if self.arrival is Arrival.TOKENS and len(self.segments) != 1:
            raise InvalidRequest(f"text: {len(self.segments)} segments, whose tokens arrive; one is needed")
        if self.arrival is Arrival.TOKENS and self.segments[0].speech_tokens is not None:
            raise InvalidRequest("text: it arrives, and speech tokens are given; leave one of them out")


@dataclass(frozen=True, eq=False)
class AudioChunk:
    """A piece of audio, in order; samples: [n] float32 in [−1, 1].

    index: its place among the chunks; segment: the place, in the request, of the one segment that it speaks. The last
    chunk (`final`) may be empty; then it has the last segment's place.
    """

    samples: np.ndarray
    sample_rate: int
    index: int
    final: bool
    segment: int = 0

    @property
    def duration_s(self) -> float:
        """Seconds of audio in this chunk."""
        return len(self.samples) / self.sample_rate


def check_speed(speed: float) -> None:
    """Refuse a speed outside of 0.5 … 2.0."""
    if speed is None:
        raise InvalidRequest(f"speed: None is outside of {MIN_SPEED} … {MAX_SPEED}; choose a number inside")
    _check("speed", speed, MIN_SPEED, MAX_SPEED)


def _check(name: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not (isinstance(value, Real) and low <= value <= high):
        raise InvalidRequest(f"{name}: {value!r} is outside of {low} … {high}; choose a number inside")


def _check_whole(name: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not (isinstance(value, Integral) and low <= value <= high):
        raise InvalidRequest(f"{name}: {value!r} is outside of {low} … {high}; choose a whole number inside")
