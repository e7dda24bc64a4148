"""A speaker whose engine runs in a process of its own, which is started again when it ends."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vivavoce.errors import EngineStopped, VivavoceError
from vivavoce.service.host.figures import SpeakerStatistics
from vivavoce.service.host.messages import (
    AddVoice,
    Answer,
    AskFigures,
    Broken,
    Cancel,
    Ended,
    ListVoices,
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
from vivavoce.service.host.order import Recording, SpeechOrder
from vivavoce.service.host.remote_stream import RemoteStream
from vivavoce.service.host.speaker import ModelAbout, VoiceSummary
from vivavoce.service.operations.logs import tell
from vivavoce.service.operations.settings import ServerSettings

log = logging.getLogger(__name__)

WORKER = "vivavoce.service.host.worker"
PAUSES_S = (0.0, 1.0, 5.0, 15.0, 30.0)
"""Before the engine's process is started: at first; after the first one in a row that could not get ready, the second …
One that could speak counts for one less, so that a single loss is made good at once."""
STEADY_S = 60.0
"""A process that spoke and lived so long ends such a row."""
PULSE_S, STUCK_S = 10.0, 60.0
"""How often the process is asked whether it is there, and how long it may take to say so."""
RESTART_S, RESTART_FACTOR = 600.0, 4.0
"""How long a process that is started again may take to get ready: so many seconds, and so many times what the first one
took. The first may have a model to download, and somebody who waits for it."""
LAST_WORDS_S = 5.0
"""What a process that was told to leave may take for it, and what one may take that was killed."""
MOST_UNSENT_BYTES = 64 << 20
"""Of messages that the process has not taken: it takes them at once unless it is stuck."""


class EngineHost:
    """See `Speaker`; made and used in one event loop.

    Args:
        settings: of the model, the engine and the voices; the process gets them as they are.
        command: what is run, with the number of its socket's file descriptor after it.
    """

    def __init__(self, settings: ServerSettings, command: Sequence[str] = (sys.executable, "-m", WORKER)) -> None:
        self._settings, self._command = settings, tuple(command)
        self._numbers = itertools.count(1)
        self._streams: dict[int, RemoteStream] = {}
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._about: ModelAbout | None = None
        self._can_speak = asyncio.Event()
        self._starts = 0
        self._first_start_s: float | None = None
        """What the first process took to get ready; None: it is not yet."""
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the process and wait until the model can speak.

        Raises:
            VivavoceError: it cannot be loaded, and why.
        """
        self._keeper = asyncio.ensure_future(self._keep())
        await self._first

    async def until_ready(self) -> None:
        """Wait until it takes requests."""
        await self._can_speak.wait()

    @property
    def about(self) -> ModelAbout:
        """See `Speaker`."""
        if self._about is None:
            raise _not_ready()
        return self._about

    @property
    def ready(self) -> bool:
        """See `Speaker`."""
        return self._can_speak.is_set()

    @property
    def process_id(self) -> int | None:
        """Of the engine's process; None: there is none now."""
        return None if self._process is None else self._process.pid

    async def speak(self, order: SpeechOrder) -> RemoteStream:
        """See `Speaker`."""
        number = next(self._numbers)
        stream = RemoteStream(number, self.about.sample_rate, self._send)
        self._streams[number] = stream
        try:
            await self._ask(number, Speak(number, order))
        except BaseException as error:
            self._streams.pop(number, None)  # it is gone already if the process is
            if isinstance(error, asyncio.CancelledError):
                self._send(Cancel(number))
            raise
        return stream

    async def voices(self, owner: str) -> list[VoiceSummary]:
        """See `Speaker`."""
        number = next(self._numbers)
        voices: list[VoiceSummary] = await self._ask(number, ListVoices(number, owner))
        return voices

    async def add_voice(
        self, owner: str, name: str, recording: Recording, *, description: str = "", replace: bool = False
    ) -> VoiceSummary:
        """See `Speaker`."""
        number = next(self._numbers)
        voice: VoiceSummary = await self._ask(number, AddVoice(number, owner, name, recording, description, replace))
        return voice

    async def remove_voice(self, owner: str, name: str) -> None:
        """See `Speaker`."""
        number = next(self._numbers)
        await self._ask(number, RemoveVoice(number, owner, name))

    async def statistics(self) -> SpeakerStatistics | None:
        """See `Speaker`."""
        number = next(self._numbers)
        figures: SpeakerStatistics = await self._ask(number, AskFigures(number))
        return figures

    async def close(self, drain_s: float = 0.0) -> None:
        """See `Speaker`."""
        if self._streams and drain_s:
            await asyncio.wait([asyncio.ensure_future(s.ended.wait()) for s in self._streams.values()], timeout=drain_s)
        self._send(Stop())
        if not self.ready and self._process is not None:
            self._process.kill()  # it loads the model: nothing is lost
        self._can_speak.clear()  # who asks from now on would wait for ever
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        await self._end_process()
        self._lose_all(EngineStopped("server: it is shutting down; ask another one, or again in some seconds"))

    async def _ask(self, number: int, message: Any) -> Any:
        if not self.ready:
            raise _not_ready()
        if self._unsent_bytes > MOST_UNSENT_BYTES and not isinstance(message, Ping):
            raise EngineStopped("engine: its process takes no requests just now; ask again in some seconds")
        answer = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        try:
            self._send(message)
            return await answer
        finally:
            self._questions.pop(number, None)

    @property
    def _unsent_bytes(self) -> int:
        return 0 if self._writer is None else self._writer.transport.get_write_buffer_size()

    def _send(self, message: Any) -> None:
        """Tell the process; a message to one that has ended is lost, and who waits for it learns that elsewhere."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(framed(message))

    async def _keep(self) -> None:
        """Run one process after the other, until the server closes or the first one cannot begin."""
        pause_s, troubles, now = PAUSES_S[0], 0, asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(pause_s)
            began = now()
            was_ready, ending = await self._run_one()
            if not self._first.done():
                self._first.set_exception(
                    EngineStopped(f"engine: its process has ended ({ending}) before it could speak")
                )
            if not was_ready and self._about is None:
                return
            troubles = 0 if was_ready and now() - began >= STEADY_S else troubles + 1
            pause_s = PAUSES_S[min(max(0, troubles - was_ready), len(PAUSES_S) - 1)]
            log.error("the engine's process has ended (%s) and is started again in %g s", ending, pause_s)

    async def _run_one(self) -> tuple[bool, str]:
        """One process from its beginning to its end: whether it could speak, and how it ended."""
        try:
            reader = await self._begin()
        except OSError as error:  # no memory, no file descriptors: there may be some later
            await self._end_process()
            return False, f"it cannot be begun: {error}"
        pulse = asyncio.ensure_future(self._watch())
        try:
            await self._listen(reader)
        except Exception:  # whatever it is, nobody would hear the process any more
            log.exception("the engine's process has said what cannot be understood, and is ended")
            self._kill()
        finally:
            pulse.cancel()
        was_ready = self.ready
        self._can_speak.clear()
        ending = await self._end_process()
        self._lose_all(EngineStopped(f"engine: its process has ended ({ending}) and is started again; ask again soon"))
        return was_ready, ending

    async def _watch(self) -> None:
        """End a process that does not get ready, or that takes no messages any more: nobody is to wait for ever."""
        began, first_s = asyncio.get_running_loop().time(), self._first_start_s
        allowed_s = None if first_s is None else max(RESTART_S, RESTART_FACTOR * first_s)
        try:
            await asyncio.wait_for(self._can_speak.wait(), allowed_s)
        except (TimeoutError, asyncio.TimeoutError):
            log.error("the engine's process has not got ready for %g s and is ended", allowed_s)
            self._kill()
            return
        if first_s is None:
            self._first_start_s = asyncio.get_running_loop().time() - began
        while True:
            await asyncio.sleep(PULSE_S)
            number = next(self._numbers)
            try:
                await asyncio.wait_for(self._ask(number, Ping(number)), STUCK_S)
            except (TimeoutError, asyncio.TimeoutError):
                log.error("the engine's process has not answered for %g s and is ended", STUCK_S)
                self._kill()
                return
            except EngineStopped:
                return

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    async def _begin(self) -> asyncio.StreamReader:
        ours, theirs = socket.socketpair()
        home = str(Path(__file__).parents[3])  # where the package lies, whatever made this process find it
        path = os.pathsep.join(part for part in (home, os.environ.get("PYTHONPATH", "")) if part)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [*self._command, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C is for the server, which lets requests finish
                    env={**os.environ, "PYTHONPATH": path},
                )
            self._starts += 1
            reader, self._writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        self._send(self._settings)
        return reader

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Take messages until the process has gone."""
        while (message := await read_message(reader)) is not None:
            if isinstance(message, Ready):
                self._about = message.about
                self._can_speak.set()
                tell(log, logging.INFO, "engine ready", process=self.process_id, starts=self._starts)
                if not self._first.done():
                    self._first.set_result(None)
            elif isinstance(message, Broken):
                if self._first.done():
                    log.error("the engine cannot be started: %s", message.error)
                else:
                    self._first.set_exception(message.error)
            else:
                self._take(message)

    def _take(self, message: Answer | Refused | Said | Ended) -> None:
        if isinstance(message, (Answer, Refused)):
            question = self._questions.get(message.number)
            if question is None or question.done():
                return
            if isinstance(message, Refused):
                question.set_exception(message.error)
            else:
                question.set_result(self._completed(message.value))
            return
        stream = self._streams.get(message.number)
        if stream is None:
            return  # it was cancelled meanwhile
        if isinstance(message, Said):
            stream.said(message.event)
        else:
            del self._streams[message.number]
            stream.over(message.verdict, message.error)

    def _completed(self, value: Any) -> Any:
        """Figures get what only this process knows."""
        return value.begun(self._starts) if isinstance(value, SpeakerStatistics) else value

    def _lose_all(self, error: VivavoceError) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.lost(error)
        for question in list(self._questions.values()):
            if not question.done():
                question.set_exception(error)

    async def _end_process(self) -> str:
        """Wait for the process, or end it; how it ended, in words."""
        process = self._process
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if process is None:
            return "it had not begun"
        try:
            code = await asyncio.to_thread(process.wait, LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            try:
                code = await asyncio.to_thread(process.wait, LAST_WORDS_S)
            except subprocess.TimeoutExpired:  # a driver holds it; its listeners need not wait, too
                return "it does not end"
        self._process = None  # not before it has ended: who closes meanwhile is to find it
        return _in_words(code)


def _in_words(code: int) -> str:
    if code >= 0:
        return f"exit {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal: most of them have no name
        return f"signal {-code}"


def _not_ready() -> EngineStopped:
    return EngineStopped("engine: it is starting; ask again in some seconds")
