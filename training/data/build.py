"""The corpus: texts given to speakers, spoken by worker processes, written one after another."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import tee
from pathlib import Path

import numpy as np

from training.data.flite import Flite, Synthesise
from training.data.render import Utterance, render
from training.data.store import SAMPLE_RATE, TOKEN_SAMPLES, Corpus, Speaker
from training.data.workers import ordered_map
from training.data.writer import CorpusWriter

MAX_FAILURES = 0.02
"""Share of the utterances that may fail before the synthesiser must be broken."""
_MIN_ATTEMPTS = 100


@dataclass(frozen=True)
class Progress:
    """How far a build has come: what is written, and how many utterances failed."""

    hours: float
    utterances: int
    failed: int


@dataclass(frozen=True)
class _Line:
    """What is to be spoken: the index seeds what chance decides in the sound."""

    index: int
    speaker: int
    text: str


def build(
    folder: Path,
    hours: float,
    speakers: list[Speaker],
    texts: Iterable[str],
    seed: int,
    jobs: int | None = None,
    make_synthesiser: Callable[[], Synthesise] = Flite,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Corpus:
    """Write a corpus of at least `hours` hours into `folder`.

    texts: without end, or long enough; speakers take turns in an order of chance. jobs: worker processes, by default
    one per core; they do not change the result. make_synthesiser: called once in each process, so picklable.

    Raises:
        MissingDependency: flite is not installed.
        RuntimeError: more than one text in fifty cannot be spoken.
        ValueError: the texts end before the hours are full.
    """
    make_synthesiser()  # what is missing is said here, once
    to_speak, to_write = tee(_lines(texts, len(speakers), seed))
    make_renderer = partial(_Renderer, make_synthesiser, tuple(speakers), seed)
    with (
        closing(CorpusWriter(folder, speakers)) as writer,
        closing(ordered_map(make_renderer, to_speak, jobs or num_cores())) as rendered,
    ):
        for line, utterance in zip(to_write, rendered, strict=False):
            if utterance is not None:
                writer.append(utterance, line.speaker, line.text)
            progress = Progress(_hours(writer), writer.num_utterances, line.index + 1 - writer.num_utterances)
            _check(progress)
            report(progress)
            if progress.hours >= hours:
                return writer.finish()
        raise ValueError(f"texts: they end after {_hours(writer):.3f} of {hours} hours; give more")


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Renderer:
    """What a worker process does: renders lines with a synthesiser of its own."""

    def __init__(self, make_synthesiser: Callable[[], Synthesise], speakers: tuple[Speaker, ...], seed: int) -> None:
        self._synthesise, self._speakers, self._seed = make_synthesiser(), speakers, seed

    def __call__(self, line: _Line) -> Utterance | None:
        r = np.random.default_rng((self._seed, line.index))
        return render(self._speakers[line.speaker], line.text, self._synthesise, r)


def _lines(texts: Iterable[str], num_speakers: int, seed: int) -> Iterator[_Line]:
    """Texts with speakers: every speaker gets one before any gets the next."""
    r = random.Random(seed)
    order = list(range(num_speakers))
    for index, text in enumerate(texts):
        if index % num_speakers == 0:
            r.shuffle(order)
        yield _Line(index, order[index % num_speakers], text)


def _hours(writer: CorpusWriter) -> float:
    return writer.num_tokens * TOKEN_SAMPLES / SAMPLE_RATE / 3600


def _check(progress: Progress) -> None:
    attempts = progress.utterances + progress.failed
    if attempts >= _MIN_ATTEMPTS and progress.failed > MAX_FAILURES * attempts:
        raise RuntimeError(f"{progress.failed} of {attempts} texts could not be spoken; is flite 2.2 whole?")
