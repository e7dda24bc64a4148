"""Speaks the segments that are missing in a ledger, several at the same time, each with its own seed."""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from itertools import islice
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from vivavoce.errors import InvalidRequest, RequestCancelled, VivavoceError
from vivavoce.frontend.audio.samples import to_int16
from vivavoce_books.ledger import Ledger, Piece, Spoken
from vivavoce_books.plan import Plan, Segment, ends_sentence
from vivavoce_textnorm import check_characters

if TYPE_CHECKING:
    from vivavoce.api import Vivavoce
    from vivavoce.frontend.speech_result import Speech

MAX_AT_ONCE, AT_ONCE_ON_CPU = 64, 4
"""Maximum number of segments spoken at the same time: 64 fill a GPU's batches; on a CPU, more than 4 gain little."""
SILENT = round(32768 * 10 ** (-50 / 20))
"""Maximum amplitude of int16 samples that count as silence at the ends of sentences: -50 dBFS."""


@dataclass(frozen=True)
class Job:
    """A book's plan and all settings of its audio. voices: role → voice; manner: other arguments of `speak`."""

    plan: Plan
    voices: Mapping[str, Any]
    manner: Mapping[str, Any]
    seed: int = 0


def seed_of(seed: int, index: int) -> int:
    """Return the seed of a segment, which does not depend on the order in which segments are spoken."""
    return int.from_bytes(hashlib.sha256(f"{seed} {index}".encode()).digest()[:6], "big")


def place_of(plan: Plan, segment: Segment) -> str:
    return f"chapter {segment.chapter + 1}, character {segment.start:,}"


def check_texts(tts: Vivavoce, plan: Plan, segments: Iterable[Segment]) -> None:
    """Raise InvalidRequest for the first segment that the model cannot speak."""
    for one in segments:
        try:
            check_characters(one.text)
            tts.check(one.text)
        except InvalidRequest as error:
            raise type(error)(f"segment {one.index + 1} ({place_of(plan, one)}): {error}") from None


class Speaker(Protocol):
    """Speaks with one model: a `Vivavoce`, or the `Server` of a job's process."""

    @property
    def sample_rate(self) -> int: ...

    @property
    def speak(self) -> Callable[..., Any]: ...

    @property
    def normalize(self) -> Callable[..., Any]: ...


def speak_missing(
    tts: Speaker, job: Job, segments: Sequence[Segment], ledger: Ledger, at_once: int, done: Callable[[Segment], None]
) -> None:
    """Speak the segments, and store each segment in the ledger as soon as it is complete.

    done: is called after each segment is stored. An error or an interruption stops the work;
    complete segments are stored before.
    """
    cancel, left = Event(), iter(segments)
    languages = cache(lambda code: known_language(tts, code))
    pending: dict[Future[Spoken], Segment] = {}
    pool = ThreadPoolExecutor(at_once, thread_name_prefix="book")
    try:
        while True:
            for one in islice(left, at_once - len(pending)):
                pending[pool.submit(_speak, tts, job, one, languages(one.language), cancel)] = one
            if not pending:
                return
            finished = wait(pending, return_when=FIRST_COMPLETED).done
            # Store the complete segments before the error of another segment is raised.
            for future in sorted(finished, key=lambda one: one.exception() is not None):
                segment = pending.pop(future)
                ledger.add(segment.index, future.result(), tts.sample_rate)
                done(segment)
            give_back_memory()
    finally:
        cancel.set()
        pool.shutdown(cancel_futures=True)


def give_back_memory() -> None:
    """Make the C library return freed memory to the system: segments of many lengths fragment its memory."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):  # glibc has it
        trim(0)


def _speak(tts: Speaker, job: Job, segment: Segment, language: str | None, cancel: Event) -> Spoken:
    manner = {**job.manner, "seed": seed_of(job.seed, segment.index), "language": language}
    for again in (True, False):
        try:
            speech = tts.speak(segment.text, job.voices[segment.role], cancel=cancel, **manner)
            return cut_silence(speech, segment)
        except RequestCancelled:
            raise
        except VivavoceError as error:
            if not again or isinstance(error, InvalidRequest):
                where = f"segment {segment.index + 1} ({place_of(job.plan, segment)})"
                raise type(error)(f"{where} failed: {error}; the same command goes on there") from None
    raise AssertionError("unreachable")


def cut_silence(speech: Speech, segment: Segment) -> Spoken:
    """Remove the silence before and after each sentence of the speech; a pause within a sentence stays."""
    samples, opens = to_int16(speech.samples), segment.opens
    pieces, parts = list[Piece](), []
    for mark in speech.marks:
        part = samples[round(mark.start_s * speech.sample_rate) : round(mark.end_s * speech.sample_rate)]
        closes = segment.closes if mark is speech.marks[-1] else ends_sentence(mark.text)
        heard = np.flatnonzero(np.abs(part.astype(np.int32)) > SILENT)
        if len(heard):
            part = part[heard[0] if opens else 0 : heard[-1] + 1 if closes else None]
        pieces.append(Piece(mark.start_character, mark.end_character, len(part), closes, mark.cut))
        parts.append(part)
        opens = closes
    return Spoken(tuple(pieces), np.concatenate(parts) if parts else np.zeros(0, np.int16))


def known_language(tts: Speaker, code: str | None) -> str | None:
    """Return the code if the model can speak the language; else None: the language is then detected."""
    try:
        tts.normalize("1", language=code)
        return code
    except InvalidRequest:
        return None
