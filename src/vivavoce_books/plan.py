"""Divides a book into segments, which are spoken one by one, and checks that no text is lost."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import regex

from vivavoce.errors import InvalidRequest
from vivavoce.frontend.text.sentence_stream import sentence_stream
from vivavoce_books.book import Block, BlockKind, Book, Chapter
from vivavoce_books.cast import NARRATOR, Cast, Span, stretches
from vivavoce_textnorm import is_speakable

MAX_CHARS = 400
"""Maximum characters of a segment of several sentences; a single sentence may be longer."""
_JOIN = "\n\n"
_FEED = 1_000
_ENDS = regex.compile(r"(?:[\p{Sentence_Terminal}…:;][\"'*_\p{Pe}\p{Pf}]*\s*|\n\s*)\Z")
_DENSE = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]")
_SECONDS_EACH = 1 / 15
_SECONDS_DENSE = 1 / 4.5
"""Estimated seconds of speech: for most characters, and for a Chinese, Japanese or Korean character."""


@dataclass(frozen=True)
class Pauses:
    """Seconds of silence after a sentence, between paragraphs, around headings, and where the scene changes."""

    sentence_s: float = 0.25
    paragraph_s: float = 0.6
    heading_s: float = 1.5
    scene_s: float = 2.0

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not 0 <= value <= 60:
                raise InvalidRequest(
                    f"pause-{one.name.removesuffix('_s')}: {value:g} s is outside of 0 … 60; choose one"
                )


@dataclass(frozen=True)
class Segment:
    """Characters start … end − 1 of a chapter, spoken by one voice in one request.

    index: number in the whole book, from 0, even if only some chapters are chosen. opens: a sentence begins at the
    segment's start. closes: a sentence ends at its end. block: index of its block in the chapter.
    """

    index: int
    chapter: int
    start: int
    end: int
    text: str
    role: str
    language: str | None
    block: int
    opens: bool = True
    closes: bool = True
    pause_after_s: float = 0.0


@dataclass(frozen=True)
class Plan:
    """A book divided into segments. texts: of each chapter; left_out: the spans of each text that are not spoken."""

    book: Book
    pauses: Pauses
    texts: tuple[str, ...]
    segments: tuple[Segment, ...]
    left_out: tuple[tuple[Span, ...], ...]

    def of(self, chapter: int) -> list[Segment]:
        return [one for one in self.segments if one.chapter == chapter]


def plan_book(book: Book, cast: Cast, pauses: Pauses = Pauses()) -> Plan:
    """Divide a book into segments. InvalidRequest: a tag has a name that is not in the cast."""
    texts, segments, left_out = [], list[Segment](), []
    for number, chapter in enumerate(book.chapters):
        texts.append(_JOIN.join(block.text for block in chapter.blocks))
        skipped: list[Span] = []
        found = [replace(one, chapter=number) for one in _segments(chapter, book.language, cast, skipped)]
        left_out.append(tuple(skipped))
        for one in _paused(chapter, found, pauses):
            segments.append(replace(one, index=len(segments)))
    return Plan(book, pauses, tuple(texts), tuple(segments), tuple(left_out))


def _segments(chapter: Chapter, language: str | None, cast: Cast, skipped: list[Span]) -> Iterator[Segment]:
    at, role = 0, NARRATOR
    for place, block in enumerate(chapter.blocks):
        if block.kind is BlockKind.HEADING:
            role = NARRATOR
        spoken, signs, role = stretches(block.text, cast, role)
        skipped += [Span(at + one.start, at + one.end, reason=one.reason) for one in signs]
        opens = True
        for start, end, speaker in _groups(block, spoken, at, skipped):
            text = block.text[start:end]
            closes = ends_sentence(text) or not is_speakable(block.text[end:]) or "\n" in block.text[end : end + 1]
            yield Segment(-1, -1, at + start, at + end, text, speaker, block.language or language, place, opens, closes)
            opens = closes
        at += len(block.text) + len(_JOIN)


def _groups(block: Block, spoken: Iterable[Span], at: int, skipped: list[Span]) -> Iterator[tuple[int, int, str]]:
    """Group each span's sentences up to `MAX_CHARS` characters: start, end, role. Skip groups without words."""
    for stretch in spoken:
        text, groups = block.text[stretch.start : stretch.end], list[tuple[int, int]]()
        pieces = (text[begin : begin + _FEED] for begin in range(0, len(text), _FEED))
        for one in sentence_stream(pieces):
            if groups and (one.end - groups[-1][0] <= MAX_CHARS or not is_speakable(one.text)):
                groups[-1] = (groups[-1][0], one.end)
            else:
                groups.append((one.start, one.end))
        for start, end in ((stretch.start + start, stretch.start + end) for start, end in groups):
            if is_speakable(block.text[start:end]):
                yield start, end, stretch.role
            else:
                skipped.append(Span(at + start, at + end, reason="no words"))


