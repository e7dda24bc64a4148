"""The HTTP routes of jobs: make a job, list all jobs, show a job's progress, send its audio, remove it."""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse

from vivavoce.errors import InvalidRequest, VoiceNotFound
from vivavoce.frontend.audio.encoders import wav_header
from vivavoce.frontend.audio.tag import AudioTag
from vivavoce.server.http.app_state import AppState, KnownPrincipal, refuse_foreign_page
from vivavoce.server.http.bodies import (
    MAX_FORM_FIELDS,
    MULTIPART,
    URLENCODED,
    AnyText,
    Form,
    Number,
    Whole,
    check_query,
    json_schema,
    known_names,
    media_type,
    parse_json,
    read_form,
    read_json,
    validated,
    without_ignored,
)
from vivavoce.server.http.errors import BODY_FAILURES, NOT_FOUND, error_response, failures
from vivavoce.server.http.speech_fields import VoiceName
from vivavoce.server.rate_limiter import Principal
from vivavoce_books.book import SUFFIXES, Choice
from vivavoce_books.jobs.service import Job, Jobs
from vivavoce_books.jobs.values import BOOK, LEDGER, UNFINISHED, Heard, JobOptions, JobRecord, Status
from vivavoce_books.jobs.webhook import check_webhook
from vivavoce_books.ledger import samples_in

PATH = "/v1/audio/jobs"
BLOCK = 1 << 16
"""Maximum number of bytes that are sent at once."""
MEDIA = {"m4b": "audio/mp4", "m4a": "audio/mp4", "mp3": "audio/mpeg", "opus": "audio/ogg"}
_UNCACHED = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class JobFields(BaseModel):
    """A book or a text, and the way to speak it; `vivavoce read` has the same options."""

    model_config = ConfigDict(extra="forbid")
    input: AnyText = Field("", description="The text. In a form, a file may be sent instead.")
    title: str = Field("", max_length=500, description="Title of the audio. Default: the book's own.")
    voice: VoiceName | None = Field(None, description="The narrator's voice. Default: the model's first.")
    cast: dict[str, VoiceName] = Field(
        {}, max_length=100, description="Names and their voices; a line such as `anna: …` is spoken by anna's voice."
    )
    response_format: Literal["m4b", "m4a", "mp3", "opus"] = Field("m4b", description="Format of the finished file.")
    chapters: str | None = Field(None, max_length=2_000, description="Chapters, such as 1-3,5. Default: all.")
    footnotes: Choice = Field("skip", description="Footnotes: skip or speak.")
    tables: Choice = Field("skip", description="Tables: skip or speak.")
    front_matter: Choice = Field("skip", description="Title page, contents and the like: skip or speak.")
    code: Choice = Field("skip", description="Listings of programs: skip or speak.")
    speed: Number = Field(1.0, ge=0.5, le=2.0, description="Speed of the speech; the pitch stays.")
    seed: Whole = Field(0, ge=0, le=2**53, description="The same seed gives the same audio.")
    pause_sentence: Number = Field(0.25, ge=0, le=60, description="Seconds of silence between sentences.")
    pause_paragraph: Number = Field(0.6, ge=0, le=60, description="Seconds of silence between paragraphs.")
    pause_heading: Number = Field(1.5, ge=0, le=60, description="Seconds of silence at headings and chapter ends.")
    pause_scene: Number = Field(2.0, ge=0, le=60, description="Seconds of silence where the scene changes.")
    loudness: Number | None = Field(
        None,
        ge=-40,
        le=-5,
        description="Loudness of each chapter of the finished file in LUFS (EBU R128), such as -18.",
    )
    webhook: str | None = Field(None, description="URL to which the ended job is sent by POST, if allowed.")
    list: bool = Field(False, description="Only answer with the chapters of the book; nothing is kept.")

    def options(self, file: str) -> JobOptions:
        return JobOptions(file=file, **self.model_dump(exclude={"input", "webhook", "list"}))


class TextJobFields(JobFields):
    """A job with its text in JSON."""

    input: AnyText = Field(min_length=1, description="The text.")


class JobChapter(BaseModel):
    """A chapter of a book."""

    number: int
    title: str
    characters: int = Field(description="Characters that are spoken.")
    estimated_seconds: float = Field(description="Estimated length.")
    start_s: float | None = Field(None, description="Start in the audio, once the chapter's first part is spoken.")
    end_s: float | None = Field(None, description="End in the audio, once the whole chapter is spoken.")


class JobSegment(BaseModel):
    """A sentence, or a few short sentences, in the audio."""

    chapter: int
    start_character: int
    end_character: int
    start_s: float
    end_s: float


