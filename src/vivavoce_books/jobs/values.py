"""Data types of a job: its options and its progress, which are exchanged by processes and stored as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from vivavoce.errors import InvalidRequest, MissingDependency, StageFailed, TooLarge, VivavoceError
from vivavoce.files import replace_file
from vivavoce_books.book import BookOptions, open_book
from vivavoce_books.cast import cast_of
from vivavoce_books.plan import ChapterPart, Pauses, Plan, Segment, parse_chapters, plan_book

Status = Literal["queued", "running", "writing", "done", "failed"]
UNFINISHED = ("queued", "running", "writing")
BOOK, OPTIONS, RECORD, LEDGER, TIMES = "book", "options.json", "job.json", "ledger", "times.json"
"""Names of the files in a job's folder; the name of the book also has a suffix."""


@dataclass(frozen=True, kw_only=True)
class JobOptions(BookOptions):
    """Options of a job, as of `vivavoce read`. cast: name → voice; file: the book's file in the job's folder."""

    file: str
    title: str = ""
    voice: str | None = None
    cast: dict[str, str] = field(default_factory=dict)
    response_format: str = "m4b"
    chapters: str | None = None
    speed: float = 1.0
    seed: int = 0
    pause_sentence: float = 0.25
    pause_paragraph: float = 0.6
    pause_heading: float = 1.5
    pause_scene: float = 2.0
    loudness: float | None = None

    def pauses(self) -> Pauses:
        return Pauses(self.pause_sentence, self.pause_paragraph, self.pause_heading, self.pause_scene)


class Heard(NamedTuple):
    """Audio of a piece of a segment. place: index of the segment in the book; offset: the piece's first sample in it.

    chapter: counted from 0. start, end: characters of the chapter. at: the piece's first sample in the whole audio.
    frames: samples of speech. pause: samples of silence after the speech.
    """

    place: int
    chapter: int
    start: int
    end: int
    at: int
    offset: int
    frames: int
    pause: int

    @property
    def after(self) -> int:
        return self.at + self.frames + self.pause


@dataclass
class JobRecord:
    """The state of a job, which is stored in the job's folder.

    key: name of the API key. created, ended: seconds since 1970. characters, spoken: numbers of characters to speak,
    and spoken so far. sample_rate: 0 until work begins. samples: length of the audio up to its first gap. starts:
    number of a chapter, from 1 → its first sample in that audio.
    """

    id: str
    key: str
    created: float
    response_format: str
    status: Status = "queued"
    title: str = ""
    author: str = ""
    characters: int = 0
    spoken: int = 0
    chapters: list[ChapterPart] = field(default_factory=list)
    sample_rate: int = 0
    samples: int = 0
    starts: dict[str, int] = field(default_factory=dict)
    model: str = ""
    webhook: str | None = None
    ended: float | None = None
    error: str | None = None
    error_code: str | None = None
    notes: list[str] = field(default_factory=list)

    def save(self, folder: Path) -> None:
        replace_file(folder / RECORD, json.dumps(asdict(self), ensure_ascii=False), private=True)


def read_record(folder: Path) -> JobRecord:
    """Read the state of a job. ValueError, OSError: the folder has no job, or a damaged one."""
    values = json.loads((folder / RECORD).read_bytes())
    try:
        return JobRecord(**{**values, "chapters": [ChapterPart(*one) for one in values["chapters"]]})
    except (TypeError, KeyError) as error:
        raise ValueError(str(error)) from None


def save_times(folder: Path, heard: list[Heard]) -> None:
    replace_file(folder / TIMES, json.dumps(heard))


def read_times(folder: Path) -> list[Heard]:
    path = folder / TIMES
    return [Heard(*one) for one in json.loads(path.read_bytes())] if path.exists() else []


def read_plan(folder: Path) -> tuple[JobOptions, Plan, list[int], list[Segment]]:
    """Read the options, plan, chapters and segments of a job. InvalidRequest: the options do not fit the book."""
    options = JobOptions(**json.loads((folder / OPTIONS).read_bytes()))
    book = open_book(folder / options.file, options)
    book = replace(book, title=options.title or book.title or "Untitled")
    plan = plan_book(book, cast_of(options.cast, options.voice), options.pauses())
    chosen = parse_chapters(options.chapters, len(book.chapters))
    wanted = [one for one in plan.segments if one.chapter in set(chosen)]
    if not wanted:
        if options.chapters is None:
            raise InvalidRequest(f"book: {options.file!r} has no text to speak; write at least one word")
        raise InvalidRequest("chapters: the chosen chapters have no text to speak; choose others")
    return options, plan, chosen, wanted


def error_of(told: dict[str, Any]) -> VivavoceError:
    """Make the error that another process reports. told: has the error's text, code and HTTP status."""
    kinds = {kind.code: kind for kind in (MissingDependency, TooLarge)}
    return kinds.get(told["code"], InvalidRequest if told["status"] < 500 else StageFailed)(told["error"])
