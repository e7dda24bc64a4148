"""The corpus: texts given to speakers, spoken by worker processes, written one after another."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import tee
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vivavoce_training.data.flite import Flite, Synthesise
from vivavoce_training.data.render import render
from vivavoce_training.data.store import Corpus, CorpusWriter, Speaker, Utterance, hours_of
from vivavoce_training.data.workers import ordered_map

MAX_FAILURES = 0.02  # share of the utterances that may fail before the synthesiser must be broken
_MIN_ATTEMPTS = 100


class Progress(NamedTuple):
    """A build's progress: the utterances written, and how many utterances failed."""

    hours: float
    utterances: int
    failed: int


class _Line(NamedTuple):
    """A text to be spoken; the number seeds the random choices in its sound."""

    number: int
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
    MissingDependency: flite is not installed; RuntimeError: more than one text in fifty cannot be spoken; ValueError:
    the texts end before the hours are full.
    """
    make_synthesiser()  # what is missing is said here, once
    to_speak, to_write = tee(_lines(texts, len(speakers), seed))
    make_renderer = partial(_renderer, make_synthesiser, tuple(speakers), seed)
    with (
        closing(CorpusWriter(folder, speakers)) as writer,
        closing(ordered_map(make_renderer, to_speak, jobs or num_cores())) as rendered,
    ):
        for line, utterance in zip(to_write, rendered, strict=False):
            if utterance is not None:
                writer.append(utterance, line.speaker, line.text)
            attempts, failed = line.number + 1, line.number + 1 - writer.num_utterances
            if attempts >= _MIN_ATTEMPTS and failed > MAX_FAILURES * attempts:
                raise RuntimeError(f"{failed} of {attempts} texts could not be spoken; is flite 2.2 whole?")
            progress = Progress(hours_of(writer.num_tokens), writer.num_utterances, failed)
            report(progress)
            if progress.hours >= hours:
                return writer.finish()
        raise ValueError(f"texts: they end after {hours_of(writer.num_tokens):.3f} of {hours} hours; give more")


def num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _renderer(
    make_synthesiser: Callable[[], Synthesise], speakers: tuple[Speaker, ...], seed: int
) -> Callable[[_Line], Utterance | None]:
    """The work of a worker process: it renders lines with a synthesiser of its own."""
    synthesise = make_synthesiser()

    def rendered(line: _Line) -> Utterance | None:
        return render(speakers[line.speaker], line.text, synthesise, np.random.default_rng((seed, line.number)))

    return rendered


def _lines(texts: Iterable[str], num_speakers: int, seed: int) -> Iterator[_Line]:
    """Texts with speakers: every speaker gets one before any gets the next."""
    r = random.Random(seed)
    order = list(range(num_speakers))
    for number, text in enumerate(texts):
        if number % num_speakers == 0:
            r.shuffle(order)
        yield _Line(number, order[number % num_speakers], text)
