"""The `SpeechBackend` of an engine that runs in its own process; the process is restarted when it ends."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import socket
import subprocess
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from typing_extensions import Unpack

from vivavoce.child import python_command
from vivavoce.engine.adapters import AdapterInfo
from vivavoce.engine.request import AudioChunk
from vivavoce.engine_process import messages
from vivavoce.engine_process.messages import EngineProcessSettings, framed, read_message
from vivavoce.errors import EngineStopped, RequestCancelled, VivavoceError
from vivavoce.frontend.speech import FinishReason, Recording, SpeechEvent, SpeechRequest, Verdict
from vivavoce.frontend.speech_backend import BackendStatistics, ModelInfo, VoiceOptions
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce.logs import log_event
from vivavoce.server.settings import LoggingSection, VoicesSection
from vivavoce_textnorm import Lexicons, NormalizedText, check_length

log = logging.getLogger(__name__)

PROCESS_MODULE = "vivavoce.engine_process.process"
PAUSES_S = (0.0, 1.0, 5.0, 15.0, 30.0)
"""Seconds to wait before a process is started: after no failure, after one failure, after two failures in a row … If a
process was ready before it ended, the wait is one step shorter, so there is none after a single crash."""
STEADY_S = 60.0
"""If a process was ready and ran for this many seconds, the number of failures is set to 0."""
PULSE_S, LATE_S, STUCK_S = 1.0, 3.0, 20.0
"""Seconds between health checks; seconds without an answer until requests are refused, and until a kill."""
RESTART_S, RESTART_FACTOR = 600.0, 4.0
"""Limit of the seconds until a restarted process is ready: RESTART_S, or RESTART_FACTOR times the first start,
whichever is longer. The first start has no limit: it may download a model, and an operator watches it."""
ENDING_S = 5.0
"""Seconds to wait for a process to end after it was asked to end, and again after it was killed."""
MOST_UNSENT_BYTES = 64 << 20
"""Limit of bytes of messages that the process has not read; it reads messages at once unless it is stuck."""


class RemoteStream:
    """A `SpeechStream` that the engine's process makes. The process limits how much audio waits for the listener."""

    def __init__(self, number: int, sample_rate: int, send: Callable[[messages.ToProcess], None]) -> None:
        self._number, self.sample_rate, self._send = number, sample_rate, send
        self.verdict: Verdict | None = None
        self._events: asyncio.Queue[SpeechEvent | Verdict | VivavoceError] = asyncio.Queue()

    async def __aiter__(self) -> AsyncGenerator[SpeechEvent, None]:
        while not isinstance(event := await self._events.get(), (Verdict, VivavoceError)):
            yield event
            if isinstance(event, AudioChunk):
                self._send(messages.Heard(self._number, event.segment))
        if isinstance(event, VivavoceError):
            raise event

    async def push(self, text: str) -> None:
        check_length(text)
        if self.verdict is None:
            self._send(messages.MoreText(self._number, text))

    async def end(self) -> None:
        if self.verdict is None:
            self._send(messages.MoreText(self._number, None))

    def cancel(self) -> None:
        if self.verdict is None:
            self._send(messages.Cancel(self._number))
            while not self._events.empty():  # the listener has left and takes no more events
                self._events.get_nowait()
            self.on_end(Verdict(FinishReason.CANCELLED))

    def on_event(self, event: SpeechEvent) -> None:
        if self.verdict is None:
            self._events.put_nowait(event)

    def on_end(self, outcome: Verdict | VivavoceError) -> None:
        if self.verdict is not None:
            return
        if isinstance(outcome, RequestCancelled):
            # The server did not cancel this request: the process is ending, and the speech is incomplete.
            outcome = EngineStopped("engine: its process gave the request up; ask again in some seconds")
        self._events.put_nowait(outcome)
        if isinstance(outcome, VivavoceError):
            outcome = Verdict(FinishReason.ERROR, error=str(outcome), error_code=outcome.code)
        self.verdict = outcome


