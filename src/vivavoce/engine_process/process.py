"""The engine's process. `main` has one argument, the number of its socket's file descriptor.

It ends when the server says so or has gone, and when its engine has failed, so that the server starts another one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any

from vivavoce.child import end_with_parent
from vivavoce.engine.admission import AdmissionMode
from vivavoce.engine.chunk_policy import ChunkPolicy, policy_for
from vivavoce.engine_process.messages import OPENING, EngineProcessSettings, Message, framed, read_message
from vivavoce.engine_process.model_service import ModelService, open_model_service
from vivavoce.errors import EngineStopped, Overloaded, RequestCancelled, StageFailed, VivavoceError
from vivavoce.frontend.session import RequestSession
from vivavoce.frontend.speech import SpeechRequest, Verdict
from vivavoce.frontend.text_threads import in_thread
from vivavoce.logs import configure

log = logging.getLogger(__name__)

OWNER_SHARE = 4
"""One owner's share of the requests that are on their way to the engine: one in so many."""
LOOK_S = 0.05
"""How often a process whose threads are all at work looks whether they get on."""
ENGINE_FAILED = 3
"""The process's exit code when its engine takes no requests any more."""
DEFECT = 1
"""Its exit code when it ends by an unforeseen error."""
CLOSING_S = 10.0
"""How long model and voices may take to be closed: a device that is stuck would never be done."""


class EngineServer:
    """One connection to the server, and the requests that run."""

    def __init__(self, service: ModelService, writer: asyncio.StreamWriter) -> None:
        self._service, self._writer = service, writer
        self._sessions: dict[int, RequestSession] = {}
        self._pieces: dict[int, SimpleQueue[str | None]] = {}
        """Of texts that arrive; None at the end."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._coming: dict[bool, list[str]] = {True: [], False: []}
        """The owners of requests that the engine has not got yet, whose texts arrive or are there."""
        self.failed = asyncio.Event()
        """The engine takes no requests any more."""

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Take messages until the server has gone."""
        while (message := await read_message(reader)) is not None:
            self._take(message)
        for task in self._tasks.values():
            task.cancel()

    def _take(self, message: Message) -> None:
        number, kind, value = message
        works: dict[str, Callable[[int, Any], Coroutine[Any, Any, None]]]
        works = {"speak": self._speak, "call": self._call, "ping": self._pulse}
        if kind in works:
            task = self._tasks[number] = asyncio.ensure_future(works[kind](number, value))
            task.add_done_callback(lambda _: self._tasks.pop(number, None))
        elif kind == "text" and number in self._pieces:
            self._pieces[number].put(value)
        elif kind == "heard" and number in self._sessions:
            self._sessions[number].on_heard(value)
        elif kind == "cancel" and number in self._tasks:
            self._tasks[number].cancel()

    async def _speak(self, number: int, request: SpeechRequest) -> None:
        """One request: accepted or refused, then its audio, then its end."""
        engine, front_end, accepted = self._service.engine, self._service.front_end, False
        session = self._sessions[number] = RequestSession(engine, front_end)
        pieces = self._pieces[number] = SimpleQueue()
        outcome: Verdict | VivavoceError
        try:
            if request.policy is not None:
                session.policy = policy_for(front_end.config.generation, ChunkPolicy.parse(request.policy))
            with self._on_its_way(request):
                engine.check_load(streaming=True)
                voice = await self._service.voice(request.owner, request.voice)
                request = replace(request, lexicon=self._service.lexicon(request.owner, voice))
                if request.text is not None:
                    await self._service.read(request.text, partial(session.start, request.text, voice, request))
                    await self._begun(session)
                accepted = True
                self._send(Message(number, "answer"))
                if request.text is None:
                    # In a thread of its own: others need not wait until this one's text comes.
                    await in_thread(partial(session.start, iter(pieces.get, None), voice, request), session.close)
                    await self._begun(session)
            async for event in session.events():
                self._send(Message(number, "event", event))
                await self._writer.drain()
            outcome = session.verdict()
        except asyncio.CancelledError:
            outcome = RequestCancelled("request: was cancelled")
        except Exception as failure:
            outcome = self._public(failure)
        finally:
            session.close()
            pieces.put(None)
            del self._sessions[number], self._pieces[number]
        self._send(Message(number, "end" if accepted else "answer", outcome))

    async def _begun(self, session: RequestSession) -> None:
        """Wait, where the engine lets requests wait by itself, until this one begins; Overloaded: it took too long."""
        settings = self._service.engine.settings
        if settings.admission is AdmissionMode.AUTO:
            try:
                await asyncio.wait_for(session.handle.begun_async(), settings.max_wait_s)
            except (TimeoutError, asyncio.TimeoutError):
                busy = f"server: it was busy with other requests for {settings.max_wait_s:g} s; try again in 10 s"
                raise Overloaded(busy, 10.0) from None

    @contextmanager
    def _on_its_way(self, request: SpeechRequest) -> Iterator[None]:
        """A request, until the engine has it: it may hold a thread, and a recording. Overloaded: there are too many."""
        coming, owner, most = self._coming[request.text is None], request.owner, self._service.max_coming
        own = coming.count(owner) if owner else 0
        if len(coming) >= most or own >= most // OWNER_SHARE:
            raise Overloaded(
                f"requests: {len(coming)} wait for voices or texts, the limit is {most}; {own} of them are yours, the "
                f"limit is {most // OWNER_SHARE}; try again in 1 s"
            )
        coming.append(owner)
        try:
            yield
        finally:
            coming.remove(owner)

    async def _call(self, number: int, call: tuple[str, tuple[Any, ...]]) -> None:
        method, arguments = call
        try:
            answer = await getattr(self._service, method)(*arguments)
        except Exception as failure:
            answer = self._public(failure)
        self._send(Message(number, "answer", answer))

    async def _pulse(self, number: int, _: None) -> None:
        asked = time.monotonic()
        if not self._service.healthy:
            log.error("engine failed: nobody had to speak to find it out")
            self.failed.set()
        state = await self._service.check_store()
        while not self._service.moved_since(asked):
            await asyncio.sleep(LOOK_S)
        self._send(Message(number, "answer", (state, self._service.engine.capacity)))

    def _public(self, failure: Exception) -> VivavoceError:
        """What a client may be told; the rest is in the log."""
        if not self._service.healthy:
            self.failed.set()
        if isinstance(failure, VivavoceError):
            return failure
        log.error("request failed", exc_info=failure)
        return StageFailed(f"engine: the request failed with {type(failure).__name__}, which was logged; ask again")

    def _send(self, message: Message) -> None:
        if not self._writer.is_closing():
            self._writer.write(framed(message))


