"""Recognition of many utterances, in this process or in several."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vivavoce.errors import InvalidRequest, VivavoceError
from vivavoce.evaluate.edits import phone_errors
from vivavoce.evaluate.recogniser import ClosedVocabulary, Phonetic, Recogniser, RecogniserFactory, as_floats


@dataclass(frozen=True, eq=False)
class Task:
    """One utterance for a recogniser: audio as `prepare` makes it, and the words or characters to be said."""

    wave: NDArray[np.int16]
    said: tuple[str, ...]


@dataclass(frozen=True)
class Heard:
    """What a recogniser made of one utterance."""

    free: str
    closed: str | None
    """None: the recogniser has no closed vocabulary."""
    phones: str | None
    """The phones with spaces between; None: the recogniser has none."""
    phone_errors: int
    num_phones: int
    """Of the words to be said."""
    unknown: frozenset[str] = frozenset()
    """Of what was to be said, what the recogniser can never write."""


class Ear:
    """A recogniser with all it can do for a set of sentences."""

    def __init__(self, recogniser: Recogniser, sentences: Sequence[Sequence[str]]) -> None:
        self._recogniser = recogniser
        self._closed = recogniser.closed(sentences) if isinstance(recogniser, ClosedVocabulary) else None

    def listen(self, task: Task) -> Heard:
        """Transcribe one utterance in every way there is."""
        samples = as_floats(task.wave)
        free = _transcribe(self._recogniser, samples)
        closed = _transcribe(self._closed, samples) if self._closed is not None else None
        if not isinstance(self._recogniser, Phonetic):
            return Heard(free, closed, None, 0, 0)
        phones = self._recogniser.phones(samples)
        ways = {word: self._recogniser.pronunciations(word) for word in task.said}
        errors, total = phone_errors([ways[word] for word in task.said if ways[word]], phones)
        return Heard(free, closed, " ".join(phones), errors, total, frozenset(word for word in ways if not ways[word]))


def _transcribe(recogniser: Recogniser, samples: NDArray[np.float32]) -> str:
    try:
        text = recogniser.transcribe(samples)
    except VivavoceError:
        raise
    except Exception as error:
        kind = type(recogniser).__name__
        raise InvalidRequest(f"recogniser: {kind} fails ({type(error).__name__}: {error}); mend it") from error
    if not isinstance(text, str):
        raise InvalidRequest(
            f"recogniser: {type(recogniser).__name__}.transcribe gave a {type(text).__name__}; it must give a text"
        )
    return text


def unknown_words(recogniser: Recogniser, sentence: Sequence[str]) -> list[str]:
    """Those words of a sentence that the recogniser can never write; none if it does not tell."""
    if not isinstance(recogniser, Phonetic):
        return []
    return [word for word in sentence if not recogniser.pronunciations(word)]


def listen(
    tasks: Sequence[Task],
    factory: RecogniserFactory,
    jobs: int = 1,
    show: Callable[[int], None] = lambda _: None,
) -> list[Heard]:
    """Transcribe all utterances, each in every way that the recogniser has.

    Args:
        tasks: the utterances; what they say is the closed vocabulary.
        factory: makes the recogniser. With more than one process it must be picklable.
        jobs: processes, each with a recogniser of its own. One: this one.
        show: called with the number of utterances done so far.

    Raises:
        InvalidRequest: the recogniser fails, or one of its processes dies.
    """
    sentences = sorted({task.said for task in tasks})
    if jobs <= 1 or len(tasks) <= 1:
        return _listen_to(tasks, factory, sentences, show)
    jobs = min(jobs, len(tasks))
    heard: list[Heard | None] = [None] * len(tasks)
    # A forked process would inherit the threads' locks of the networks that have just spoken.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _end_at_interrupt) as pool:
        shares = {pool.submit(_listen_to, tasks[first::jobs], factory, sentences): first for first in range(jobs)}
        try:
            for share in as_completed(shares):
                heard[shares[share] :: jobs] = share.result()
                show(sum(result is not None for result in heard))
        except BrokenProcessPool:
            raise InvalidRequest("recogniser: one of its processes has died; use fewer with --jobs") from None
    return [result for result in heard if result is not None]


def _end_at_interrupt() -> None:
    """Let Ctrl-C, which reaches all processes of a terminal, end this one without a word: the first one answers."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _listen_to(
    tasks: Sequence[Task],
    factory: RecogniserFactory,
    sentences: Sequence[Sequence[str]],
    show: Callable[[int], None] = lambda _: None,
) -> list[Heard]:
    ear, heard = Ear(factory(), sentences), []
    for task in tasks:
        heard.append(ear.listen(task))
        show(len(heard))
    return heard
