"""The engine's process. Its one argument is the file descriptor of its socket.

It ends when the server closes the socket, or when the engine has failed; after a failure the server starts it again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any

from vivavoce.child import end_with_parent, ignore_signals
from vivavoce.engine.admission import AdmissionMode
from vivavoce.engine.chunk_policy import ChunkPolicy, policy_for
from vivavoce.engine_process import messages
from vivavoce.engine_process.messages import EngineProcessSettings, framed, read_message
from vivavoce.engine_process.model_service import ModelService, open_model_service
from vivavoce.errors import EngineStopped, Overloaded, RequestCancelled, StageFailed, VivavoceError
from vivavoce.frontend.session import RequestSession
from vivavoce.frontend.speech import SpeechRequest, Verdict
from vivavoce.frontend.text_threads import in_thread
from vivavoce.logs import configure

log = logging.getLogger(__name__)

OWNER_SHARE, WAITING_SHARE = 4, 2
"""One owner may have at most 1/4 of the requests on their way to the engine, and 1/2 of the engine's places to wait."""
POLL_S = 0.05
"""Seconds between checks of threads that are all busy."""
ENGINE_FAILED = 3
DEFECT = 1
CLOSING_S = 10.0
"""Limit in seconds for closing model and voices, because a stuck device would make this last for ever."""