class EngineClient:
    """The `SpeechBackend` of one engine process; made and used in one event loop.

    command: starts the process, with the socket's file descriptor as an additional last argument; name: the engine's
    name in logs, "" for a single engine; variables: added to the environment that the process inherits.
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
        self._idle = asyncio.Event()
        """Set while no request runs and no question waits for its answer."""
        self._idle.set()
        self._writer: asyncio.StreamWriter | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._about: ModelInfo | None = None
        self.stuck = False
        self.voice_store = "ok"
        self._can_speak = asyncio.Event()
        self.capacity = 1
        """Number of streams that the engine keeps up with, by its own estimate; 1 until the first health check."""
        self._starts = 0
        self._begun_with = settings
        """The settings with which the current process was started; `_settings` may have changed since."""
        self._first_start_s: float | None = None
        """Seconds that the first process took to get ready; None until it is ready."""
        self._first: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keeper: asyncio.Task[None] | None = None

    async def start(self, about: ModelInfo | None = None) -> None:
        """Wait until the process has loaded the model. VivavoceError: the model cannot be loaded.

        about: the model's description, if another process has loaded the model; then a failed start is tried again.
        """
        self._about = about
        self._keeper = asyncio.ensure_future(self._keep())
        await self._first

    async def reload(self, voices: VoicesSection, logging: LoggingSection, lexicons: Lexicons | None) -> None:
        """Send settings that a running process can change (`ModelService.reload`), and keep them for new processes."""
        self._settings = self._settings._replace(voices=voices, logging=logging, lexicons=lexicons)
        if self._can_speak.is_set():
            await self._call("reload", voices, logging, lexicons)

    async def room_beside(self, memory_gb: float | None) -> str:
        return cast(str, await self._call("room_beside", memory_gb))

    @property
    def about(self) -> ModelInfo:
        if self._about is None:
            raise _not_ready()
        return self._about

    @property
    def ready(self) -> bool:
        return self._can_speak.is_set() and not self.stuck

    @property
    def active(self) -> int:
        """Number of current streams, including streams that the process has not confirmed yet."""
        return len(self._streams)

    async def until_idle(self) -> None:
        """Wait until all requests have ended and the process has answered all calls, including health checks."""
        await self._idle.wait()

    @property
    def process_id(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def speak(self, request: SpeechRequest) -> RemoteStream:
        number = next(self._numbers)
        stream = self._streams[number] = RemoteStream(number, self.about.sample_rate, self._send)
        self._note_work()
        try:
            await self._ask(messages.Speak(number, request))
        except BaseException as error:
            self._streams.pop(number, None)  # missing already if the process has ended
            self._note_work()
            if isinstance(error, asyncio.CancelledError):
                self._send(messages.Cancel(number))
            raise
        return stream

    async def normalize(self, request: SpeechRequest) -> NormalizedText:
        return cast(NormalizedText, await self._call("normalize", request))

    async def voices(self, owner: str) -> list[VoiceSummary]:
        return cast(list[VoiceSummary], await self._call("voices", owner))

    async def add_voice(
        self, owner: str, name: str, recording: Recording, **options: Unpack[VoiceOptions]
    ) -> VoiceSummary:
        return cast(VoiceSummary, await self._call("add_voice", owner, name, recording, **options))

    async def remove_voice(self, owner: str, name: str) -> None:
        await self._call("remove_voice", owner, name)

    @property
    def added_adapters(self) -> tuple[tuple[str, str], ...]:
        """Names and folders of the adapters that were added while the engine ran."""
        return self._settings.adapters

    async def adapters(self) -> tuple[AdapterInfo, ...]:
        return cast(tuple[AdapterInfo, ...], await self._call("adapters"))

    async def add_adapter(self, name: str, folder: str) -> AdapterInfo:
        info = cast(AdapterInfo, await self._call("add_adapter", name, folder))
        self._settings = self._settings._replace(adapters=(*self._settings.adapters, (name, folder)))
        return info

    async def remove_adapter(self, name: str) -> None:
        await self._call("remove_adapter", name)
        model, later = self._settings.model, self._settings.adapters
        left = {one: folder for one, folder in model.adapters.items() if one != name}
        self._settings = self._settings._replace(
            model=model.model_copy(update={"adapters": left}), adapters=tuple(one for one in later if one[0] != name)
        )

    async def statistics(self) -> BackendStatistics | None:
        statistics: BackendStatistics = await self._call("statistics")
        return replace(  # with the figures that only this process has
            statistics,
            voice_store=self.voice_store,
            streams=len(self._streams),
            capacity=self.capacity,
            starts=self._starts,
        )

    async def close(self, why: str = "server: it is shutting down; ask another one, or again in some seconds") -> None:
        """End the process; requests that still run end with EngineStopped and the message `why`."""
        if not self.ready and self._process is not None:
            self._process.kill()  # it loads the model or is stuck, and does not read its closed socket
        self._can_speak.clear()  # later requests would wait for ever
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper
        await self._end_process()
        self._lose_all(EngineStopped(why))

    async def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        return await self._ask(messages.MethodCall(next(self._numbers), method, arguments, options))

    async def _ask(self, question: messages.Question) -> Any:
        if not self._can_speak.is_set():
            raise _not_ready()
        unsent = 0 if self._writer is None else self._writer.transport.get_write_buffer_size()
        if not isinstance(question, messages.Ping) and (self.stuck or unsent > MOST_UNSENT_BYTES):
            trouble = "does not answer" if self.stuck else "takes no requests"
            raise EngineStopped(f"engine: the engine's process {trouble} just now; ask again in some seconds")
        answer = self._questions[question.number] = asyncio.get_running_loop().create_future()
        self._note_work()
        try:
            self._send(question)
            return await answer
        finally:
            self._questions.pop(question.number, None)
            self._note_work()

    def _note_work(self) -> None:
        if self._streams or self._questions:
            self._idle.clear()
        else:
            self._idle.set()

    def _send(self, message: messages.ToProcess | EngineProcessSettings) -> None:
        """Send a message to the process. If it has ended, the message is lost, and `_lose_all` tells the sender."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(framed(message))

    async def _keep(self) -> None:
        pause_s, failures, now = PAUSES_S[0], 0, asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(pause_s)
            began = now()
            was_ready, ending = await self._run_one()
            if not self._first.done():
                lost = EngineStopped(f"engine: its process has ended ({ending}) before it could speak")
                self._first.set_exception(lost)
            if not was_ready and self._about is None:
                return
            failures = 0 if was_ready and now() - began >= STEADY_S else failures + 1
            pause_s = PAUSES_S[min(max(0, failures - was_ready), len(PAUSES_S) - 1)]
            fields = {"name": self._name and f" of {self._name}", "ending": ending, "pause_s": pause_s}
            log.error("engine ended: its process%(name)s (%(ending)s) is started again in %(pause_s)g s", fields)

    async def _run_one(self) -> tuple[bool, str]:
        """Run one process to its end; return whether it got ready, and how it ended, in words."""
        try:
            reader = await self._begin()
        except OSError as error:  # out of memory or file descriptors; that may pass
            await self._end_process()
            return False, f"it cannot be begun: {error}"
        pulse = asyncio.ensure_future(self._watch())
        try:
            while (message := await read_message(reader)) is not None:
                self._take(message)
        except Exception:  # the rest of the stream cannot be read
            log.exception("engine protocol error: killing its process")
            self._kill()
        finally:
            pulse.cancel()
        was_ready, self.stuck = self._can_speak.is_set(), False
        self._can_speak.clear()
        ending = await self._end_process()
        self._lose_all(EngineStopped(f"engine: its process has ended ({ending}) and is started again; ask again soon"))
        return was_ready, ending

    async def _watch(self) -> None:
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
                self.voice_store, self.capacity = await self._pulse()
                if self.voice_store != before:
                    state = "is in order again" if self.voice_store == "ok" else self.voice_store
                    log.warning("voice store: %(state)s", {"state": state.removeprefix("voice store: ")})
        except (TimeoutError, asyncio.TimeoutError):
            fields = {"trouble": trouble, "seconds": limit_s}
            log.error("engine stuck: its process has not %(trouble)s for %(seconds)g s; killing it", fields)
            self._kill()
        except EngineStopped:
            return

    async def _pulse(self) -> messages.Pulse:
        """Make a health check, and return the answer. Raises TimeoutError if no answer comes within STUCK_S."""
        asking = asyncio.ensure_future(self._ask(messages.Ping(next(self._numbers))))
        try:
            # Wait in steps: if this process itself was suspended, the answer has arrived after the first step.
            for step in range(round(STUCK_S / PULSE_S)):
                await asyncio.wait((asking,), timeout=PULSE_S)
                if asking.done():
                    self.stuck = False
                    return cast(messages.Pulse, await asking)
                if not self.stuck and (step + 1) * PULSE_S >= LATE_S:
                    self.stuck = True
                    log.warning(
                        "engine late: no answer for %(seconds)g s; it gets no requests until it answers",
                        {"seconds": LATE_S},
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
                    start_new_session=True,  # Ctrl-C goes to the server only, which lets requests finish
                )
            self._starts += 1
            reader, self._writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        self._begun_with = self._settings
        self._send(self._settings)
        return reader

    def _take(self, message: messages.FromProcess) -> None:
        match message:
            case messages.Opening(_, protocol) if protocol != messages.PROTOCOL:
                self._refuse_start(
                    EngineStopped("engine: its code is of another version than the server's; restart the server")
                )
                self._kill()
            case messages.Opening(ModelInfo() as about):
                self._about = about
                self._can_speak.set()
                if self._settings is not self._begun_with:
                    now = self._settings
                    changed = now.voices, now.logging, now.lexicons
                    self._send(messages.MethodCall(next(self._numbers), "reload", changed, {}))
                name = {"engine": self._name} if self._name else {}
                log_event(log, logging.INFO, "engine ready", process=self.process_id, starts=self._starts, **name)
                if not self._first.done():
                    self._first.set_result(None)
            case messages.Opening(VivavoceError() as error):
                self._refuse_start(error)
            case messages.Answer(number, value):
                self._answer(number, value)
            case messages.Event(number, event):
                if number in self._streams:  # otherwise the request was cancelled
                    self._streams[number].on_event(event)
            case messages.End(number, outcome):
                if number in self._streams:
                    self._streams.pop(number).on_end(outcome)
                    self._note_work()
            case _:
                raise TypeError(f"{type(message).__name__} is not a message of the engine's process")

    def _refuse_start(self, error: VivavoceError) -> None:
        if self._first.done():
            log.error("engine not started: %(error)s", {"error": error})
        else:
            self._first.set_exception(error)

    def _answer(self, number: int, value: Any) -> None:
        question = self._questions.get(number)
        if question is None or question.done():
            return
        if isinstance(value, VivavoceError):
            question.set_exception(value)
        else:
            question.set_result(value)

    def _lose_all(self, error: VivavoceError) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.on_end(error)
        for number in list(self._questions):
            self._answer(number, error)
        self._note_work()

    async def _end_process(self) -> str:
        """Wait for the process to end, or kill it; return how it ended, in words."""
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
        if code is None:  # blocked in a driver; its requests must not wait for it
            return "it does not end"
        self._process = None  # not earlier: until the process has ended, `close` needs it
        # A real-time signal has no name.
        known = {-number.value: number.name for number in signal.Signals}
        return f"exit {code}" if code >= 0 else f"signal {known.get(code, -code)}"


def _not_ready() -> EngineStopped:
    return EngineStopped("engine: it is starting; ask again in some seconds")
