"""Several engines as one, each in a process of its own; texts and voices stay in the process that asks.

The interpreter runs one thread at a time, and launching one fast GPU's batches takes most of it: two in one process
would wait for each other. `main` is such a process, with the number of its socket's file descriptor as its argument.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, cast

import torch

from vivavoce.child import python_command
from vivavoce.engine.engine import Engine
from vivavoce.engine.handle import ArrivingText, Handle, More, Outbox, Outcome
from vivavoce.engine.loop import LEAVE_S
from vivavoce.engine.request import AudioChunk, Conditioning, EngineRequest, InputMode, SegmentRequest
from vivavoce.engine.routing import EngineLoad, is_retryable, order, shortest_wait
from vivavoce.engine.statistics import StatisticsSnapshot, summed
from vivavoce.errors import EngineStopped, StageFailed, VivavoceError

_OPENING = 0
"""The number of what an engine answers when it is loaded: its slots, or why it cannot be."""
_GONE = "engine: its process has ended, and what it had to speak is lost; ask again: another one speaks then"


class RemoteEngine:
    """The end of one engine's process, for any thread. What it has to speak ends with it, by EngineStopped."""

    def __init__(self, open_engine: Callable[[], Engine], name: str, variables: Mapping[str, str]) -> None:
        """open_engine: is pickled and called there; variables: of its environment, beside this process's."""
        self._name, self._numbers = name, itertools.count(1)
        self._state, self._gone = threading.Lock(), False
        self._sending, self._unsent = threading.Lock(), deque[bytes]()
        self._answers: dict[int, Future[Any]] = {_OPENING: Future()}
        self._outboxes: dict[int, Outbox[AudioChunk]] = {}
        self._voices: weakref.WeakKeyDictionary[Conditioning, int] = weakref.WeakKeyDictionary()
        self._capacity = 1
        self.opened = self._answers[_OPENING]
        ours, theirs = socket.socketpair()
        with theirs:
            command = [*python_command(__name__), str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={**os.environ, **variables}
            )
        self._connection = Connection(ours.detach())
        self._send(open_engine)
        threading.Thread(target=self._read, name="vivavoce-engine", daemon=True).start()

    @property
    def load(self) -> EngineLoad:
        """See `routing`."""
        return EngineLoad(self._name, not self._gone, len(self._outboxes), self._capacity)

    def ask(self, kind: str, value: object, number: int | None = None) -> Future[Any]:
        """What it answers; "call": a method and its arguments, or a property and (). EngineStopped: it has ended."""
        number = number or next(self._numbers)
        with self._state:
            if self._gone:
                raise EngineStopped(_GONE)
            answer = self._answers[number] = Future()
        self._send((kind, number, value))
        return answer

    def submit(self, request: EngineRequest) -> Handle:
        """See `Engine.submit`; blocks for the answer."""
        number, outbox = next(self._numbers), Outbox[AudioChunk]()
        self._outboxes[number] = outbox
        try:
            self.ask("submit", replace(request, segments=tuple(map(self._named, request.segments))), number).result()
        except BaseException:
            self._outboxes.pop(number, None)
            raise

        def push(more: More) -> None:
            outbox.want_text(False)  # until it says so again
            self._send(("text", number, self._named(more) if isinstance(more, SegmentRequest) else more))
            outbox.text_sent(-1)

        def cancel() -> None:
            self._send(("cancel", number, None))

        return Handle(outbox, cancel, push)

    def close(self, finish: bool = True) -> None:
        """End, after what was asked for is finished."""
        with suppress(EngineStopped):
            if finish:
                self.ask("call", ("close", ())).result()
        self._send(("leave", 0, None)) if finish else self._process.kill()
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:  # a device that does not answer may hold it
            self._process.kill()
        self._connection.close()

    def _named(self, segment: SegmentRequest) -> SegmentRequest:
        """The same with a number for its voice, which is sent once for as long as it is in use."""
        voice = segment.conditioning
        with self._state:
            if (number := self._voices.get(voice)) is None:
                number = self._voices[voice] = next(self._numbers)
                self._send(("voice", number, voice))
                weakref.finalize(voice, self._send, ("forget", number, None)).atexit = False
        return replace(segment, conditioning=cast(Conditioning, number))

    def _send(self, message: object) -> None:
        """Never blocks for itself: garbage that is collected while it sends may have something to send, too."""
        self._unsent.append(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
        while self._unsent and self._sending.acquire(blocking=False):
            try:
                while self._unsent:
                    self._connection.send_bytes(self._unsent.popleft())
            except OSError:
                pass  # it has ended, which `_read` sees
            finally:
                self._sending.release()

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                kind, number, value = pickle.loads(self._connection.recv_bytes())
                outbox = self._outboxes.get(number)
                if kind == "answer":
                    answer = self._answers.pop(number)
                    answer.set_exception(value) if isinstance(value, Exception) else answer.set_result(value)
                elif outbox is not None and kind == "made":
                    outbox.put(value)
                elif outbox is not None and kind == "wanted":
                    outbox.want_text(True)
                elif kind == "end":
                    outcome, self._capacity = value
                    self._outboxes.pop(number).end(outcome)
        with self._state:
            self._gone = True
        for answer in list(self._answers.values()):
            answer.set_exception(EngineStopped(_GONE))
        for outbox in list(self._outboxes.values()):
            outbox.end(Outcome(EngineStopped(_GONE)))


@dataclass(frozen=True)
class Place:
    """Where engines are: as much of an engine's `models` and `memory` as speaking asks for."""

    device: torch.device
    dtype: torch.dtype
    slots: int = 0


class EngineGroup:
    """As much of an `Engine` as speaking asks for; a request is spoken by the engine that `routing` says.

    An engine that ends is not started again: the others go on.
    """

    def __init__(self, engines: Mapping[str, tuple[Callable[[], Engine], dict[str, str]]], place: Place) -> None:
        """Load the first one, then all others at once: they find what it has compiled. Errors as the first of them.

        engines: by name what opens each, and the variables of its process.
        """
        self._engines: dict[str, RemoteEngine] = {}
        slots: list[int] = []
        try:
            for name, (open_engine, variables) in engines.items():
                self._engines[name] = RemoteEngine(open_engine, name, variables)
                if not slots:
                    slots.append(self._engines[name].opened.result())
            slots += [one.opened.result() for one in list(self._engines.values())[1:]]
        except BaseException:
            for one in self._engines.values():
                one.close(finish=False)
            raise
        self.models, self.memory = place, replace(place, slots=sum(slots))

    def submit(self, request: EngineRequest) -> Handle:
        """See `Engine.submit`; Overloaded: all refuse."""
        voice = str(id(request.segments[0].conditioning)).encode() if request.segments else None
        refusals: list[VivavoceError] = []
        for load in order([one.load for one in self._engines.values()], voice):
            try:
                return self._engines[load.name].submit(request)
            except VivavoceError as refusal:
                if not is_retryable(refusal):
                    raise
                refusals.append(refusal)
        raise shortest_wait(refusals or [EngineStopped("engine: all processes have ended; load the model again")])

    def check_load(self, streaming: bool) -> None:
        """Nothing: only the engines know, and refuse by themselves."""

    def warm_up(self, seconds: float = 3.0, streams: int | None = None) -> None:
        """See `Engine.warm_up`; all at once."""
        self._all("warm_up", seconds, streams)

    @property
    def statistics(self) -> StatisticsSnapshot:
        """See `Engine`: the sums of those that run."""
        return summed(self._all("statistics"))

    @property
    def costs(self) -> Any:
        """See `Engine`: of the first that runs; they are taken to be alike."""
        return self._all("costs")[0]

    def close(self) -> None:
        """Finish what was asked for, and stop."""
        for one in self._engines.values():
            one.close()

    def _all(self, method: str, *arguments: object) -> list[Any]:
        running = [one for one in self._engines.values() if one.load.ready]
        return [answer.result() for answer in [one.ask("call", (method, arguments)) for one in running]]


class _Served:
    """The engine of this process, and what the other end has given it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._engine: Engine
        self._handles: dict[int, Handle] = {}
        self._voices: dict[int, Conditioning] = {}
        self._running: set[asyncio.Future[Any]] = set()
        """Tasks that nobody holds may be collected."""

    async def serve(self) -> None:
        """Load what the first message makes, then do what the others say until the other end has gone."""
        opened = await self._answer(_OPENING, await self._receive())
        if opened is None:
            return
        self._engine = opened
        while True:
            kind, number, value = await self._receive()
            if kind == "leave":
                return
            if kind == "call":
                self._run(self._answer(number, partial(self._call, *value)))
            elif kind == "submit":
                self._run(self._speak(number, value))
            elif kind == "voice":
                self._voices[number] = value
            elif kind == "forget":
                self._voices.pop(number, None)
            elif number in self._handles and kind == "text":
                self._take_text(number, value)
            elif number in self._handles:
                self._handles[number].cancel()

    async def _receive(self) -> Any:
        return pickle.loads(await asyncio.to_thread(self._connection.recv_bytes))

    def _send(self, *message: object) -> None:
        self._connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def _run(self, work: Coroutine[Any, Any, Any]) -> None:
        running = asyncio.ensure_future(work)
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    def _named(self, segment: SegmentRequest) -> SegmentRequest:
        return replace(segment, conditioning=self._voices[cast(int, segment.conditioning)])

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        found = getattr(self._engine, name)
        return found(*arguments) if callable(found) else found

    async def _answer(self, number: int, work: Callable[[], Any]) -> Any:
        made, told = None, None
        try:
            made = told = await asyncio.to_thread(work)
        except Exception as failure:
            told = failure if isinstance(failure, VivavoceError) else StageFailed(f"engine: {failure!r}; ask again")
        self._send("answer", number, told if number != _OPENING or made is None else made.memory.slots)
        return made

    async def _speak(self, number: int, request: EngineRequest) -> None:
        segments = tuple(map(self._named, request.segments))
        try:
            handle = self._handles[number] = self._engine.submit(replace(request, segments=segments))
        except VivavoceError as refusal:
            self._send("answer", number, refusal)
            return
        self._send("answer", number, None)
        if request.arrival is InputMode.TOKENS:
            self._run(self._tell_wanted(number, handle.text))
        with suppress(VivavoceError):  # the outcome has it
            async for chunk in handle:
                self._send("made", number, chunk)
        self._send("end", number, (handle.outcome, self._engine.capacity))
        del self._handles[number]

    async def _tell_wanted(self, number: int, text: ArrivingText) -> None:
        if await text.until_wanted():
            self._send("wanted", number, None)

    def _take_text(self, number: int, more: More) -> None:
        text = self._handles[number].text
        try:
            if more is None:
                text.close()
            elif isinstance(more, Exception):
                text.fail(more)
            else:
                text.push(self._named(more) if isinstance(more, SegmentRequest) else more)
                if isinstance(more, tuple):
                    self._run(self._tell_wanted(number, text))
        except VivavoceError as error:
            text.fail(error)


def main() -> None:
    """The process; it ends when the one that asks has gone, or could not be given an engine."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that asks
    with suppress(EOFError, OSError):
        asyncio.run(_Served(Connection(int(sys.argv[1]))).serve())
    os._exit(0)  # threads of an engine may never end
