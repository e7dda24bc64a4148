"""The engine's process: `python -m vivavoce.service.host.worker FD` speaks for the server at the socket's other end.

It ends when the server says so or has gone, and when its engine has failed, so that the server starts another one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vivavoce.errors import EngineStopped, RequestCancelled, StageFailed, VivavoceError
from vivavoce.service.host.messages import (
    AddVoice,
    Answer,
    AskFigures,
    Broken,
    Cancel,
    Ended,
    Heard,
    ListVoices,
    MoreText,
    Ping,
    Ready,
    Refused,
    RemoveVoice,
    Said,
    Speak,
    Stop,
    framed,
    read_message,
)
from vivavoce.service.host.speaker import SpeechEvent
from vivavoce.service.host.studio import Studio, open_studio
from vivavoce.service.host.talk import Talk
from vivavoce.service.host.verdict import FinishReason, Verdict
from vivavoce.service.operations.logs import LogFormat, configure

log = logging.getLogger(__name__)

FRONT_THREADS = 8
"""Texts that are read out, and recordings that are extracted, at once; most of them wait for the interpreter."""
ENGINE_FAILED = 3
"""The process's exit code when its engine takes no requests any more."""
DEFECT = 1
"""Its exit code when it ends by an error that nobody foresaw."""
CLOSING_S = 10.0
"""How long model and voices may take to be let go of: a device that is stuck would never be done."""


class Worker:
    """One connection to the server, and the requests that run."""

    def __init__(self, studio: Studio, writer: asyncio.StreamWriter) -> None:
        self._studio, self._writer = studio, writer
        self._talks: dict[int, Talk] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._threads = ThreadPoolExecutor(FRONT_THREADS, thread_name_prefix="vivavoce-front")
        self.failed = asyncio.Event()
        """The engine takes no requests any more."""

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Take messages until the server has gone or wants no more."""
        while True:
            message = await read_message(reader)
            if message is None or isinstance(message, Stop):
                break
            self._take(message)
        for task in self._tasks.values():
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _take(self, message: Any) -> None:
        if isinstance(message, Speak):
            self._begin(message.number, self._speak(message))
        elif isinstance(message, MoreText):
            if (talk := self._talks.get(message.number)) is not None:
                talk.push(message.text)
        elif isinstance(message, Heard):
            if (talk := self._talks.get(message.number)) is not None:
                talk.heard(message.segment)
        elif isinstance(message, Cancel):
            if (task := self._tasks.get(message.number)) is not None:
                task.cancel()
        elif isinstance(message, Ping):
            if not self._studio.healthy:
                log.error("the engine has failed, and nobody had to speak to find it out")
                self.failed.set()
            self._send(Answer(message.number, None))
        else:
            self._begin(message.number, self._answer(message))

    def _begin(self, number: int, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks[number] = task
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    async def _speak(self, message: Speak) -> None:
        """One request: accepted or refused, then its audio, then its end."""
        number, accepted = message.number, False
        talk = Talk(self._studio, message.order)
        self._talks[number] = talk
        error: VivavoceError | None = None
        try:
            await talk.begin(self._in_thread)
            accepted = True
            self._send(Answer(number, None))
            async for event in talk.events():
                await self._say(number, event)
            verdict = talk.verdict()
        except asyncio.CancelledError:
            error, verdict = None, Verdict(FinishReason.CANCELLED, 0.0, 0, 0)
            if not accepted:
                error = RequestCancelled("request: was cancelled")
        except Exception as failure:
            error = self._told(failure)
            verdict = Verdict(FinishReason.ERROR, 0.0, 0, 0, str(error), error.code)
        finally:
            talk.close()
            del self._talks[number]
        if accepted:
            self._send(Ended(number, verdict, error))
        elif error is not None:
            self._send(Refused(number, error))

    async def _say(self, number: int, event: SpeechEvent) -> None:
        self._send(Said(number, event))
        await self._writer.drain()

    async def _answer(self, message: ListVoices | AddVoice | RemoveVoice | AskFigures) -> None:
        try:
            self._send(Answer(message.number, await self._in_thread(lambda: self._value(message))))
        except Exception as failure:
            self._send(Refused(message.number, self._told(failure)))

    def _value(self, message: ListVoices | AddVoice | RemoveVoice | AskFigures) -> Any:
        if isinstance(message, ListVoices):
            return self._studio.library.summaries(message.owner)
        if isinstance(message, AskFigures):
            return self._studio.figures()
        if isinstance(message, RemoveVoice):
            return self._studio.library.remove(message.owner, message.name)
        return self._studio.add_voice(
            message.owner, message.name, message.recording, message.description, message.replace
        )

    def _told(self, failure: Exception) -> VivavoceError:
        """What the server may tell a stranger; the rest is in the log."""
        if not self._studio.healthy:
            self.failed.set()
        if isinstance(failure, VivavoceError):
            return failure
        log.error("a request failed", exc_info=failure)
        return StageFailed(f"engine: the request failed with {type(failure).__name__}, which was logged; ask again")

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _send(self, message: Any) -> None:
        if not self._writer.is_closing():
            self._writer.write(framed(message))


async def run(connection: socket.socket) -> int:
    """Load what the first message says, then serve; the exit code."""
    reader, writer = await asyncio.open_connection(sock=connection)
    settings = await read_message(reader)
    if settings is None:
        return 0
    logging_to = settings.logging
    configure(LogFormat(logging_to.format), logging_to.level, log_text=logging_to.log_text)
    # The event loop's own threads would be waited for at the end, and what is done here may last.
    loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1, thread_name_prefix="vivavoce-studio")
    opening = loop.run_in_executor(thread, open_studio, settings)
    if await _left_before(opening, reader):
        return 0
    try:
        studio = await opening
    except Exception as failure:
        if not isinstance(failure, VivavoceError):
            log.error("the engine cannot be started", exc_info=failure)
            said = " ".join(str(failure).split())
            failure = EngineStopped(f"engine: it cannot be started ({type(failure).__name__}: {said})")
        writer.write(framed(Broken(failure)))
        await writer.drain()
        return failure.exit_code
    writer.write(framed(Ready(studio.about)))
    worker = Worker(studio, writer)
    serving, failing = asyncio.ensure_future(worker.serve(reader)), asyncio.ensure_future(worker.failed.wait())
    await asyncio.wait((serving, failing), return_when=asyncio.FIRST_COMPLETED)
    # Who still listens is told by the server that the process has ended: nothing that ends with it ended by itself.
    writer.close()
    if failing.done():
        return ENGINE_FAILED
    serving.result()
    await asyncio.wait((loop.run_in_executor(thread, studio.close),), timeout=CLOSING_S)
    return 0


async def _left_before(opening: asyncio.Future[Studio], reader: asyncio.StreamReader) -> bool:
    """Wait for the model, and whether the server wants it no more: until then it says nothing else."""
    leaving = asyncio.ensure_future(read_message(reader))
    await asyncio.wait((opening, leaving), return_when=asyncio.FIRST_COMPLETED)
    left = leaving.done()
    leaving.cancel()
    await asyncio.wait((leaving,))
    return left


def main() -> None:
    """The process."""
    # Who stops a whole group of processes stops the server, which lets requests finish and then closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    code = DEFECT
    try:
        code = asyncio.run(run(socket.socket(fileno=int(sys.argv[1]))))
    except Exception:
        log.exception("the engine's process has failed")
    sys.stderr.flush()
    # Threads of an engine that has failed, or of a model that is still loaded, may never end.
    os._exit(code)


if __name__ == "__main__":
    main()
