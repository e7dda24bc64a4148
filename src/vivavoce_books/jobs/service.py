"""The jobs of a server: each job has its own folder and process. Live requests are spoken before all jobs."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fastapi import APIRouter

from vivavoce.errors import InvalidRequest, Overloaded, RequestNotFound, StageFailed, TooLarge, VivavoceError
from vivavoce.files import locked, replace_file
from vivavoce.server.dispatcher import RequestDispatcher
from vivavoce.server.http.app_state import AppState
from vivavoce.server.keys import KeyRing
from vivavoce.server.rate_limiter import Principal
from vivavoce.server.settings import JobsSection
from vivavoce_books.jobs.conversation import Message, Process, answer, converse
from vivavoce_books.jobs.values import (
    OPTIONS,
    RECORD,
    UNFINISHED,
    Heard,
    JobOptions,
    JobRecord,
    read_record,
    read_times,
    save_times,
)
from vivavoce_books.jobs.webhook import deliver
from vivavoce_books.plan import ChapterPart

log = logging.getLogger(__name__)

PLANS_AT_ONCE, PLAN_S = 2, 120.0
"""Number of books that are read at once to list their chapters, and the time limit for each in seconds."""
BYTES_PER_CHARACTER = 2_500
"""Maximum bytes of ledger and audio for a character of text, with which the disk space of a job is estimated."""
TRIES = 3
"""Maximum number of times that a job's process is started, if it ends without a result each time."""
LOOK_S, CLEAN_S = 1.0, 3_600.0


@dataclass(eq=False)
class Job:
    """A job. heard: audio without gaps; began: time of this run's start; spoken_before: characters of earlier runs."""

    record: JobRecord
    folder: Path
    heard: list[Heard] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    began: float = 0.0
    spoken_before: int = 0

    @property
    def audio(self) -> Path:
        return self.folder / f"audio.{self.record.response_format}"

    async def times(self) -> list[Heard]:
        return self.heard or await asyncio.to_thread(read_times, self.folder)

    def seconds_left(self) -> float | None:
        """Estimate the time by the speed of this run; return None before this run has spoken a segment."""
        record = self.record
        done = record.spoken - self.spoken_before
        if record.status != "running" or not done:
            return None
        return (record.characters - record.spoken) * (time.monotonic() - self.began) / done


@asynccontextmanager
async def open_jobs(dispatcher: RequestDispatcher, keys: KeyRing, settings: JobsSection) -> AsyncIterator[Jobs]:
    """Open the jobs in `settings.folder`, and continue them. InvalidRequest: the folder cannot be used."""
    folder = settings.folder
    assert folder is not None
    with ExitStack() as stack:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            stack.enter_context(locked(folder / ".lock", timeout_s=1.0))
        except TimeoutError:
            raise InvalidRequest(f"jobs.folder: {folder} is used by another server; give each its own") from None
        except OSError as error:
            raise InvalidRequest(f"jobs.folder: {folder} cannot be used ({error.strerror}); name another") from None
        jobs = Jobs(dispatcher, keys, settings, folder)
        try:
            yield jobs
        finally:
            await jobs.close()


