"""A speaker whose engine runs in a process of its own, which is started again when it ends."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

from vivavoce.child import python_command
from vivavoce.engine.request import AudioChunk
from vivavoce.engine.routing import EngineLoad
from vivavoce.engine_process.messages import OPENING, EngineProcessSettings, Message, framed, read_message
from vivavoce.errors import EngineStopped, RequestCancelled, VivavoceError
from vivavoce.frontend.speech import FinishReason, Recording, SpeechEvent, SpeechRequest, Verdict
from vivavoce.frontend.speech_backend import BackendStatistics, ModelInfo
from vivavoce.frontend.text.checks import check_text
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce.logs import log_event
from vivavoce_textnorm import NormalizedText

log = logging.getLogger(__name__)

PROCESS_MODULE = "vivavoce.engine_process.process"
PAUSES_S = (0.0, 1.0, 5.0, 15.0, 30.0)
"""Before the engine's process is started: at first; after the first one in a row that could not get ready, the second …
One that could speak counts for one less, so that a single loss is made good at once."""
STEADY_S = 60.0
"""A process that spoke and lived this long ends such a row."""
PULSE_S, LATE_S, STUCK_S = 1.0, 3.0, 20.0
"""How often the process is asked whether it is there; after how long without an answer it gets no more requests, until
it answers; and after how long it is ended."""
RESTART_S, RESTART_FACTOR = 600.0, 4.0
"""How long a process that is started again may take to get ready: seconds, and a multiple of what the first one took,
the larger of the two. The first may have a model to download, and an operator waits for it."""
ENDING_S = 5.0
"""How long a process may take to end after it was asked to, and again after it was killed."""
MOST_UNSENT_BYTES = 64 << 20
"""Of messages that the process has not taken: it takes them at once unless it is stuck."""


class RemoteStream:
    """See `SpeechStream`. The engine's process, which is told what was heard, bounds how much may wait here."""

    def __init__(self, sample_rate: int, send: Callable[[Any, Any], None]) -> None:
        """send: a kind of `Message` and its value, to the process."""
        self._send = send
        self.sample_rate = sample_rate
        self.verdict: Verdict | None = None
        """How it ended; None while it goes on."""
        self._events: asyncio.Queue[SpeechEvent | Verdict | VivavoceError] = asyncio.Queue()

    async def __aiter__(self) -> AsyncIterator[SpeechEvent]:
        """See `SpeechStream`."""
        while not isinstance(event := await self._events.get(), (Verdict, VivavoceError)):
            yield event
            if isinstance(event, AudioChunk):
                self._send("heard", event.segment)
        if isinstance(event, VivavoceError):
            raise event

    async def push(self, text: str) -> None:
        """See `SpeechStream`."""
        check_text(text)
        if self.verdict is None:
            self._send("text", text)

    async def end(self) -> None:
        """See `SpeechStream`."""
        if self.verdict is None:
            self._send("text", None)

    def cancel(self) -> None:
        """See `SpeechStream`."""
        if self.verdict is None:
            self._send("cancel", None)
            while not self._events.empty():  # its listener has left
                self._events.get_nowait()
            self.on_end(Verdict(FinishReason.CANCELLED))

    def on_event(self, event: SpeechEvent) -> None:
        """The next event has come."""
        if self.verdict is None:
            self._events.put_nowait(event)

    def on_end(self, outcome: Verdict | VivavoceError) -> None:
        """There is no more: it ended, or failed. After the end: nothing happens."""
        if self.verdict is not None:
            return
        if isinstance(outcome, RequestCancelled):
            # This end did not cancel it: the process leaves, and the speech is not whole.
            outcome = EngineStopped("engine: its process gave the request up; ask again in some seconds")
        self._events.put_nowait(outcome)
        if isinstance(outcome, VivavoceError):
            outcome = Verdict(FinishReason.ERROR, error=str(outcome), error_code=outcome.code)
        self.verdict = outcome