def _paused(chapter: Chapter, segments: list[Segment], pauses: Pauses) -> Iterator[Segment]:
    for one, following in pairwise([*segments, None]):
        assert one is not None
        kinds = {block.kind for block in chapter.blocks[one.block : following.block + 1 if following else None]}
        if following and following.block == one.block:
            pause_s = pauses.sentence_s if one.closes else 0.0
        elif BlockKind.SCENE_BREAK in kinds and following:
            pause_s = pauses.scene_s
        else:
            pause_s = pauses.heading_s if BlockKind.HEADING in kinds or not following else pauses.paragraph_s
        yield replace(one, pause_after_s=pause_s)


def ends_sentence(text: str) -> bool:
    return _ENDS.search(text) is not None


def estimate_s(text: str) -> float:
    """Estimate the seconds of a text's speech, without pauses, from the number of its characters."""
    dense = len(_DENSE.findall(text))
    return _SECONDS_DENSE * dense + _SECONDS_EACH * (len(text) - dense)


class ChapterPart(NamedTuple):
    """A chapter to speak. number: counted from 1; seconds: estimated length of the chapter's audio."""

    number: int
    title: str
    characters: int
    seconds: float


def parts_of(plan: Plan, chosen: Iterable[int]) -> list[ChapterPart]:
    """Return the chapters with these indices, which are counted from 0."""
    parts = []
    for one in chosen:
        segments = plan.of(one)
        characters = sum(len(segment.text) for segment in segments)
        seconds = sum(estimate_s(segment.text) + segment.pause_after_s for segment in segments)
        parts.append(ChapterPart(one + 1, plan.book.chapters[one].title, characters, seconds))
    return parts


def parse_chapters(given: str | None, count: int) -> list[int]:
    """Parse "1-3,5" to sorted indices, from 0; None: all. InvalidRequest: another form, or a chapter does not exist."""
    if given is None:
        return list(range(count))
    found = set[int]()
    for part in given.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise InvalidRequest(f"chapters: {part!r} is neither a number nor a range; write them as in 1-3,5")
        numbers = range(int(first), int(last or first) + 1)
        if not numbers or numbers[0] < 1 or numbers[-1] > count:
            raise InvalidRequest(f"chapters: {part!r} is outside of 1 … {count}; the list of chapters shows them")
        found.update(one - 1 for one in numbers)
    return sorted(found)


def fingerprints_of(plan: Plan) -> dict[str, str]:
    """Return the fingerprints of the text and of its division among the cast, by their names in the ledger."""
    segments = "\0".join(f"{one.role} {one.chapter} {one.start} {one.language} {one.text}" for one in plan.segments)
    return {
        "text of the book": hashlib.sha256("\0".join(plan.texts).encode()).hexdigest(),
        "division of the text among the cast": hashlib.sha256(segments.encode()).hexdigest(),
    }


@dataclass(frozen=True)
class Check:
    """Numbers of characters in the chosen chapters, without white space: spoken once, left out on purpose, lost, and
    spoken several times (doubled). not_read: reason → number of characters that `open_book` left out.
    """

    spoken: int
    left_out: int
    lost: int
    doubled: int
    not_read: Mapping[str, int]

    @property
    def whole(self) -> bool:
        return not (self.lost or self.doubled)


def check_spoken(plan: Plan, heard: Mapping[int, Iterable[tuple[int, int]]]) -> Check:
    """Compare texts and audio. heard: chapter → ranges of characters that have audio."""
    counts, not_read = np.zeros(4, int), dict[str, int]()
    for chapter, ranges in heard.items():
        text = plan.texts[chapter]
        words = np.array([not one.isspace() for one in text], bool)
        spoken, skipped = np.zeros(len(text), int), np.zeros(len(text), int)
        for start, end in ranges:
            spoken[start:end] += 1
        for span in plan.left_out[chapter]:
            skipped[span.start : span.end] += 1
        both = spoken + skipped
        found = ((spoken == 1) & (both == 1), skipped > 0, both == 0, both > 1)
        counts += [np.sum(one & words) for one in found]
        for part in plan.book.chapters[chapter].left_out:
            not_read[part.reason] = not_read.get(part.reason, 0) + sum(not char.isspace() for char in part.text)
    right, left_out, lost, doubled = map(int, counts)
    return Check(right, left_out, lost, doubled, not_read)
