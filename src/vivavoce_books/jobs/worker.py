"""The process of one job: reads the book, asks the server for speech, stores it, and writes the audio file.

Messages are lines of JSON, sent on stdout and received on stdin. Samples of speech (float32) follow their message.
A client's book may be made to do harm, so this process reads it, and not the server.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from vivavoce.child import end_with_parent, ignore_signals
from vivavoce.errors import VivavoceError
from vivavoce.frontend.speech import Mark, marks_of
from vivavoce_books.cast import cast_of
from vivavoce_books.jobs.values import LEDGER, Heard, error_of, read_plan
from vivavoce_books.ledger import Ledger, open_ledger
from vivavoce_books.plan import Plan, Segment, fingerprints_of, parts_of
from vivavoce_books.speaking import Job, speak_missing
from vivavoce_books.writing import Extras, Track, heard_of, write_track

NICENESS = 10
MEMORY_BYTES = 4 << 30
"""Maximum address space of the process in bytes (Linux); a book of 20 MB needs less than a quarter of this."""
AT_ONCE = 500
"""Maximum number of entries in one message."""


@dataclass(frozen=True, eq=False)
class Answer:
    """Speech that the server has made; samples: [n] float32."""

    samples: NDArray[np.float32]
    sample_rate: int
    marks: tuple[Mark, ...]


class Server:
    """Asks the server for speech, with the methods of `Vivavoce` that a book needs. Thread-safe."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self._source, self._sink, self._lock = source, sink, threading.Lock()
        self._numbers, self._waiting = count(1), dict[int, Future[tuple[dict[str, Any], bytes]]]()
        self.begin: dict[str, Any] = json.loads(source.readline() or b"{}")
        """The server's first message: sample_rate, model, and segments (the number of segments to speak at once)."""
        self.sample_rate: int = self.begin.get("sample_rate", 0)

    def tell(self, kind: str, **values: Any) -> None:
        line = json.dumps({"kind": kind, **values}, ensure_ascii=False).encode() + b"\n"
        with self._lock:
            self._sink.write(line)
            self._sink.flush()

    def listen(self) -> None:
        """Receive answers, in a thread, until the server closes the connection; then end this process."""
        while line := self._source.readline():
            message = json.loads(line)
            content = self._source.read(message.get("bytes", 0))
            self._waiting.pop(message["number"]).set_result((message, content))
        os._exit(0)

    def normalize(self, text: str, *, language: str | None = None) -> None:
        self._ask("normalize", text=text, language=language)

    def speak(self, text: str, voice: str | None, *, cancel: object = None, **manner: Any) -> Answer:
        message, content = self._ask("speak", text=text, voice=voice, **manner)
        spans, samples = message["spans"], message["samples"]
        cut = [message["cut"]] * len(spans)
        marks = marks_of(text, [(start, end) for start, end in spans], samples, self.sample_rate, cut)
        return Answer(np.frombuffer(content, np.float32), self.sample_rate, marks)

    def _ask(self, kind: str, **values: Any) -> tuple[dict[str, Any], bytes]:
        number, future = next(self._numbers), Future[tuple[dict[str, Any], bytes]]()
        self._waiting[number] = future
        self.tell(kind, number=number, **values)
        message, content = future.result()
        if "error" in message:
            raise error_of(message)
        return message, content


class Progress:
    """Tells the server about the audio without gaps from the beginning, and the number of characters spoken."""

    def __init__(self, server: Server, plan: Plan, wanted: list[Segment], ledger: Ledger) -> None:
        self._server, self._plan, self._wanted, self._ledger = server, plan, wanted, ledger
        self._there, self._next, self._at = ledger.places(), 0, 0
        self.missing = [one for one in wanted if one.index not in self._there]
        self._spoken = sum(len(one.text) for one in wanted) - sum(len(one.text) for one in self.missing)

    def done(self, segment: Segment) -> None:
        self._there.add(segment.index)
        self._spoken += len(segment.text)
        self.tell()

    def tell(self) -> None:
        news = list[Heard]()
        while self._next < len(self._wanted) and self._wanted[self._next].index in self._there:
            segment, offset = self._wanted[self._next], 0
            for one in heard_of(segment, self._plan, self._ledger, self._at, self._server.sample_rate):
                place, frames = (segment.index, segment.chapter, one.start, one.end), one.piece.frames
                news.append(Heard(*place, one.at, offset, frames, one.pause))
                offset, self._at = offset + frames, one.after
            self._next += 1
        for begin in range(0, max(1, len(news)), AT_ONCE):
            self._server.tell("heard", entries=news[begin : begin + AT_ONCE], spoken=self._spoken)


def plan(folder: Path, server: Server) -> None:
    _, made, chosen, _ = read_plan(folder)
    server.tell("planned", title=made.book.title, author=made.book.author, chapters=parts_of(made, chosen))


def work(folder: Path, server: Server) -> None:
    threading.Thread(target=server.listen, daemon=True).start()
    options, made, chosen, wanted = read_plan(folder)
    with open_ledger(folder / LEDGER, shared=True) as ledger:
        ledger.agree({"model": server.begin["model"], "sample rate": str(server.sample_rate)})
        ledger.agree(fingerprints_of(made), shown=False)
        progress = Progress(server, made, wanted, ledger)
        progress.tell()
        cast = cast_of(options.cast, options.voice)
        voices = {role: cast[role].voice for role in {one.role for one in made.segments}}
        job = Job(made, voices, {"speed": options.speed}, options.seed)
        speak_missing(server, job, progress.missing, ledger, server.begin["segments"], progress.done)
        server.tell("writing")
        track = Track(folder / f"audio.{options.response_format}", made.book.title, tuple(chosen))
        extras = Extras(loudness=options.loudness)
        lines = write_track(track, made, ledger, server.sample_rate, extras, ())
        server.tell("done", notes=[line.removeprefix(f"{track.path}: ") for line in lines])


WORK: dict[str, Callable[[Path, Server], None]] = {"plan": plan, "work": work}


def main() -> int:
    end_with_parent()
    ignore_signals()
    _bound()
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # so that `print` cannot write between the messages
    mode, folder = sys.argv[1:3]
    # Not sys.stdin: Python locks it at exit, and would crash while `listen` still reads from it.
    server = Server(os.fdopen(os.dup(0), "rb"), sink)
    try:
        WORK[mode](Path(folder), server)
    except VivavoceError as error:
        words = str(error).replace("; the same command goes on there", "").replace(", and the same command goes on", "")
        words = words.replace(", or begin again with --restart", ", or make the job anew").replace(f"{folder}/", "")
        server.tell("failed", error=words, code=error.code, status=error.http_status)
    except MemoryError:
        server.tell("failed", error="book: it needs too much memory; split it", code="too_large", status=413)
    return 0


def _bound() -> None:
    import resource

    os.nice(NICENESS)
    if sys.platform == "linux":
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