class EngineClient:
    """See `Speaker`; made and used in one event loop.

    command: what is run, with the number of its socket's file descriptor after it; name: where there are several;
    variables: of the process's environment, beside this one's.
    """

    def __init__(
        self,
        settings: EngineProcessSettings,
        command: Sequence[str] = python_command(PROCESS_MODULE),
        name: str = "",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._settings, self._command, self._name = settings, tuple(command), name
        self._environment = {**os.environ, **(variables or {})}
        self._numbers = itertools.count(1)
        self._streams: dict[int, RemoteStream] = {}
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._about: ModelInfo | None = None
        self.stuck = False
        """See `Speaker`."""
        self.voice_store = "ok"
        """See `Speaker`."""
        self._can_speak = asyncio.Event()
        self._capacity = 1
        """See `EngineLoad`; until the process is asked, equal to that of others."""
        self._starts = 0
        self._first_start_s: float | None = None
        """What the first process took to get ready; None: it is not yet."""
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keeper: asyncio.Task[None] | None = None

    async def start(self, about: ModelInfo | None = None) -> None:
        """Start the process and wait until the model can speak; VivavoceError: it cannot be loaded, and why.

        about: the model that another process has loaded already: then one that cannot begin is started again, too.
        """
        self._about = about
        self._keeper = asyncio.ensure_future(self._keep())
        await self._first

    async def until_ready(self) -> None:
        """Wait until it takes requests."""
        await self._can_speak.wait()

    @property
    def about(self) -> ModelInfo:
        """See `Speaker`."""
        if self._about is None:
            raise _not_ready()
        return self._about

    @property
    def ready(self) -> bool:
        """See `Speaker`."""
        return self._can_speak.is_set() and not self.stuck

    @property
    def load(self) -> EngineLoad:
        """What is to be known for a choice among engines."""
        return EngineLoad(self._name, self.ready, len(self._streams), self._capacity)

    @property
    def process_id(self) -> int | None:
        """Of the engine's process; None: there is none now."""
        return None if self._process is None else self._process.pid

    async def speak(self, request: SpeechRequest) -> RemoteStream:
        """See `Speaker`."""
        number = next(self._numbers)
        stream = RemoteStream(self.about.sample_rate, lambda kind, value: self._send(Message(number, kind, value)))
        self._streams[number] = stream
        try:
            await self._ask("speak", request, number)
        except BaseException as error:
            self._streams.pop(number, None)  # it is gone already if the process is
            if isinstance(error, asyncio.CancelledError):
                self._send(Message(number, "cancel"))
            raise
        return stream

    async def normalize(self, request: SpeechRequest) -> NormalizedText:
        """See `Speaker`."""
        reading: NormalizedText = await self._ask("call", ("normalize", (request,)))
        return reading

    async def voices(self, owner: str) -> list[VoiceSummary]:
        """See `Speaker`."""
        voices: list[VoiceSummary] = await self._ask("call", ("voices", (owner,)))
        return voices

    async def add_voice(
        self, owner: str, name: str, recording: Recording, *, description: str = "", replace: bool = False
    ) -> VoiceSummary:
        """See `Speaker`."""
        arguments = (owner, name, recording, description, replace)
        voice: VoiceSummary = await self._ask("call", ("add_voice", arguments))
        return voice

    async def remove_voice(self, owner: str, name: str) -> None:
        """See `Speaker`."""
        await self._ask("call", ("remove_voice", (owner, name)))

    async def statistics(self) -> BackendStatistics | None:
        """See `Speaker`."""
        statistics: BackendStatistics = await self._ask("call", ("statistics", ()))
        known: dict[str, Any] = {"streams": len(self._streams), "capacity": self._capacity, "starts": self._starts}
        return replace(statistics, voice_store=self.voice_store, **known)  # which only this process knows

    async def close(self) -> None:
        """End the process, and what it still speaks."""
        if not self.ready and self._process is not None:
            self._process.kill()  # it loads the model, or would not hear that it has to end
        self._can_speak.clear()  # later requests would wait for ever
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        await self._end_process()
        self._lose_all(EngineStopped("server: it is shutting down; ask another one, or again in some seconds"))

    async def _ask(self, kind: Literal["speak", "call", "ping"], value: Any = None, number: int | None = None) -> Any:
        """The answer of the process, or the error that it answers with."""
        if not self._can_speak.is_set():
            raise _not_ready()
        unsent = 0 if self._writer is None else self._writer.transport.get_write_buffer_size()
        if kind != "ping" and (self.stuck or unsent > MOST_UNSENT_BYTES):
            trouble = "does not answer" if self.stuck else "takes no requests"
            raise EngineStopped(f"engine: its process {trouble} just now; ask again in some seconds")
        number = number or next(self._numbers)
        answer = self._questions[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(Message(number, kind, value))
            return await answer
        finally:
            self._questions.pop(number, None)

    def _send(self, message: Message | EngineProcessSettings) -> None:
        """Write to the process. A message to one that has ended is lost; its sender learns that from `_lose_all`."""
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
            told = {"name": self._name and f" of {self._name}", "ending": ending, "pause_s": pause_s}
            log.error("engine ended: its process%(name)s (%(ending)s) is started again in %(pause_s)g s", told)

    async def _run_one(self) -> tuple[bool, str]:
        """One process from its beginning to its end: whether it could speak, and how it ended."""
        try:
            reader = await self._begin()
        except OSError as error:  # no memory, no file descriptors: there may be some later
            await self._end_process()
            return False, f"it cannot be begun: {error}"
        pulse = asyncio.ensure_future(self._watch())
        try:
            while (message := await read_message(reader)) is not None:
                self._take(message)
        except Exception:  # after any error, the process would not be read any more
            log.exception("engine not understood: its process has said what cannot be, and is ended")
            self._kill()
        finally:
            pulse.cancel()
        was_ready, self.stuck = self._can_speak.is_set(), False
        self._can_speak.clear()
        ending = await self._end_process()
        self._lose_all(EngineStopped(f"engine: its process has ended ({ending}) and is started again; ask again soon"))
        return was_ready, ending

    async def _watch(self) -> None:
        """End a process that does not get ready, or that takes no messages any more."""
        began, first_s = asyncio.get_running_loop().time(), self._first_start_s
        limit_s = None if first_s is None else max(RESTART_S, RESTART_FACTOR * first_s)
        trouble = "got ready"
        try:
            await asyncio.wait_for(self._can_speak.wait(), limit_s)
            self._first_start_s = first_s or asyncio.get_running_loop().time() - began
            trouble = "answered"
            while True:
                await asyncio.sleep(PULSE_S)
                limit_s = STUCK_S
                before = self.voice_store
                self.voice_store, self._capacity = await self._pulse()
                if self.voice_store != before:
                    state = "is in order again" if self.voice_store == "ok" else self.voice_store
                    log.warning("voice store: %(state)s", {"state": state.removeprefix("voice store: ")})
        except (TimeoutError, asyncio.TimeoutError):
            told = {"trouble": trouble, "seconds": limit_s}
            log.error("engine stuck: its process has not %(trouble)s for %(seconds)g s and is ended", told)
            self._kill()
        except EngineStopped:
            return

    async def _pulse(self) -> tuple[str, int]:
        """What the process says when it is asked whether it is there, see `Message`; TimeoutError: nothing."""
        asking = asyncio.ensure_future(self._ask("ping"))
        try:
            # In steps: if this process was stopped itself, it finds the answer after its first step.
            for step in range(round(STUCK_S / PULSE_S)):
                await asyncio.wait((asking,), timeout=PULSE_S)
                if asking.done():
                    self.stuck = False
                    state, capacity = await asking
                    return state, capacity
                if not self.stuck and (step + 1) * PULSE_S >= LATE_S:
                    self.stuck = True
                    log.warning(
                        "engine late: it has not answered for %(seconds)g s and gets no requests", {"seconds": LATE_S}
                    )
            raise TimeoutError
        finally:
            asking.cancel()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    async def _begin(self) -> asyncio.StreamReader:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [*self._command, str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=self._environment,
                    start_new_session=True,  # Ctrl-C is for the server, which lets requests finish
                )
            self._starts += 1
            reader, self._writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        self._send(self._settings)
        return reader

    def _take(self, message: Message) -> None:
        number, kind, value = message
        if number == OPENING:
            self._take_opening(value)
        elif kind == "answer":
            self._answer(number, value)
        elif number not in self._streams:
            pass  # it was cancelled meanwhile
        elif kind == "event":
            self._streams[number].on_event(value)
        else:
            self._streams.pop(number).on_end(value)

    def _answer(self, number: int, value: Any) -> None:
        question = self._questions.get(number)
        if question is None or question.done():
            return
        if isinstance(value, VivavoceError):
            question.set_exception(value)
        else:
            question.set_result(value)

    def _take_opening(self, opening: ModelInfo | VivavoceError) -> None:
        if isinstance(opening, ModelInfo):
            self._about = opening
            self._can_speak.set()
            told = {"engine": self._name} if self._name else {}
            log_event(log, logging.INFO, "engine ready", process=self.process_id, starts=self._starts, **told)
            if not self._first.done():
                self._first.set_result(None)
        elif self._first.done():
            log.error("engine not started: %(error)s", {"error": opening})
        else:
            self._first.set_exception(opening)

    def _lose_all(self, error: VivavoceError) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.on_end(error)
        for number in list(self._questions):
            self._answer(number, error)

    async def _end_process(self) -> str:
        """Wait for the process, or end it; how it ended, in words."""
        process, code = self._process, None
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if process is None:
            return "it had not begun"
        for _ in range(2):
            try:
                code = await asyncio.to_thread(process.wait, ENDING_S)
                break
            except subprocess.TimeoutExpired:
                process.kill()
        if code is None:  # a driver holds it; its listeners need not wait
            return "it does not end"
        self._process = None  # not before it has ended: `close` may look for it meanwhile
        # A real-time signal has no name.
        known = {-number.value: number.name for number in signal.Signals}
        return f"exit {code}" if code >= 0 else f"signal {known.get(code, -code)}"


def _not_ready() -> EngineStopped:
    return EngineStopped("engine: it is starting; ask again in some seconds")