async def run(connection: socket.socket) -> int:
    """Load what the first message says, then serve; the exit code."""
    reader, writer = await asyncio.open_connection(sock=connection)
    settings: EngineProcessSettings | None = await read_message(reader)
    if settings is None:
        return 0
    configure(settings.logging.format, settings.logging.level, log_text=settings.logging.log_text)
    # The event loop's own threads would be waited for at the end, and what is done here may last.
    loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1, thread_name_prefix="vivavoce-model")
    opening = loop.run_in_executor(thread, open_model_service, settings)
    if await _left_before(opening, reader):
        return 0
    try:
        service = await opening
    except Exception as failure:
        if not isinstance(failure, VivavoceError):
            log.error("engine not started", exc_info=failure)
            reason = " ".join(str(failure).split())
            failure = EngineStopped(f"engine: it cannot be started ({type(failure).__name__}: {reason})")
        writer.write(framed(Message(OPENING, "answer", failure)))
        await writer.drain()
        return failure.exit_code
    writer.write(framed(Message(OPENING, "answer", service.about)))
    server = EngineServer(service, writer)
    serving, failing = asyncio.ensure_future(server.serve(reader)), asyncio.ensure_future(server.failed.wait())
    await asyncio.wait((serving, failing), return_when=asyncio.FIRST_COMPLETED)
    # The server tells remaining listeners that the process has ended: their requests did not end by themselves.
    writer.close()
    if failing.done():
        return ENGINE_FAILED
    serving.result()
    await asyncio.wait((loop.run_in_executor(thread, service.close),), timeout=CLOSING_S)
    return 0


async def _left_before(opening: asyncio.Future[ModelService], reader: asyncio.StreamReader) -> bool:
    """Wait for the model; True if the server leaves meanwhile: until then it sends nothing."""
    leaving = asyncio.ensure_future(read_message(reader))
    await asyncio.wait((opening, leaving), return_when=asyncio.FIRST_COMPLETED)
    left = leaving.done()
    leaving.cancel()
    await asyncio.wait((leaving,))
    return left


def main() -> None:
    """The process."""
    end_with_parent()
    # A signal to the whole group of processes stops the server, which lets requests finish and closes the socket.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    code = DEFECT
    try:
        code = asyncio.run(run(socket.socket(fileno=int(sys.argv[1]))))
    except Exception:
        log.exception("engine failed: its process has failed")
    sys.stderr.flush()
    # Threads of an engine that has failed, or of a model that is still loaded, may never end.
    os._exit(code)