class EngineServer:
    def __init__(self, service: ModelService, writer: asyncio.StreamWriter) -> None:
        self._service, self._writer = service, writer
        self._sessions: dict[int, RequestSession] = {}
        self._pieces: dict[int, SimpleQueue[str | None]] = {}
        """For each request with a streamed text, a queue of the text's pieces; None marks its end."""
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._coming: dict[bool, list[str]] = {True: [], False: []}
        """The owners of requests that the engine does not have yet, by whether the request's text is streamed."""
        self.failed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader) -> None:
        while (message := await read_message(reader)) is not None:
            self._take(message)
        for task in self._tasks.values():
            task.cancel()

    def _take(self, message: messages.ToProcess) -> None:
        number = message.number
        match message:
            case messages.Speak():
                self._start(number, self._speak(number, message.request))
            case messages.MethodCall():
                self._start(number, self._call(message))
            case messages.Ping():
                self._start(number, self._pulse(number))
            case messages.MoreText() if number in self._pieces:
                self._pieces[number].put(message.text)
            case messages.Heard() if number in self._sessions:
                self._sessions[number].on_heard(message.segment)
            case messages.Cancel() if number in self._tasks:
                self._tasks[number].cancel()

    def _start(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[number] = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    async def _speak(self, number: int, request: SpeechRequest) -> None:
        engine, front_end, accepted = self._service.engine, self._service.front_end, False
        session = self._sessions[number] = RequestSession(engine, front_end)
        pieces = self._pieces[number] = SimpleQueue()
        outcome: Verdict | VivavoceError
        try:
            if request.policy is not None:
                session.policy = policy_for(front_end.config.generation, ChunkPolicy.parse(request.policy))
            session.batch = request.priority == "batch"
            with self._on_its_way(request):
                engine.check_load(streaming=not session.batch)
                voice = await self._service.voice(request.owner, request.voice)
                if adapter := request.adapter_of(voice.adapter):
                    engine.check_adapter(adapter)
                request = replace(request, lexicon=self._service.lexicon(request, voice))
                if request.text is not None:
                    await self._service.read(request.text, partial(session.start, request.text, voice, request))
                    await self._begun(session)
                accepted = True
                self._send(messages.Answer(number))
                if request.text is None:
                    # `start` needs its own thread, because it waits for text.
                    await in_thread(partial(session.start, iter(pieces.get, None), voice, request), session.close)
                    with self._on_its_way(request):
                        await self._begun(session)
            async for event in session.events():
                self._send(messages.Event(number, event))
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
        self._send(messages.End(number, outcome) if accepted else messages.Answer(number, outcome))

    async def _begun(self, session: RequestSession) -> None:
        """With admission auto, wait until the engine begins this request; Overloaded: the wait took too long."""
        settings = self._service.engine.settings
        if settings.admission is AdmissionMode.AUTO and not session.batch:
            try:
                await asyncio.wait_for(session.handle.begun_async(), settings.max_wait_s)
            except (TimeoutError, asyncio.TimeoutError):
                busy = f"server: it was busy with other requests for {settings.max_wait_s:g} s; try again in 10 s"
                raise Overloaded(busy, 10.0) from None

    @contextmanager
    def _on_its_way(self, request: SpeechRequest) -> Iterator[None]:
        """Count a request until the engine has it, as it may hold a thread and a recording, or raise Overloaded."""
        coming, owner, most = self._coming[request.text is None], request.owner, self._service.max_coming
        own, most_own = coming.count(owner) if owner else 0, most // OWNER_SHARE
        most_own = min(most_own, max(1, self._service.engine.places // WAITING_SHARE))
        if len(coming) >= most or own >= most_own:
            raise Overloaded(
                f"requests: {len(coming)} wait for voices, texts or their turn, the limit is {most}; {own} of them are "
                f"yours, the limit is {most_own}; try again in 1 s"
            )
        coming.append(owner)
        try:
            yield
        finally:
            coming.remove(owner)

    async def _call(self, call: messages.MethodCall) -> None:
        try:
            answer = await getattr(self._service, call.method)(*call.arguments, **call.options)
        except Exception as failure:
            answer = self._public(failure)
        self._send(messages.Answer(call.number, answer))

    async def _pulse(self, number: int) -> None:
        asked = time.monotonic()
        if not self._service.healthy:
            log.error("engine failed: found by the health check")
            self.failed.set()
        voice_store = await self._service.check_store()
        while not self._service.moved_since(asked):
            await asyncio.sleep(POLL_S)
        self._send(messages.Answer(number, messages.Pulse(voice_store, self._service.engine.capacity)))

    def _public(self, failure: Exception) -> VivavoceError:
        if not self._service.healthy:
            self.failed.set()
        if isinstance(failure, VivavoceError):
            return failure
        log.error("request failed", exc_info=failure)
        return StageFailed(f"engine: the request failed with {type(failure).__name__}, which was logged; ask again")

    def _send(self, message: messages.FromProcess) -> None:
        if not self._writer.is_closing():
            self._writer.write(framed(message))


async def run(connection: socket.socket) -> int:
    """Load the model that the first message names, then serve; return the exit code."""
    reader, writer = await asyncio.open_connection(sock=connection)
    settings: EngineProcessSettings | None = await read_message(reader)
    if settings is None:
        return 0
    configure(settings.logging.format, settings.logging.level, log_text=settings.logging.log_text)
    # The loop's own threads are not used: `asyncio.run` waits for them at its end, and loading may take long.
    loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1, thread_name_prefix="vivavoce-model")
    opening = loop.run_in_executor(thread, open_model_service, settings)
    leaving = asyncio.ensure_future(read_message(reader))  # until the model is loaded, the server sends nothing
    await asyncio.wait((opening, leaving), return_when=asyncio.FIRST_COMPLETED)
    if leaving.done():
        return 0
    leaving.cancel()
    await asyncio.wait((leaving,))
    try:
        service = await opening
    except Exception as failure:
        if not isinstance(failure, VivavoceError):
            log.error("engine not started", exc_info=failure)
            reason = " ".join(str(failure).split())
            failure = EngineStopped(f"engine: it cannot be started ({type(failure).__name__}: {reason})")
        writer.write(framed(messages.Opening(failure)))
        await writer.drain()
        return failure.exit_code
    writer.write(framed(messages.Opening(service.about)))
    server = EngineServer(service, writer)
    serving, failing = asyncio.ensure_future(server.serve(reader)), asyncio.ensure_future(server.failed.wait())
    await asyncio.wait((serving, failing), return_when=asyncio.FIRST_COMPLETED)
    # The server ends the remaining requests with an error which says that the process has ended.
    writer.close()
    if failing.done():
        return ENGINE_FAILED
    serving.result()
    await asyncio.wait((loop.run_in_executor(thread, service.close),), timeout=CLOSING_S)
    return 0


def main() -> None:
    end_with_parent()
    # The server lets requests finish before it closes the socket; a service manager may stop the whole group.
    ignore_signals(signal.SIGTERM)
    code = DEFECT
    try:
        code = asyncio.run(run(socket.socket(fileno=int(sys.argv[1]))))
    except Exception:
        log.exception("engine failed: unexpected error in its process")
    sys.stderr.flush()
    # Threads of a failed engine, or of a model that is still loading, may never end.
    os._exit(code)
