"""Texts in batches through a language model and then through token2wav, by the clock.

What is measured stands behind two protocols: any runtime of the language model can take the place of another while
the second half, speech tokens to samples, stays the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import StageFailed

Samples = NDArray[np.float32]


@dataclass(frozen=True)
class Sampling:
    """How a general runtime draws speech tokens; the values of CosyVoice2's published Triton deployment."""

    top_p: float = 0.95
    top_k: int = 50
    temperature: float = 0.8
    repetition_penalty: float = 1.1

    def describe(self) -> str:
        """In one line, for a report."""
        return (
            f"top_p {self.top_p:g}, top_k {self.top_k}, temperature {self.temperature:g}, "
            f"repetition_penalty {self.repetition_penalty:g}"
        )


@dataclass(frozen=True)
class Prompt:
    """What a language model continues.

    ids: of the merged vocabulary: sos, prompt text and text, task, prompt speech; seed: of its draws, where the runtime
    has one for each row; most, least: speech tokens that may come.
    """

    ids: tuple[int, ...]
    seed: int
    most: int
    least: int = 1


@dataclass(frozen=True, eq=False)
class Job:
    """One text to be spoken; voice: whatever token2wav knows a voice by."""

    id: str
    prompt: Prompt
    voice: Any


class LanguageModel(Protocol):
    """A runtime of the language model."""

    sampling: str
    """How it draws, in one line."""

    def generate(self, prompts: Sequence[Prompt]) -> Sequence[Sequence[int]]:
        """Speech tokens of each prompt, in its order: 0 … V − 1, without the id that ended them; when it returns, they
        are on the host.
        """

    def close(self) -> None:
        """Give back what it holds."""


class Token2Wav(Protocol):
    """Speech tokens → samples, in batches."""

    @property
    def sample_rate(self) -> int:
        """Of all its audio."""

    def waves(self, jobs: Sequence[Job], tokens: Sequence[Sequence[int]]) -> Sequence[Samples]:
        """Samples of each job's tokens, [n] float32 on the host; all of one call are one batch."""


@dataclass(frozen=True)
class Figures:
    """What one batch size came to; times in seconds, of all batches together."""

    backend: str
    sampling: str
    batch_size: int
    token2wav_batch_size: int
    texts: int
    tokens: int
    """Speech tokens."""
    audio_s: float
    llm_time_seconds: float
    token2wav_time_seconds: float

    @property
    def total_time_seconds(self) -> float:
        """Both halves; writing files and the warm-up are not in it."""
        return self.llm_time_seconds + self.token2wav_time_seconds

    @property
    def rtf(self) -> float:
        """Seconds of work per second of audio."""
        return self.total_time_seconds / self.audio_s

    @property
    def tokens_per_s(self) -> float:
        """Speech tokens per second of the language model's time."""
        return self.tokens / self.llm_time_seconds if self.llm_time_seconds else 0.0


@dataclass(frozen=True, eq=False)
class Rig:
    """What is measured, and how its results leave.

    keep: takes the samples of each job that counts, beside the clock; clock: seconds.
    """

    backend: str
    model: LanguageModel
    token2wav: Token2Wav
    keep: Callable[[int, Job, Samples], None] = lambda size, job, samples: None
    clock: Callable[[], float] = time.perf_counter


def measure(rig: Rig, jobs: Sequence[Job], batch_size: int, token2wav_batch_size: int) -> Figures:
    """Speak all jobs, `batch_size` at a time, after the first batch was spoken once to warm up.

    Raises:
        StageFailed: a text got no speech token, which token2wav has no use for.
    """
    batches = [jobs[start : start + batch_size] for start in range(0, len(jobs), batch_size)]
    _speak(rig, batches[0], token2wav_batch_size)
    num_tokens = num_samples = 0
    llm_s = token2wav_s = 0.0
    for batch in batches:
        spoken = _speak(rig, batch, token2wav_batch_size)
        llm_s, token2wav_s = llm_s + spoken.llm_s, token2wav_s + spoken.token2wav_s
        num_tokens += spoken.num_tokens
        for job, samples in zip(batch, spoken.waves, strict=True):
            num_samples += len(samples)
            rig.keep(batch_size, job, samples)
    return Figures(
        backend=rig.backend,
        sampling=rig.model.sampling,
        batch_size=batch_size,
        token2wav_batch_size=token2wav_batch_size,
        texts=len(jobs),
        tokens=num_tokens,
        audio_s=num_samples / rig.token2wav.sample_rate,
        llm_time_seconds=llm_s,
        token2wav_time_seconds=token2wav_s,
    )


@dataclass(frozen=True, eq=False)
class _Spoken:
    llm_s: float
    token2wav_s: float
    num_tokens: int
    waves: Sequence[Samples]


def _speak(rig: Rig, batch: Sequence[Job], token2wav_batch_size: int) -> _Spoken:
    started = rig.clock()
    tokens = rig.model.generate([job.prompt for job in batch])
    decoded = rig.clock()
    for job, found in zip(batch, tokens, strict=True):
        if not found:
            raise StageFailed(f"backend: {rig.backend} gave no speech for text {job.id}; try another seed or backend")
    waves: list[Samples] = []
    begun = rig.clock()
    for start in range(0, len(batch), token2wav_batch_size):
        part = slice(start, start + token2wav_batch_size)
        waves.extend(rig.token2wav.waves(batch[part], tokens[part]))
    return _Spoken(decoded - started, rig.clock() - begun, sum(map(len, tokens)), waves)