class JobError(BaseModel):
    """The reason why a job has failed."""

    code: str
    message: str


class JobEntry(BaseModel):
    """A job."""

    id: str
    object: Literal["audio.job"] = "audio.job"
    status: Status
    created: int
    ended: int | None
    title: str
    author: str
    response_format: str
    characters: int = Field(description="Characters of the chosen chapters.")
    characters_spoken: int
    chapter: int | None = Field(description="Number of the chapter that is spoken now.")
    audio_seconds: float = Field(description="Length of the audio that can be downloaded now.")
    seconds_left: float | None = Field(description="Estimated seconds until the whole job is spoken.")
    chapters: list[JobChapter]
    segments: list[JobSegment] | None = Field(None, description="Segments spoken so far, with ?times=true.")
    notes: list[str] = Field(description="At the end: the length, the result of the check for lost text, and notes.")
    error: JobError | None


class JobList(BaseModel):
    """The jobs of the caller's key, the newest first."""

    object: Literal["list"] = "list"
    data: list[JobEntry]


class BookEntry(BaseModel):
    """The chapters of a book, from which a job may choose."""

    object: Literal["audio.book"] = "audio.book"
    title: str
    author: str
    chapters: list[JobChapter]


class JobDeleted(BaseModel):
    """A removed job."""

    id: str
    object: Literal["audio.job.deleted"] = "audio.job.deleted"
    deleted: bool = True


def router(state: AppState, jobs: Jobs) -> APIRouter:
    routes = APIRouter()
    dispatcher, server = state.dispatcher, state.settings.server
    answers: dict[int | str, dict[str, Any]] = {
        200: {"model": BookEntry, "description": "With `list`: the chapters of the book."}
    }

    @routes.post(
        PATH,
        status_code=201,
        response_model=JobEntry,
        summary="Speak a book or a long text in the background",
        responses={**BODY_FAILURES, **NOT_FOUND, **answers},
        openapi_extra={"requestBody": _request_body()},
    )
    async def add(request: Request, principal: KnownPrincipal) -> JobEntry | Response:
        refuse_foreign_page(request.headers, request.scope["scheme"], server.cors_origins, "make jobs")
        async with dispatcher.permitted(principal):
            fields, book, file, given = await _read(request)
            if fields.webhook is not None:
                check_webhook(fields.webhook, jobs.settings.webhooks)
            options = fields.options(file)
            if fields.list:
                with _named(file, given):
                    found = await jobs.plan(book, options)
                entry = BookEntry(title=found["title"], author=found["author"], chapters=_chapters(found["chapters"]))
                return JSONResponse(entry.model_dump(), headers=_UNCACHED)
            await _check_voices(state, principal, fields)
            with _named(file, given):
                job = await jobs.add(principal, book, options, fields.webhook)
        return entry_of(job)

    @routes.get(PATH, summary="The jobs of the key", responses=failures(401, 429))
    async def list_(principal: KnownPrincipal) -> JobList:
        return JobList(data=[entry_of(job) for job in jobs.of(principal)])

    @routes.get(f"{PATH}/{{identity}}", summary="The state and progress of a job", responses=failures(401, 404))
    async def one(identity: str, principal: KnownPrincipal, times: bool = False) -> JobEntry:
        job = jobs.get(identity, principal)
        return entry_of(job).model_copy(update={"segments": _segments(job, await job.times())} if times else {})

    @routes.get(
        f"{PATH}/{{identity}}/audio",
        response_class=Response,
        summary="The audio of a job: the finished file, or a WAV file of the audio so far",
        responses={**failures(400, 401, 404), 200: _AUDIO, 206: {**_AUDIO, "description": "The requested range."}},
    )
    async def audio(
        request: Request,
        identity: str,
        principal: KnownPrincipal,
        form: Annotated[Literal["wav"] | None, Query(alias="format")] = None,
    ) -> Response:
        job = jobs.get(identity, principal)
        if form is None and job.record.status == "done":
            given = _range_given(request)
            if not given:
                request.scope["headers"] = [one for one in request.scope["headers"] if one[0] != b"range"]
            elif "if-range" not in request.headers and (
                refused := _range_refused(given, job.audio.stat().st_size, _UNCACHED)
            ):
                return refused
            name, kind = f"{job.record.title or identity}.{job.record.response_format}", job.record.response_format
            return FileResponse(job.audio, media_type=MEDIA[kind], filename=name, headers=_UNCACHED)
        return _so_far(request, job, tuple(await job.times()))

    @routes.delete(f"{PATH}/{{identity}}", summary="End and remove a job", responses=failures(401, 404))
    async def remove(identity: str, principal: KnownPrincipal) -> JobDeleted:
        await jobs.remove(jobs.get(identity, principal))
        return JobDeleted(id=identity)

    return routes


