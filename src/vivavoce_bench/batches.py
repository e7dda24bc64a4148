"""Measure batches of texts in a language model, and then in token2wav, for `vivavoce bench offline`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import StageFailed
from vivavoce_bench.measure import picture, rounded

SCHEMA = "vivavoce-bench-offline-1"
HEADER = ("backend", "batch", "texts", "tokens", "audio s", "LLM s", "token2wav s", "total s", "RTF", "tokens/s")
Samples = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Job:
    """A text. prompt: the language model's input; voice: token2wav's input; seed: for sampling speech tokens."""

    id: str
    prompt: Any
    voice: Any
    seed: int


Waves = Callable[[Sequence[Job], Sequence[Sequence[int]]], Sequence[Samples]]
"""Runs token2wav on a batch: (jobs, speech tokens of each job) → samples of each job, [n] float32 on the host."""


class TokenBackend(Protocol):
    sampling: str

    def generate(self, prompts: Sequence[Any]) -> Sequence[Sequence[int]]:
        """Return the speech tokens (0 … V − 1) of each prompt in order, on the host and without the end token."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class BatchFigures:
    """Figures of one backend and batch size. Times are in seconds, summed over all batches."""

    backend: str
    sampling: str
    batch_size: int
    token2wav_batch_size: int
    texts: int
    tokens: int
    audio_s: float
    llm_time_seconds: float
    token2wav_time_seconds: float

    @property
    def total_time_seconds(self) -> float:
        """Total time in seconds, without the warm-up and without writing files."""
        return self.llm_time_seconds + self.token2wav_time_seconds

    @property
    def rtf(self) -> float:
        return self.total_time_seconds / self.audio_s

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.llm_time_seconds if self.llm_time_seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        derived = {"total_time_seconds": self.total_time_seconds, "rtf": self.rtf, "tokens_per_s": self.tokens_per_s}
        return {**asdict(self), **derived}

    def row(self) -> list[str]:
        counts = [self.backend, str(self.batch_size), str(self.texts), str(self.tokens), f"{self.audio_s:.1f}"]
        times = (self.llm_time_seconds, self.token2wav_time_seconds, self.total_time_seconds)
        return [*counts, *(f"{seconds:.2f}" for seconds in times), f"{self.rtf:.3f}", f"{self.tokens_per_s:.0f}"]


def measure_batches(
    name: str,
    model: TokenBackend,
    waves: Waves,
    sample_rate: int,
    jobs: Sequence[Job],
    batch_size: int,
    token2wav_batch_size: int,
    keep: Callable[[Job, Samples], None],
    clock: Callable[[], float] = time.perf_counter,
) -> BatchFigures:
    """Warm up with the first batch, then run and time all batches: first the language model, then token2wav.

    name: the backend's name; keep: called with each job's samples, outside the measured time; clock: returns seconds.
    `StageFailed`: the language model generated no speech tokens for a text.
    """
    batches = [jobs[start : start + batch_size] for start in range(0, len(jobs), batch_size)]
    num_tokens = num_samples = 0
    llm_s = token2wav_s = 0.0
    for number, batch in enumerate([batches[0], *batches]):
        started = clock()
        tokens = model.generate([job.prompt for job in batch])
        decoded = clock()
        for job, found in zip(batch, tokens, strict=True):
            if not found:
                raise StageFailed(f"backend: {name} gave no speech for text {job.id}; try another seed or backend")
        began, spoken = clock(), list[Samples]()
        for start in range(0, len(batch), token2wav_batch_size):
            part = slice(start, start + token2wav_batch_size)
            spoken.extend(waves(batch[part], tokens[part]))
        ended = clock()
        if not number:
            continue
        llm_s, token2wav_s = llm_s + decoded - started, token2wav_s + ended - began
        num_tokens, num_samples = num_tokens + sum(map(len, tokens)), num_samples + sum(map(len, spoken))
        for job, samples in zip(batch, spoken, strict=True):
            keep(job, samples)
    return BatchFigures(
        name,
        model.sampling,
        batch_size,
        token2wav_batch_size,
        texts=len(jobs),
        tokens=num_tokens,
        audio_s=num_samples / sample_rate,
        llm_time_seconds=llm_s,
        token2wav_time_seconds=token2wav_s,
    )


def batch_report(settings: Mapping[str, Any], runs: Sequence[BatchFigures]) -> dict[str, Any]:
    return rounded({"schema": SCHEMA, **settings, "runs": [one.to_json() for one in runs]})


def draw_batches(runs: Sequence[BatchFigures], path: Path) -> None:
    with picture(path, (12.0, 4.6), 2) as (times, speeds):
        labels = [f"{one.backend} {one.batch_size}" for one in runs]
        llm = [one.llm_time_seconds / one.audio_s for one in runs]
        times.bar(labels, llm, label="language model")
        times.bar(labels, [one.token2wav_time_seconds / one.audio_s for one in runs], bottom=llm, label="token2wav")
        times.set_title("Seconds of work per second of audio")
        times.tick_params(axis="x", rotation=60)
        for backend in dict.fromkeys(one.backend for one in runs):
            own = sorted((one.batch_size, one.tokens_per_s) for one in runs if one.backend == backend)
            speeds.plot(*zip(*own, strict=True), marker="o", label=backend)
        speeds.set(title="Speech tokens per second of the language model", xlabel="batch size")
        speeds.set_xticks(sorted({one.batch_size for one in runs}))
        for axes in (times, speeds):
            axes.legend(fontsize="small")