class Jobs:
    """The jobs of a server; all methods must be called in one event loop."""

    def __init__(self, dispatcher: RequestDispatcher, keys: KeyRing, settings: JobsSection, folder: Path) -> None:
        self.settings, self._dispatcher, self._keys, self._folder = settings, dispatcher, keys, folder
        self._reading, self._adding = asyncio.Semaphore(PLANS_AT_ONCE), asyncio.Lock()
        self._background: set[asyncio.Task[None]] = set()
        self._closing = False
        self._jobs: dict[str, Job] = {}
        for path in sorted(folder.iterdir()):
            if path.name.startswith(".new-"):
                shutil.rmtree(path, ignore_errors=True)
            elif (path / RECORD).is_file():
                try:
                    record = read_record(path)
                except (OSError, ValueError) as error:
                    log.error("job unreadable: %(folder)s (%(error)s)", {"folder": path, "error": error})
                    continue
                record.status = "queued" if record.status in UNFINISHED else record.status
                self._jobs[record.id] = Job(record, path)
        self._in_background(self._clean())
        self._start_waiting()

    def router(self, state: AppState) -> APIRouter:
        from vivavoce_books.jobs.routes import router

        return router(state, self)

    def of(self, principal: Principal) -> list[Job]:
        """Return the jobs of a key, the newest first."""
        own = (job for job in self._jobs.values() if job.record.key == principal.name)
        return sorted(own, key=lambda job: -job.record.created)

    def get(self, identity: str, principal: Principal) -> Job:
        job = self._jobs.get(identity)
        if job is None or job.record.key != principal.name:
            raise RequestNotFound(f"job: no job has the id {identity[:64]!r}; GET /v1/audio/jobs lists yours")
        return job

    async def plan(self, book: bytes, options: JobOptions) -> dict[str, Any]:
        """Return the title, author and chapters of a book, but do not keep it. InvalidRequest: it cannot be read."""
        async with self._stored(book, options) as folder:
            return await self._read(folder)

    async def add(self, principal: Principal, book: bytes, options: JobOptions, webhook: str | None) -> Job:
        """Store a new job, and start it if few jobs run. An error names the exceeded limit of the key or disk."""
        self._check_count(principal)
        async with self._stored(book, options) as folder:
            found = await self._read(folder)
            identity = f"job_{secrets.token_hex(12)}"
            record = JobRecord(identity, principal.name, time.time(), options.response_format, webhook=webhook)
            record.title, record.author = found["title"], found["author"]
            record.chapters = [ChapterPart(*one) for one in found["chapters"]]
            record.characters = sum(one.characters for one in record.chapters)
            async with self._adding:
                await self._check_room(principal, record.characters)
                record.save(folder)
                job = self._jobs[identity] = Job(record, folder.rename(self._folder / identity))
        self._start_waiting()
        return job

    async def remove(self, job: Job) -> None:
        """Stop a job, and remove it with its files."""
        self._jobs.pop(job.record.id, None)
        await _ended(job.task)
        await asyncio.to_thread(shutil.rmtree, job.folder, True)
        self._start_waiting()

    async def close(self) -> None:
        """Stop all jobs; the next start of the server continues them. A second call does nothing."""
        self._closing = True
        for task in [*(job.task for job in self._jobs.values()), *self._background]:
            await _ended(task)

    @asynccontextmanager
    async def _stored(self, book: bytes, options: JobOptions) -> AsyncIterator[Path]:
        """Make a folder with a book and its options; remove it at the end, unless it was renamed."""
        folder = self._folder / f".new-{secrets.token_hex(8)}"

        def store() -> None:
            folder.mkdir(mode=0o700)
            (folder / options.file).write_bytes(book)
            replace_file(folder / OPTIONS, json.dumps(asdict(options), ensure_ascii=False))

        try:
            try:
                await asyncio.to_thread(store)
            except OSError as error:
                words = f"jobs: the book cannot be kept ({error.strerror}); tell the server's operator"
                raise StageFailed(words) from None
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    async def _read(self, folder: Path) -> dict[str, Any]:
        async with self._reading:
            found: dict[str, Any] = {}

            async def take(message: Message, _: Process) -> None:
                if message["kind"] == "planned":
                    found.update(message)

            try:
                await asyncio.wait_for(converse("plan", folder, {}, take), PLAN_S)
            except (TimeoutError, asyncio.TimeoutError):
                raise TooLarge(f"book: it took more than {PLAN_S:g} s to read; split it") from None
        if not found:
            raise StageFailed("book: the process that reads it has ended; send a smaller book, or ask the operator")
        return found

    def _check_count(self, principal: Principal) -> None:
        most = self.settings.per_key if principal.jobs is None else principal.jobs
        if (kept := len(self.of(principal))) >= most:
            raise Overloaded(f"jobs: {kept} jobs of your key are kept, the limit is {most}; DELETE one", 60.0)

    async def _check_room(self, principal: Principal, characters: int) -> None:
        self._check_count(principal)
        most = self.settings.max_characters if principal.job_characters is None else principal.job_characters
        if characters > most:
            raise InvalidRequest(f"characters: the job has {characters}, the limit is {most}; choose fewer chapters")
        waiting = sum(job.record.characters for job in self.of(principal) if job.record.status in UNFINISHED)
        if waiting + characters > most:
            raise Overloaded(
                f"characters: your unfinished jobs have {waiting}, with {characters} more they would exceed the limit "
                f"of {most}; wait for one to end",
                60.0,
            )
        coming = sum(job.record.characters for job in self._jobs.values() if job.record.status in UNFINISHED)
        used, most_bytes = await asyncio.to_thread(_size_of, self._folder), int(self.settings.max_disk_gb * 1e9)
        if (need := used + (coming + characters) * BYTES_PER_CHARACTER) > most_bytes:
            raise Overloaded(
                f"disk: jobs may need {need / 1e9:.2f} GB with this one, the limit is {most_bytes / 1e9:g} "
                "(jobs.max_disk_gb); DELETE what you have downloaded",
                600.0,
            )

    def _start_waiting(self) -> None:
        """Start waiting jobs up to the limit: first for keys with the fewest running jobs, then the oldest jobs."""
        busy = Counter(job.record.key for job in self._jobs.values() if job.task is not None)
        waiting = [job for job in self._jobs.values() if job.task is None and job.record.status == "queued"]
        while waiting and not self._closing and busy.total() < self.settings.at_once:
            job = min(waiting, key=lambda one: (busy[one.record.key], one.record.created))
            waiting.remove(job)
            busy[job.record.key] += 1
            job.task = asyncio.ensure_future(self._run(job))

    async def _run(self, job: Job) -> None:
        record = job.record
        try:
            for _ in range(TRIES):
                await self._work(job)
                if record.status == "done":
                    break
            else:
                raise StageFailed("job: its process has ended without a result; the server's log may have the reason")
        except asyncio.CancelledError:
            record.status = "queued"
            raise
        except VivavoceError as error:
            record.status, record.error, record.error_code = "failed", str(error), error.code
        except OSError as error:
            record.status, record.error_code = "failed", StageFailed.code
            record.error = f"jobs: the folder cannot be written ({error.strerror}); tell the server's operator"
        except Exception:
            log.exception("job failed: %(job)s", {"job": record.id})
            record.status, record.error_code = "failed", "internal_error"
            record.error = "server: an internal error, which was logged; tell its operator the id of the job"
        finally:
            job.task = None
            if record.id in self._jobs:
                self._end(job)
                self._start_waiting()

    def _end(self, job: Job) -> None:
        record = job.record
        if record.status not in UNFINISHED:
            record.ended = time.time()
            log.info("job ended: %(job)s (%(status)s)", {"job": record.id, "status": record.status})
            if record.webhook and self.settings.webhooks != "off":
                from vivavoce_books.jobs.routes import entry_of

                told = entry_of(job).model_dump()
                self._in_background(deliver(record.webhook, told, self.settings.webhooks))
        with suppress(OSError):  # the disk may be full; the ledger still has the speech
            record.save(job.folder)
            if job.heard:
                save_times(job.folder, job.heard)
            job.heard = []

    async def _work(self, job: Job) -> None:
        record, dispatcher = job.record, self._dispatcher
        while not dispatcher.ready:
            await asyncio.sleep(LOOK_S)
        owner = self._keys.named(record.key)
        principal, about = Principal(owner.name, owner.owner), dispatcher.backend.about
        record.status, record.sample_rate, record.model = "running", about.sample_rate, about.name
        job.heard, job.began, job.spoken_before, record.samples, record.starts = [], time.monotonic(), -1, 0, {}
        record.save(job.folder)
        speaking: set[asyncio.Task[None]] = set()

        async def take(message: Message, process: Process) -> None:
            match message["kind"]:
                case "speak" | "normalize":
                    task = asyncio.ensure_future(answer(dispatcher, principal, message, process, record.id))
                    speaking.add(task)
                    task.add_done_callback(speaking.discard)
                case "heard":
                    job.heard += [Heard(*one) for one in message["entries"]]
                    record.spoken = message["spoken"]
                    for one in job.heard[len(job.heard) - len(message["entries"]) :]:
                        record.starts.setdefault(str(one.chapter + 1), one.at)
                        record.samples = one.after
                    if job.spoken_before < 0:
                        job.spoken_before = record.spoken
                case "writing":
                    record.status = "writing"
                case "done":
                    record.status, record.notes = "done", message["notes"]

        begin = {"sample_rate": about.sample_rate, "model": about.name}
        try:
            await converse("work", job.folder, {**begin, "segments": self.settings.segments}, take)
        finally:
            for task in list(speaking):
                await _ended(task)

    async def _clean(self) -> None:
        while True:
            until = time.time() - self.settings.keep_days * 86_400
            for job in [one for one in self._jobs.values() if (one.record.ended or until) < until]:
                await self.remove(job)
            await asyncio.sleep(CLEAN_S)

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def _ended(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _size_of(folder: Path) -> int:
    sizes = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # the file may have been removed since `rglob` listed it
            sizes += path.stat().st_size
    return sizes