_AUDIO = {
    "description": "Audio. Before the job is done, or with format=wav, it is a WAV file of the audio made so far; "
    "a later request for a range continues it.",
    "content": {name: {"schema": {"type": "string", "format": "binary"}} for name in ("audio/wav", *MEDIA.values())},
}


def _request_body() -> dict[str, Any]:
    form = json_schema(JobFields)
    form["properties"]["file"] = {
        "type": "string",
        "format": "binary",
        "description": f"The book: {', '.join(SUFFIXES)}.",
    }
    text = {"schema": json_schema(TextJobFields)}
    content = {"application/json": text, URLENCODED: text, MULTIPART: {"schema": form}}
    return {"required": True, "content": content}


@contextmanager
def _named(file: str, given: str) -> Iterator[None]:
    """In errors, name a book as the client does, and not by the file in which the server keeps it."""
    try:
        yield
    except InvalidRequest as error:
        raise type(error)(str(error).replace(repr(file), given)) from None


async def _read(request: Request) -> tuple[JobFields, bytes, str, str]:
    """Read a request. Return its fields, the book's content, and the server's and the client's name for the file."""
    check_query(request, known_names(TextJobFields))
    media, form = media_type(request), Form()
    fields: JobFields
    if media in (MULTIPART, URLENCODED):
        form, model = await read_form(request, MAX_FORM_FIELDS), JobFields if media == MULTIPART else TextJobFields
        values = {name: parse_json(text.encode(), name) if name == "cast" else text for name, text in form.texts}
        if model is JobFields and (unnamed := values.pop("file", None)) is not None:  # a part without a file name
            form.files.append(("file", unnamed.encode()))
        fields = validated(model, without_ignored(request, model, values))
    else:
        fields = await read_json(request, TextJobFields)
    for name, content in form.files:
        if name != "file":
            raise InvalidRequest(f"{name[:40]!r}: this field does not take a file; send the book as file")
        if fields.input:
            raise InvalidRequest("input: a file was sent as well; send only one of them")
        given = form.names.get(name, "")
        suffix = Path(given).suffix.lower()  # tells HTML, Markdown and text apart; an EPUB is recognised by its content
        kept = f"{BOOK}{suffix if suffix in SUFFIXES else '.txt'}"
        return fields, content, kept, repr(given[:80]) if given else "file"
    if not fields.input:
        raise InvalidRequest("file: is missing; send a book as file, or a text as input")
    return fields, fields.input.encode("utf-8", "replace"), f"{BOOK}.txt", "input"


async def _check_voices(state: AppState, principal: Principal, fields: JobFields) -> None:
    """Raise VoiceNotFound if a voice is unknown, unless the settings give unknown voices the default voice."""
    if state.settings.voices.unknown == "default":
        return
    wanted = {"voice": fields.voice, **{f"cast.{name}": voice for name, voice in fields.cast.items()}}
    if not any(wanted.values()):
        return
    known = {voice.name for voice in await state.dispatcher.backend.voices(principal.owner)}
    for field, voice in wanted.items():
        if voice is not None and voice not in known:
            some = ", ".join(sorted(known)[:10])
            raise VoiceNotFound(f"{field}: {voice[:80]!r} is not registered (known: {some})")


def entry_of(job: Job) -> JobEntry:
    record, left = job.record, job.seconds_left()
    current = int([*record.starts][-1]) if record.starts else record.chapters[0].number
    return JobEntry(
        id=record.id,
        status=record.status,
        created=int(record.created),
        ended=None if record.ended is None else int(record.ended),
        title=record.title,
        author=record.author,
        response_format=record.response_format,
        characters=record.characters,
        characters_spoken=record.spoken,
        chapter=current if record.status in UNFINISHED else None,
        audio_seconds=round(record.samples / record.sample_rate, 6) if record.sample_rate else 0.0,
        seconds_left=None if left is None else round(left, 1),
        chapters=_chapters(record.chapters, record),
        notes=record.notes,
        error=None if record.error is None else JobError(code=record.error_code or "", message=record.error),
    )


