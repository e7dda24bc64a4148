"""Synthesisers for tests that run without flite, in worker processes too."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np

from vivavoce_training.data.flite import FLITE_RATE, Spoken
from vivavoce_training.data.store import PHONES

LEAD_S = 0.2
PHONE_S = 0.06
TAIL_S = 0.1


def tone(voice: str, text: str, pitch: float = 1.0, stretch: float = 1.0) -> Spoken | None:
    """A tone with silence around it; one phone for each letter. Text without letters says nothing."""
    letters = [letter for letter in text.lower() if letter.isalpha()]
    if not letters:
        return None
    phones = np.array([0, *(1 + ord(letter) % (len(PHONES) - 1) for letter in letters), 0], np.uint8)
    durations = np.array([LEAD_S, *[PHONE_S] * len(letters), TAIL_S]) * stretch
    ends = np.cumsum(durations)
    seconds = np.arange(round(ends[-1] * FLITE_RATE)) / FLITE_RATE
    sounding = (seconds >= ends[0]) & (seconds < ends[-2])
    wave = np.where(sounding, np.sin(2 * np.pi * 100 * pitch * seconds), 0.0)
    return Spoken((wave * 8000 + 50).astype(np.int16), phones, ends)


def fragile_tone(voice: str, text: str, pitch: float = 1.0, stretch: float = 1.0) -> Spoken | None:
    """As `tone`, but "crash" ends the process."""
    if "crash" in text:
        os._exit(11)
    return tone(voice, text, pitch, stretch)


def make_tone() -> object:
    return tone


def make_fragile_tone() -> object:
    return fragile_tone


def make_worker() -> object:
    return work


def make_nothing() -> object:
    raise OSError("no library")


def work(item: str) -> str:
    """Upper case; some words do what bad C code does."""
    if item == "crash":
        os._exit(11)
    if item == "hang":
        threading.Event().wait()
    if item == "raise":
        raise ZeroDivisionError("a bug")
    return item.upper()


class FakeFlite:
    """In flite's place, whatever the folder."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder

    def __call__(self, voice: str, text: str, pitch: float = 1.0, stretch: float = 1.0) -> Spoken | None:
        return tone(voice, text, pitch, stretch)
