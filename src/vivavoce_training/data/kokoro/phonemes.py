"""Texts → the teacher's phoneme ids, with the phone that each id stands for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from vivavoce_training.data.spelling import PHONE_INDEX

MAX_IDS = 400  # Limit of phoneme ids in a line, about 17 s of speech; the teacher takes up to 512.
_PART = 1000  # Texts that a process converts at a time.
SPACE, PAUSE = 254, 255
"""Codes of a space and a punctuation mark in place of a phone. There is silence, or the phone before it goes on."""

_MARKS = frozenset(';:,.!?—…"()“”')
_ALIAS = {"ɐ": "ə", "ᵊ": "ə", "ᵻ": "ɪ", "ɾ": "T", "ɚ": "ɜ", "ɨ": "ɪ", "g": "ɡ", "r": "ɹ", "e": "ɛ", "o": "ɔ"}
"""Phoneme symbol → another symbol with the same or nearly the same sound."""


class Line(NamedTuple):
    """A text with its phoneme ids, 0 at both ends; phones: the phone of each id, `SPACE` or `PAUSE`."""

    text: str
    ids: tuple[int, ...]
    phones: tuple[int, ...]


@cache
def accents(folder: Path) -> dict[str, Callable[[str], Line | None]]:
    """Functions that read a text in American ("a") and British ("b") English; folder: the teacher's files.

    They return None for a text that has a symbol without a phone, or that is too long or empty.
    """
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    reading = import_module("hibari.g2p")  # the package that `fetch_teacher` downloaded
    numbers: dict[str, int] = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))["vocab"]

    def reader(british: bool) -> Callable[[str], Line | None]:
        spoken = reading.G2P(british=british)
        return lambda text: line_of(text, spoken(text), numbers)

    return {"a": reader(False), "b": reader(True)}


def line_of(text: str, symbols: str, numbers: dict[str, int]) -> Line | None:
    """Make the line of a text, or None (see `accents`); symbols: its phonemes; numbers: the id of each symbol.

    A stress mark belongs to the phone after it, a length mark to the phone before it.
    """
    ids, phones, waiting = [0], [PAUSE], 0
    for symbol in symbols:
        if symbol not in numbers:
            continue
        ids.append(numbers[symbol])
        own = _ALIAS.get(symbol, symbol)
        if symbol == " ":
            phones.append(SPACE)
        elif symbol in _MARKS:
            phones.append(PAUSE)
        elif own in PHONE_INDEX:
            phones.append(PHONE_INDEX[own])
        elif symbol in "ˈˌ":  # a stress mark stands before a vowel
            waiting += 1
            phones.append(PAUSE)
        elif symbol in "ːʰʲ̃":
            phones.append(phones[-1])
        else:
            return None
        if waiting and own in PHONE_INDEX:
            phones[-1 - waiting : -1] = [phones[-1]] * waiting
            waiting = 0
    if not 3 <= len(ids) < MAX_IDS or all(phone >= SPACE for phone in phones):
        return None
    return Line(text, (*ids, 0), (*phones, PAUSE))


def lines_of(texts: Iterable[str], folder: Path, british: float, jobs: int = 1) -> Iterator[tuple[str, Line]]:
    """Yield the accent and line of each text that can be read. british: share of texts in British English."""
    owed, wanted = 0.0, []
    for text in texts:
        owed += british
        accent = "b" if owed >= 1 else "a"
        owed -= accent == "b"
        wanted.append((accent, text))
    parts = [wanted[first : first + _PART] for first in range(0, len(wanted), _PART)]
    if jobs == 1:
        for part in parts:
            yield from _read_part(folder, part)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for found in pool.map(partial(_read_part, folder), parts):
            yield from found


def _read_part(folder: Path, part: list[tuple[str, str]]) -> list[tuple[str, Line]]:
    read = accents(folder)
    lines = ((accent, read[accent](text)) for accent, text in part)
    return [(accent, line) for accent, line in lines if line is not None]


def write_lines(path: Path, lines: Iterable[tuple[str, Line]]) -> int:
    """Write each line as a JSON list, and return the number of lines."""
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for accent, line in lines:
            file.write(json.dumps([accent, *line], ensure_ascii=False, separators=(",", ":")) + "\n")
            count += 1
    return count


def read_lines(path: Path) -> dict[str, list[Line]]:
    """Read the lines of each accent, in the order of the file."""
    found: dict[str, list[Line]] = {"a": [], "b": []}
    with path.open(encoding="utf-8") as file:
        for row in map(json.loads, file):
            found[row[0]].append(Line(row[1], tuple(row[2]), tuple(row[3])))
    return found
