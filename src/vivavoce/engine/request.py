"""The engine's requests, and the audio that it returns, as immutable values."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from numbers import Integral, Real
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vivavoce.checkpoint.config import Vocabulary
from vivavoce.engine.chunk_policy import ChunkPolicy, CrossfadeMode
from vivavoce.errors import InvalidRequest
from vivavoce.models.lm.interleave import Row, RowKind

if TYPE_CHECKING:  # the server's process creates requests, and does not import torch
    from torch import Tensor

MIN_SPEED, MAX_SPEED = 0.5, 2.0
SEEDS = (-(2**63), 2**63 - 1)
"""Limits of a seed: seeds are stored as int64."""
MAX_PAUSE_S = 10.0
SMALL_VOCABULARY = 32_000
"""A text vocabulary with fewer ids is small: it writes a word in several tokens or bytes. The official vocabulary has
151,665 ids."""
MAX_TOKENS = 100_000
"""Limit of `max_tokens`, above the size of any slot; a request that does not fit its slot is refused later."""


def is_number(value: object, *, whole: bool = False) -> bool:
    """Return whether this is a number (numpy's numbers included), but not True or False."""
    return isinstance(value, Integral if whole else Real) and not isinstance(value, bool)


def check_number(name: str, value: float | None, low: float, high: float, *, whole: bool = False) -> None:
    """Raise InvalidRequest if the value is not a number, or is outside of low … high. None passes."""
    if value is None:
        return
    if not (is_number(value, whole=whole) and low <= value <= high and abs(value) != math.inf):
        number = "whole number" if whole else "number"
        if not math.isfinite(high):
            raise InvalidRequest(f"{name}: {value!r} is not a {number} of {low} or more; choose one")
        raise InvalidRequest(f"{name}: {value!r} is outside of {low} … {high}; choose a {number} inside")


@dataclass(frozen=True)
class SamplingParams:
    """The rule by which speech tokens are sampled. None means the value in the checkpoint's yaml file.

    An id is sampled from the nucleus (top_p, top_k). If it occurs at least `win_size · tau_r` times in the last
    `win_size` tokens, another id is sampled from all ids. A text token gives `min_ratio` to `max_ratio` speech tokens.
    """

    top_p: float | None = None
    top_k: int | None = None
    win_size: int | None = None
    tau_r: float | None = None
    min_ratio: float = 2.0
    max_ratio: float = 20.0
    exact_tokens: int | None = None
    """Speech has exactly this many tokens, even if the model ends it earlier; for measurements with random weights."""

    def __post_init__(self) -> None:
        check_number("top_p", self.top_p, 0.001, 1.0)
        check_number("top_k", self.top_k, 1, 10_000, whole=True)
        check_number("win_size", self.win_size, 1, 200, whole=True)
        check_number("tau_r", self.tau_r, 0.0, 1.0)
        check_number("max_ratio", self.max_ratio, 1.0, 50.0)
        check_number("min_ratio", self.min_ratio, 0.0, self.max_ratio)
        check_number("exact_tokens", self.exact_tokens, 1, 7_500, whole=True)


AS_CONFIGURED = SamplingParams()
"""Sampling with the values in the checkpoint's yaml file."""


@dataclass(frozen=True, eq=False)
class Conditioning:
    """The features of a voice for each stage, made by `frontend/front_end.py`.

    Make it once for all requests of a voice: the engine caches results that depend on it. Its tensors must not change.

    lm_prompt_text: text ids of the reference's transcript, or of an instruction; lm_prompt_tokens: the reference's
    speech tokens, for the language model; lm_system_text: text ids of the system prompt with its end mark, before
    lm_prompt_text; flow_tokens: [n] int64, speech tokens for the flow; flow_mel: [frames, bins] float32; embedding:
    [speaker size] float32, for the flow; lm_embedding: the embedding for CosyVoice 1's language model, else None.
    """

    embedding: Tensor
    lm_prompt_text: tuple[int, ...] = ()
    lm_prompt_tokens: tuple[int, ...] = ()
    flow_tokens: Tensor = field(default_factory=lambda: _empty_tensor("int64", 0))
    flow_mel: Tensor = field(default_factory=lambda: _empty_tensor("float32", 0, 0))
    lm_system_text: tuple[int, ...] = ()
    lm_embedding: Tensor | None = None

    @cached_property
    def lm_text(self) -> tuple[int, ...]:
        """All text ids before the text that is to be spoken."""
        return self.lm_system_text + self.lm_prompt_text

    @cached_property
    def flow_prompt(self) -> tuple[int, ...]:
        """`flow_tokens` as a tuple of ints."""
        return tuple(self.flow_tokens.tolist())

    @cached_property
    def fits(self) -> set[tuple[int, ...]]:
        """Sizes of embedding tables for which the engine has already checked this voice's ids."""
        return set()

    @cached_property
    def flow_key(self) -> bytes:
        """A hash of the flow's features; two voices have the same hash only if these features are equal."""
        digest = hashlib.blake2b(digest_size=16)
        for tensor in (self.flow_tokens, self.flow_mel, self.embedding):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return digest.digest()


class FlowSteps(Enum):
    """The steps by which the flow's solver goes from noise to mel."""

    OFFICIAL = "official"
    """Ten Euler steps, as in the official code, or the number on the model's card; mini has five."""
    FAST = "fast"
    """Three midpoint steps, which are six evaluations of the network instead of ten."""


@dataclass(frozen=True, eq=False)
class SegmentRequest:
    """One sequence to be spoken: text ids, or given speech tokens (voice conversion).

    pause_s: seconds of silence instead of speech, in a segment that has neither text nor tokens; watched: whether
    chunks tell where the voice is in the text (they need known attention heads); guarded: None, or the index of each
    word's first text id: speech that leaves the text is then sampled again (`guard`, needs `watched`); flow_steps: None
    means the engine's default; adapter: the name of a loaded LoRA adapter, "" for no adapter.
    """

    conditioning: Conditioning
    text: tuple[int, ...] = ()
    speech_tokens: tuple[int, ...] | None = None
    sampling: SamplingParams = AS_CONFIGURED
    seed: int = 0
    speed: float = 1.0
    pause_s: float = 0.0
    watched: bool = False
    guarded: tuple[int, ...] | None = None
    flow_steps: FlowSteps | None = None
    adapter: str = ""

    def __post_init__(self) -> None:
        check_speed(self.speed)
        check_number("seed", self.seed, *SEEDS, whole=True)
        check_number("pause_s", self.pause_s, 0.0, MAX_PAUSE_S)
        if self.pause_s and (self.text or self.speech_tokens):
            raise InvalidRequest(
                f"pause_s: {self.pause_s}, but the segment has text or tokens; give the pause a segment of its own"
            )
        if self.speech_tokens is None:
            self.check_not_empty()

    def check_not_empty(self) -> None:
        """Refuse an empty segment, unless its speech tokens are still to come."""
        if not self.text and not self.speech_tokens and not self.pause_s:
            raise InvalidRequest("text: no tokens to speak; give some text")


@dataclass(frozen=True, eq=False)
class SpeechTokens:
    """Speech tokens that are pushed during synthesis. The next `hop` unspoken tokens become one chunk; tokens after
    them are only its lookahead. final: no more tokens will come, and this chunk is the last one."""

    tokens: tuple[int, ...]
    hop: int
    final: bool = False


class InputMode(Enum):
    """The way in which a request gets its text."""

    WHOLE = "whole"
    """The request has all of its text."""
    TOKENS = "tokens"
    """There is one segment, with the beginning of the text; more text ids are pushed through the handle later."""
    SEGMENTS = "segments"
    """More segments are pushed through the handle; the request may begin without any."""
    SPEECH = "speech"
    """There is one segment, without text and speech tokens; `SpeechTokens` are pushed, and each push makes a chunk."""


@dataclass(frozen=True, eq=False)
class EngineRequest:
    """A request for audio: segments that are heard one after the other.

    policy: cuts the audio into chunks, each made before the listener has played all earlier chunks; None: offline, one
    chunk for each segment. batch: the request has no deadline, and takes only the time that other requests leave.
    """

    segments: tuple[SegmentRequest, ...]
    policy: ChunkPolicy | None = None
    arrival: InputMode = InputMode.WHOLE
    batch: bool = False

    def __post_init__(self) -> None:
        arrival = self.arrival
        if not self.segments and arrival is not InputMode.SEGMENTS:
            raise InvalidRequest("text: no segments to speak; give some text")
        if arrival is InputMode.SPEECH:
            if len(self.segments) != 1 or self.segments[0].text or self.segments[0].speech_tokens:
                raise InvalidRequest("speech tokens: to push them, give one segment that has neither text nor tokens")
            if self.policy is None or self.policy.joins is not CrossfadeMode.SEAMLESS:
                raise InvalidRequest("speech tokens: to push them, give a chunk policy whose joins are seamless")
            return
        for segment in self.segments:
            segment.check_not_empty()
        if arrival is not InputMode.WHOLE and self.policy is None:
            raise InvalidRequest("text: only a stream can take its text piece by piece; give a chunk policy")
        if arrival is InputMode.TOKENS and len(self.segments) != 1:
            raise InvalidRequest(f"text: {len(self.segments)} segments; text that arrives in tokens needs exactly one")
        if arrival is InputMode.TOKENS and self.segments[0].speech_tokens is not None:
            raise InvalidRequest("text: it arrives token by token, but speech tokens are given, too; leave one out")


@dataclass(frozen=True, eq=False)
class TokenRequest:
    """A request for the speech tokens that follow a prompt, without audio.

    rows: the prompt; max_tokens: the most speech tokens; min_tokens: the fewest speech tokens, unless `max_tokens` is
    less; ends: control ids that may end the speech; None: all stop ids of the model; (): speech ends after exactly
    `max_tokens`; seed: the sampling's seed; speaker: [speaker size] float32, for a row of kind SPEAKER.
    """

    rows: tuple[Row, ...]
    max_tokens: int
    min_tokens: int = 1
    ends: tuple[int, ...] | None = None
    sampling: SamplingParams = AS_CONFIGURED
    seed: int = 0
    speaker: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.rows:
            raise InvalidRequest("prompt: it has no rows; give at least one")
        check_number("max_tokens", self.max_tokens, 1, MAX_TOKENS, whole=True)
        check_number("min_tokens", self.min_tokens, 0, MAX_TOKENS, whole=True)
        check_number("seed", self.seed, *SEEDS, whole=True)


def speech_prompt(
    vocabulary: Vocabulary, text: Sequence[int], speech: Sequence[int] = (), *, speaker: bool = False
) -> tuple[Row, ...]:
    """Return the language model's prompt for a complete text: [sos, speaker, text, task, speech].

    text: text ids, first the ids of the reference's transcript; speech: the reference's speech tokens; speaker: whether
    there is a row for the speaker.
    """
    return (
        Row(RowKind.CONTROL, vocabulary.sos),
        *((Row(RowKind.SPEAKER, 0),) if speaker else ()),
        *(Row(RowKind.TEXT, one) for one in text),
        Row(RowKind.CONTROL, vocabulary.task),
        *(Row(RowKind.SPEECH, one) for one in speech),
    )


class Fault(str, Enum):
    """A kind of fault: a way in which speech deviates from its text."""

    STANDS = "stands"
    REPEATS = "repeats"
    SKIPS = "skips"
    EARLY_END = "early_end"
    LOOPS = "loops"
    SILENCE = "silence"
    LEAK = "leak"


@dataclass(frozen=True)
class Word:
    """A word as it is written in the text, and the time at which it is heard.

    start_character, end_character: its characters in the input; start_s, end_s: seconds from the beginning of the
    audio; estimated: times were divided by the lengths of words, because the position was unknown.
    """

    text: str
    start_character: int
    end_character: int
    start_s: float
    end_s: float
    estimated: bool = False


@dataclass(frozen=True, eq=False)
class AudioChunk:
    """A piece of audio; samples: [n] float32 in [−1, 1].

    index: the chunk's index in the request; segment: the index of its segment in the request. The last chunk (`final`)
    may be empty; its segment is then the request's last segment. reached: the text tokens of the segment that begin in
    this chunk, each with its start in seconds of the segment's audio; None if unknown; ended: whether the chunk is its
    segment's last chunk; words: the words that end in this chunk, if the front end was asked for words.
    """

    samples: NDArray[np.float32]
    sample_rate: int
    index: int = 0
    final: bool = False
    segment: int = 0
    reached: tuple[tuple[int, float], ...] | None = None
    ended: bool = False
    words: tuple[Word, ...] = ()

    def __repr__(self) -> str:
        return f"AudioChunk({self.duration_s:.3f} s, index {self.index}, segment {self.segment})"

    @property
    def duration_s(self) -> float:
        """Seconds of audio in this chunk."""
        return len(self.samples) / self.sample_rate


def _empty_tensor(dtype: str, *shape: int) -> Tensor:
    import torch

    return torch.zeros(*shape, dtype=getattr(torch, dtype))


def check_speed(speed: float) -> None:
    """Raise InvalidRequest for a speed outside of 0.5 … 2.0."""
    if isinstance(speed, bool) or not isinstance(speed, Real):
        raise InvalidRequest(f"speed: {speed!r} is not a number; choose one in {MIN_SPEED} … {MAX_SPEED}")
    check_number("speed", speed, MIN_SPEED, MAX_SPEED)