def _chapters(parts: Any, record: JobRecord | None = None) -> list[JobChapter]:
    """Return the chapters of an answer. parts: values of each `ChapterPart`; record: has the spoken chapters' times."""
    starts = {int(number): at / record.sample_rate for number, at in record.starts.items()} if record else {}
    ends = dict(zip(starts, [*starts.values()][1:], strict=False))
    if record and starts and record.status in ("writing", "done"):
        ends[[*starts][-1]] = record.samples / record.sample_rate
    return [
        JobChapter(
            number=number,
            title=title,
            characters=characters,
            estimated_seconds=round(seconds, 1),
            start_s=starts.get(number),
            end_s=ends.get(number),
        )
        for number, title, characters, seconds in parts
    ]


def _segments(job: Job, heard: Sequence[Heard]) -> list[JobSegment]:
    rate = job.record.sample_rate
    return [
        JobSegment(
            chapter=one.chapter + 1,
            start_character=one.start,
            end_character=one.end,
            start_s=one.at / rate,
            end_s=(one.at + one.frames) / rate,
        )
        for one in heard
    ]


def _so_far(request: Request, job: Job, heard: tuple[Heard, ...]) -> Response:
    """Answer with a WAV file, or the requested range of it; the file grows at its end while the job runs."""
    record = job.record
    if not heard:
        raise InvalidRequest(f"audio: the job is {record.status} and has no audio yet; ask again later")
    made = datetime.fromtimestamp(record.created, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    header = wav_header(record.sample_rate, None, AudioTag(record.model, made))
    size = len(header) + 2 * heard[-1].after
    headers = {**_UNCACHED, "accept-ranges": "bytes", "etag": f'"{record.id}"', "x-job-status": record.status}
    if refused := _range_refused(given := _range_given(request), size, headers):
        return refused
    begin, end = _range(given, size)
    headers["content-length"] = str(end - begin)
    status = 200 if (begin, end) == (0, size) else 206
    if status == 206:
        headers["content-range"] = f"bytes {begin}-{end - 1}/{size}"
    if request.state.is_head:
        return Response(None, status, headers, "audio/wav")
    return StreamingResponse(_bytes(job, heard, header, begin, end), status, headers, "audio/wav")


def _range_given(request: Request) -> str:
    """Return the requested range, or ""; HTTP demands that a range in another unit than bytes is ignored."""
    given = request.headers.get("range", "")
    return given if given.partition("=")[0].strip().lower() in ("", "bytes") else ""


def _range_refused(given: str, size: int, headers: dict[str, str]) -> Response | None:
    """Return the answer to a range after the audio's end, else None. Several ranges pass; InvalidRequest: no range."""
    if not given:
        return None
    if not re.fullmatch(r"(?i:bytes)\s*=(\s*(\d{1,15}-\d{0,15}|-\d{1,15})\s*(,|\Z))+", given):
        raise InvalidRequest(f"range: {given[:40]!r} is not a range; send one such as bytes=0-99, or leave it out")
    begin, end = _range(given, size)
    if begin < end:
        return None
    message = f"range: begins after the {size} bytes of audio so far; ask again later"
    return error_response(416, message, "invalid_range", {**headers, "content-range": f"bytes */{size}"})


def _range(given: str, size: int) -> tuple[int, int]:
    """Return the range's first byte and end (exclusive); a list of ranges, or no range, gives the whole file."""
    found = re.fullmatch(r"(?i:bytes)\s*=\s*(\d*)-(\d*)\s*", given)
    first, last = found.groups() if found else ("", "")
    if first:
        return int(first), min(size, int(last) + 1) if last else size
    return (max(0, size - int(last)), size) if last else (0, size)


async def _bytes(job: Job, heard: tuple[Heard, ...], header: bytes, begin: int, end: int) -> AsyncIterator[bytes]:
    """Yield bytes `begin` … `end` − 1 of the WAV file; only one segment is in memory at a time."""
    if begin < len(header):
        yield header[begin:end]
    at, last = max(0, begin - len(header)), end - len(header)
    index = max(0, bisect_right(heard, at // 2, key=lambda one: one.at) - 1)
    place, samples = -1, np.zeros(0, np.int16)
    for one in heard[index:]:
        if 2 * one.at >= last:
            return
        if one.place != place:
            place, samples = one.place, await asyncio.to_thread(samples_in, job.folder / LEDGER, one.place)
        silence = np.zeros(one.pause, np.int16)
        piece = np.concatenate((samples[one.offset : one.offset + one.frames], silence)).astype("<i2").tobytes()
        piece = piece[max(0, at - 2 * one.at) : last - 2 * one.at]
        for start in range(0, len(piece), BLOCK):
            yield piece[start : start + BLOCK]
