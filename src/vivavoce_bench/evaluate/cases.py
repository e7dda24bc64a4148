"""Reads sentences to speak or score: text files, seed-tts-eval lists, and recordings with their texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from vivavoce.errors import InvalidRequest
from vivavoce_bench.measure import read_records
from vivavoce_bench.texts import EVALUATION_SENTENCES

SENTENCES = EVALUATION_SENTENCES
_AUDIO_SUFFIXES = frozenset({".aif", ".aiff", ".flac", ".mp3", ".oga", ".ogg", ".opus", ".wav"})


@dataclass(frozen=True)
class Case:
    """A text with its voice and recordings."""

    id: str
    text: str
    voice: str | None = None
    """Name of a voice, or path of a reference recording. None: all evaluated voices speak the text."""
    prompt_text: str = ""
    audio: Path | None = None
    """The recording to score; None if the model speaks the text."""
    truth: Path | None = None
    truth_s: float | None = None
    """Length in seconds of a person's recording (`truth`), if only its length is known."""


def cases_of(sentences: Iterable[str]) -> list[Case]:
    return [Case(f"{number:04d}", sentence) for number, sentence in enumerate(sentences, start=1)]


def read_sentences(path: Path) -> list[Case]:
    """Read a UTF-8 file with one sentence per line. A tab and the seconds of a person's reading may follow it."""

    def parse(line: str, number: int) -> Case:
        fields = _fields(line, "\t")
        if len(fields) > 2:
            raise ValueError(f"has {len(fields)} fields; give a sentence, and after a tab its seconds if you know them")
        if not fields[0]:
            raise ValueError("has no text before the tab; write a sentence")
        seconds = None
        if len(fields) == 2:
            with suppress(ValueError):
                seconds = float(fields[1])
            if seconds is None or not 0 < seconds < float("inf"):
                raise ValueError(f"has {fields[1]!r} after the tab; give the seconds, a number above 0")
        return Case(f"{number:04d}", fields[0], truth_s=seconds)

    return read_records(path, "sentences", parse)


def read_seed_tts_list(path: Path) -> list[Case]:
    """Read a seed-tts-eval list, with relative paths: id|prompt text|prompt recording|text[|a person's recording]."""

    def parse(line: str, _: int) -> Case:
        fields = _fields(line, "|")
        if len(fields) not in (4, 5):
            raise ValueError(
                f"has {len(fields)} fields; write id|prompt text|prompt recording|text, and maybe |a person's recording"
            )
        name, prompt_text, prompt, text, *truth = fields
        for field, value in (("id", name), ("prompt recording", prompt), ("text", text)):
            if not value:
                raise ValueError(f"has an empty {field}; fill it in")
        if any(separator in name for separator in "/\\\0"):
            raise ValueError(f"has the id {name!r}, which cannot be a file's name; leave slashes out")
        person = _existing(path.parent, truth[0]) if truth and truth[0] else None
        return Case(name, text, str(_existing(path.parent, prompt)), prompt_text, truth=person)

    cases = read_records(path, "list", parse)
    for name, count in Counter(case.id for case in cases).items():
        if count > 1:
            raise InvalidRequest(f"list: {str(path)!r} has the id {name!r} more than once; give each line its own")
    return cases


def read_audio_table(path: Path) -> list[Case]:
    """Read lines with a recording's relative path, a tab and the spoken text. A tab and a voice may follow."""

    def parse(line: str, number: int) -> Case:
        fields = _fields(line, "\t")
        if len(fields) not in (2, 3) or not fields[0] or not fields[1]:
            raise ValueError("is not of the form recording, tab, text, and maybe a tab and a voice; write that form")
        audio, text, voice = [*fields, ""][:3]
        if voice and (path.parent / voice).is_file():
            voice = str(path.parent / voice)
        return Case(f"{number:04d}", text, voice=voice or None, audio=_existing(path.parent, audio))

    return read_records(path, "audio", parse)


def with_audio(cases: Sequence[Case], folder: Path) -> list[Case]:
    """Add the recordings in a folder to the cases: by id if each id has a file, else in the order of file names."""
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in _AUDIO_SUFFIXES)
    by_stem = {file.stem: file for file in files}
    if all(case.id in by_stem for case in cases):
        files = [by_stem[case.id] for case in cases]
    if len(files) != len(cases):
        raise InvalidRequest(
            f"audio: {str(folder)!r} holds {len(files)} recordings for {len(cases)} sentences; give one for each, or "
            "a table of recording, tab, text"
        )
    return [replace(case, audio=file) for case, file in zip(cases, files, strict=True)]


def _fields(line: str, separator: str) -> list[str]:
    return [part.strip() for part in line.split(separator)]


def _existing(folder: Path, name: str) -> Path:
    path = folder / name
    if not path.is_file():
        shown = name if len(name) <= 60 else name[:59] + "…"
        raise ValueError(f"names {shown!r}, which is not a file in {str(folder)!r}; check the path")
    return path
