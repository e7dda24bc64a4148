"""What is to be spoken or scored: from text files, seed-tts-eval lists, and recordings with their texts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from vivavoce.errors import InvalidRequest

AUDIO_SUFFIXES = frozenset({".aif", ".aiff", ".flac", ".mp3", ".oga", ".ogg", ".opus", ".wav"})
_SHOWN = 60


@dataclass(frozen=True)
class Case:
    """One text, with what is known of how it is, or was, spoken."""

    id: str
    text: str
    voice: str | None = None
    """A voice's name or a reference recording's path; None: every voice that is evaluated."""
    prompt_text: str = ""
    """What the reference recording says."""
    audio: Path | None = None
    """A recording of the text that is scored as it is; None: the text is spoken."""
    truth: Path | None = None
    """A person's recording of the same text, for comparison of length."""
    truth_s: float | None = None
    """Its length, where that is all there is."""


def cases_of(sentences: Iterable[str]) -> list[Case]:
    """Cases of plain sentences, numbered from 1."""
    return [Case(f"{number:04d}", sentence) for number, sentence in enumerate(sentences, start=1)]


def read_sentences(path: Path) -> list[Case]:
    """A UTF-8 file with one sentence per line; after a tab, a line may tell the seconds a person takes for it.

    Raises:
        InvalidRequest: the file cannot be read, holds no sentence, or a line has no text or no number of seconds.
    """
    return _read(path, "sentences", _sentence)


def _sentence(fields: list[str], number: int, folder: Path) -> Case:
    if len(fields) > 2:
        raise _BadLineError(f"has {len(fields)} fields; give a sentence, and after a tab its seconds if you know them")
    text = fields[0]
    if not text:
        raise _BadLineError("has no text before the tab; write a sentence")
    return Case(f"{number:04d}", text, truth_s=_seconds(fields[1]) if len(fields) == 2 else None)


def _seconds(field: str) -> float:
    try:
        seconds = float(field)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise _BadLineError(f"has {field!r} for its seconds; give a number above 0")
    return seconds


def read_seed_tts_list(path: Path) -> list[Case]:
    """A list in the form of seed-tts-eval: id|prompt text|prompt recording|text, and maybe |a person's recording.

    Paths are relative to the list's folder.

    Raises:
        InvalidRequest: the file cannot be read or is empty, a line has another form, or a recording is not there.
    """
    cases = _read(path, "list", _seed_tts, separator="|")
    twice = _first_repeated(case.id for case in cases)
    if twice is not None:
        raise InvalidRequest(f"list: {str(path)!r} has the id {twice!r} more than once; give each line its own")
    return cases


def _seed_tts(fields: list[str], _: int, folder: Path) -> Case:
    if len(fields) not in (4, 5):
        raise _BadLineError(
            f"has {len(fields)} fields; write id|prompt text|prompt recording|text, and maybe |a person's recording"
        )
    name, prompt_text, prompt, text, *truth = fields
    for field, value in (("id", name), ("prompt recording", prompt), ("text", text)):
        if not value:
            raise _BadLineError(f"has an empty {field}; fill it in")
    if any(separator in name for separator in "/\\\0"):
        raise _BadLineError(f"has the id {name!r}, which cannot be a file's name; leave slashes out")
    truth_path = _existing(folder, truth[0]) if truth and truth[0] else None
    return Case(name, text, voice=str(_existing(folder, prompt)), prompt_text=prompt_text, truth=truth_path)


def read_audio_table(path: Path) -> list[Case]:
    """Recordings with their texts, one per line: path, tab, text, and maybe a tab and a voice to compare with.

    The voice is a name, or the path of a reference recording; paths are relative to the table's folder.

    Raises:
        InvalidRequest: the file cannot be read or is empty, a line has another form, or a recording is not there.
    """
    return _read(path, "audio", _audio_line)


def _audio_line(fields: list[str], number: int, folder: Path) -> Case:
    if len(fields) not in (2, 3) or not fields[0] or not fields[1]:
        raise _BadLineError("is not of the form recording, tab, text, and maybe a tab and a voice; write it so")
    voice = fields[2] if len(fields) == 3 and fields[2] else None
    if voice is not None and (folder / voice).is_file():
        voice = str(folder / voice)
    return Case(f"{number:04d}", fields[1], voice=voice, audio=_existing(folder, fields[0]))


def with_audio(cases: Sequence[Case], folder: Path) -> list[Case]:
    """The same cases with the recordings in a folder: by id where all are there, else in the order of their names.

    Raises:
        InvalidRequest: the folder has another number of recordings than there are cases.
    """
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in AUDIO_SUFFIXES)
    by_stem = {file.stem: file for file in files}
    if all(case.id in by_stem for case in cases):
        return [replace(case, audio=by_stem[case.id]) for case in cases]
    if len(files) != len(cases):
        raise InvalidRequest(
            f"audio: {str(folder)!r} holds {len(files)} recordings for {len(cases)} sentences; give one for each, or "
            "a table of recording, tab, text"
        )
    return [replace(case, audio=file) for case, file in zip(cases, files, strict=True)]


class _BadLineError(Exception):
    """What is wrong with a line; `_read` adds where."""


_Parser = Callable[[list[str], int, Path], Case]
"""(fields, line number, the file's folder) → case."""


def _read(path: Path, field: str, parse: _Parser, separator: str = "\t") -> list[Case]:
    cases = []
    for number, line in enumerate(_lines(path, field), start=1):
        if not line.strip():
            continue
        try:
            cases.append(parse([part.strip() for part in line.split(separator)], number, path.parent))
        except _BadLineError as error:
            raise InvalidRequest(f"{field}: line {number} of {str(path)!r} {error}") from None
    if not cases:
        raise InvalidRequest(f"{field}: {str(path)!r} holds no lines; write at least one")
    return cases


def _lines(path: Path, field: str) -> list[str]:
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"{field}: {str(path)!r} is not UTF-8 (byte {error.object[error.start]:#04x} at position {error.start}); "
            "save it as UTF-8 text"
        ) from None
    except OSError as error:
        raise InvalidRequest(f"{field}: {str(path)!r} cannot be read ({error.strerror}); check the path") from None


def _existing(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        shown = name if len(name) <= _SHOWN else name[: _SHOWN - 1] + "…"
        raise _BadLineError(f"names {shown!r}, which is no file in {str(folder)!r}; check the path")
    return path


def _first_repeated(names: Iterable[str]) -> str | None:
    seen = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
