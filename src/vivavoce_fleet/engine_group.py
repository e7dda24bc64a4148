"""Several engines as one, each in a process of its own; texts and voices stay in the calling process.

Python runs one thread at a time, and launching the batches of one fast GPU takes most of its time: two engines in one
process would wait for each other. `main` runs an engine's process; its argument is the file descriptor of its socket.
"""

from __future__ import annotations

import asyncio
import io
import itertools
import os
import pickle
import socket
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial, reduce
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from vivavoce.child import ignore_signals, python_command
from vivavoce.engine.adapters import AdapterInfo
from vivavoce.engine.engine import Engine
from vivavoce.engine.handle import ArrivingText, Handle, More, Outbox, RequestResult
from vivavoce.engine.loop import LEAVE_S
from vivavoce.engine.request import AudioChunk, Conditioning, EngineRequest, InputMode
from vivavoce.engine.statistics import StatisticsSnapshot
from vivavoce.errors import EngineStopped, StageFailed, VivavoceError
from vivavoce.models.lm.text_attention import TextHeads
from vivavoce_fleet.devices import seen_alone
from vivavoce_fleet.group_messages import (
    CancelRequest,
    Ended,
    EngineAnswer,
    EngineCall,
    Forget,
    Leave,
    Made,
    SentText,
    SentVoice,
    Submit,
    VoicePickler,
    VoiceUnpickler,
    Wanted,
)
from vivavoce_fleet.routing import EngineLoad, is_retryable, order, shortest_wait

_OPENING = 0
"""Number of an engine's first message. The message contains the engine's slots, or the error if it did not load."""
_GONE = "engine: its process has ended, and its requests are lost; ask again, another engine then speaks"


class RemoteEngine:
    """An engine in another process; any thread may use it. If the process ends, its requests end with EngineStopped."""

    def __init__(self, open_engine: Callable[[], Engine], name: str, variables: Mapping[str, str]) -> None:
        """open_engine: is pickled and called in the process; variables: added to the environment of the process."""
        self._name, self._numbers, self._home = name, itertools.count(1), os.getpid()
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
        self._send_bytes(pickle.dumps(open_engine, pickle.HIGHEST_PROTOCOL))
        threading.Thread(target=self._read, name="vivavoce-engine", daemon=True).start()

    @property
    def load(self) -> EngineLoad:
        return EngineLoad(self._name, not self._gone, len(self._outboxes), self._capacity)

    def call(self, name: str, *arguments: Any) -> Future[Any]:
        """Call an engine's method, or read its property; return the result's future. EngineStopped: no process."""
        return self._ask(EngineCall(next(self._numbers), name, arguments))

    def _ask(self, message: EngineCall | Submit) -> Future[Any]:
        with self._state:
            if self._gone:
                raise EngineStopped(_GONE)
            answer = self._answers[message.number] = Future()
        self._send(message)
        return answer

    def submit(self, request: EngineRequest) -> Handle:
        number, outbox = next(self._numbers), Outbox[AudioChunk]()
        self._outboxes[number] = outbox
        try:
            self._ask(Submit(number, request)).result()
        except BaseException:
            self._outboxes.pop(number, None)
            raise

        def push(more: More) -> None:
            outbox.want_text(False)  # until the engine's process asks for text again
            self._send(SentText(number, more))
            outbox.text_sent(-1)

        return Handle(outbox, partial(self._send, CancelRequest(number)), push)

    def close(self, finish: bool = True) -> None:
        with suppress(EngineStopped):
            if finish:
                self.call("close").result()
        self._send(Leave()) if finish else self._process.kill()
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:  # a device that does not answer may block the process
            self._process.kill()
        self._connection.close()

    def _number_of(self, voice: Conditioning) -> int:
        """Return the voice's number; send the voice first if the process does not have it yet."""
        with self._state:
            if (number := self._voices.get(voice)) is None:
                number = self._voices[voice] = next(self._numbers)
                self._send_bytes(pickle.dumps(SentVoice(number, voice), pickle.HIGHEST_PROTOCOL))
                weakref.finalize(voice, self._send, Forget(number)).atexit = False
        return number

    def _send(self, message: object) -> None:
        written = io.BytesIO()
        VoicePickler(written, self._number_of).dump(message)
        self._send_bytes(written.getvalue())

    def _send_bytes(self, message: bytes) -> None:
        """Send or queue a message. Never wait for the lock: garbage collection may run this in the sending thread."""
        if os.getpid() != self._home:  # in a forked process the connection belongs to the parent
            return
        self._unsent.append(message)
        while self._unsent and self._sending.acquire(blocking=False):
            try:
                while self._unsent:
                    self._connection.send_bytes(self._unsent.popleft())
            except OSError:
                pass  # the process has ended; `_read` notices
            finally:
                self._sending.release()

    def _read(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                self._receive(pickle.loads(self._connection.recv_bytes()))
        with self._state:
            self._gone = True
        for answer in list(self._answers.values()):
            answer.set_exception(EngineStopped(_GONE))
        for outbox in list(self._outboxes.values()):
            outbox.end(RequestResult(EngineStopped(_GONE)))

    def _receive(self, message: object) -> None:
        match message:
            case EngineAnswer(number, Exception() as error):
                self._answers.pop(number).set_exception(error)
            case EngineAnswer(number, value):
                self._answers.pop(number).set_result(value)
            case Made(number, chunk) if number in self._outboxes:
                self._outboxes[number].put(chunk)
            case Wanted(number) if number in self._outboxes:
                self._outboxes[number].want_text(True)
            case Ended(number, result, capacity):
                self._capacity = capacity
                self._outboxes.pop(number).end(result)


@dataclass(frozen=True)
class DeviceInfo:
    """The device, precision and slots of an engine: the parts of `models` and `memory` that callers need."""

    device: torch.device
    dtype: torch.dtype
    slots: int = 0


class EngineGroup:
    """Several engines as one `EngineInterface`; `routing` chooses the engine of each request.

    An engine that has ended is not restarted; the other engines continue.
    """

    def __init__(self, engines: Mapping[str, tuple[Callable[[], Engine], dict[str, str]]], device: DeviceInfo) -> None:
        """Load the first engine, then all others at once, which find its compiled kernels. Raises the first error.

        engines: by name, the function that opens the engine, and the environment variables of its process.
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
            _kill(self._engines.values())
            raise
        self.models, self.memory = device, replace(device, slots=sum(slots))
        # Nothing else ends the processes of a group that is dropped without `close`.
        weakref.finalize(self, _kill, tuple(self._engines.values())).atexit = False

    def submit(self, request: EngineRequest) -> Handle:
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
        """Do nothing: each engine refuses requests by itself."""

    def warm_up(self, seconds: float = 3.0, streams: int | None = None) -> None:
        self._all("warm_up", seconds, streams)

    @property
    def text_heads(self) -> TextHeads | None:
        found: TextHeads | None = self._any("text_heads")
        return found

    @property
    def language_model_id(self) -> str:
        return str(self._any("language_model_id"))

    def find_heads(self, texts: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> TextHeads | None:
        found: TextHeads | None = self._any("find_heads", texts)
        return found

    def watch(self, heads: TextHeads | None) -> None:
        self._all("watch", heads)

    @property
    def adapters(self) -> tuple[AdapterInfo, ...]:
        found: tuple[AdapterInfo, ...] = self._any("adapters")
        return found

    def load_adapter(self, name: str, folder: str | Path) -> AdapterInfo:
        """Load an adapter as `Engine.load_adapter` does, in every engine, or in none if one of them refuses it."""
        done: list[RemoteEngine] = []
        try:
            for one in self._running():
                info: AdapterInfo = one.call("load_adapter", name, str(Path(folder).absolute())).result()
                done.append(one)
        except VivavoceError:
            for one in done:
                with suppress(VivavoceError):
                    one.call("remove_adapter", name).result()
            raise
        return info

    def remove_adapter(self, name: str) -> None:
        self._all("remove_adapter", name)

    @property
    def statistics(self) -> StatisticsSnapshot:
        return summed(self._all("statistics"))

    @property
    def costs(self) -> Any:
        return self._any("costs")

    def close(self) -> None:
        for one in self._engines.values():
            one.close()

    def _any(self, method: str, *arguments: object) -> Any:
        return self._running()[0].call(method, *arguments).result()

    def _all(self, method: str, *arguments: object) -> list[Any]:
        running = [one for one in self._engines.values() if one.load.ready]
        return [answer.result() for answer in [one.call(method, *arguments) for one in running]]

    def _running(self) -> list[RemoteEngine]:
        running = [one for one in self._engines.values() if one.load.ready]
        if not running:
            raise EngineStopped("engine: all processes have ended; load the model again")
        return running


def open_group(devices: Sequence[torch.device], dtype: torch.dtype, open_one: Callable[..., Engine]) -> EngineGroup:
    """Return a group with an engine for each device; a device that is listed twice gets two engines.

    open_one: opens an engine; its arguments are the device and `engines`, the number on this device. It is pickled.
    """
    engines = {}
    for index, device in enumerate(devices):
        seen_as, variables = seen_alone(str(device))
        opened = partial(open_one, torch.device(seen_as), engines=devices.count(device))
        engines[f"{index} {device}"] = opened, variables
    return EngineGroup(engines, DeviceInfo(devices[0], dtype))


def _kill(engines: Iterable[RemoteEngine]) -> None:
    for one in engines:
        one.close(finish=False)


class _Served:
    """The engine of this process, and the voices and texts that the calling process has sent."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._engine: Engine
        self._handles: dict[int, Handle] = {}
        self._voices: dict[int, Conditioning] = {}
        self._running: set[asyncio.Future[Any]] = set()
        """References to the running tasks: the event loop holds them weakly, so they could be collected."""

    async def serve(self) -> None:
        """Load the engine of the first message, then handle messages until the calling process has gone."""
        opened = await self._answer(_OPENING, await self._receive())
        if opened is None:
            return
        self._engine = opened
        while True:
            match await self._receive():
                case Leave():
                    return
                case EngineCall(number, name, arguments):
                    self._run(self._answer(number, partial(self._call, name, arguments)))
                case Submit(number, request):
                    self._run(self._speak(number, request))
                case SentVoice(number, voice):
                    self._voices[number] = voice
                case Forget(number):
                    self._voices.pop(number, None)
                case SentText(number, more) if number in self._handles:
                    self._take_text(number, more)
                case CancelRequest(number) if number in self._handles:
                    self._handles[number].cancel()

    async def _receive(self) -> Any:
        return VoiceUnpickler(await asyncio.to_thread(self._connection.recv_bytes), self._voices).load()

    def _send(self, message: EngineAnswer | Made | Wanted | Ended) -> None:
        self._connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def _run(self, work: Coroutine[Any, Any, Any]) -> None:
        running = asyncio.ensure_future(work)
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        found = getattr(self._engine, name)
        return found(*arguments) if callable(found) else found

    async def _answer(self, number: int, work: Callable[[], Any]) -> Any:
        made, told = None, None
        try:
            made = told = await asyncio.to_thread(work)
        except Exception as failure:
            told = _public(failure)
        self._send(EngineAnswer(number, told if number != _OPENING or made is None else made.memory.slots))
        return made

    async def _speak(self, number: int, request: EngineRequest) -> None:
        try:
            handle = self._handles[number] = self._engine.submit(request)
        except Exception as failure:
            self._send(EngineAnswer(number, _public(failure)))
            return
        self._send(EngineAnswer(number, None))
        if request.arrival is InputMode.TOKENS:
            self._run(self._tell_wanted(number, handle.text))
        with suppress(VivavoceError):  # the result brings the error
            async for chunk in handle:
                self._send(Made(number, chunk))
        self._send(Ended(number, handle.outcome, self._engine.capacity))
        del self._handles[number]

    async def _tell_wanted(self, number: int, text: ArrivingText) -> None:
        if await text.until_wanted():
            self._send(Wanted(number))

    def _take_text(self, number: int, more: More) -> None:
        text = self._handles[number].text
        try:
            if more is None:
                text.close()
            elif isinstance(more, Exception):
                text.fail(more)
            else:
                text.push(more)
                if isinstance(more, tuple):
                    self._run(self._tell_wanted(number, text))
        except VivavoceError as error:
            text.fail(error)


def _public(failure: Exception) -> VivavoceError:
    return failure if isinstance(failure, VivavoceError) else StageFailed(f"engine: {failure!r}; ask again")


def main() -> None:
    """Run an engine's process; it ends when the calling process has gone, or if the engine cannot be loaded."""
    ignore_signals()
    with suppress(EOFError, OSError):
        asyncio.run(_Served(Connection(int(sys.argv[1]))).serve())
    os._exit(0)  # a normal exit would wait for the engine's threads, which may never end


def summed(snapshots: Sequence[StatisticsSnapshot]) -> StatisticsSnapshot:
    """Return statistics of several engines together: each `maximum` is the largest; all other numbers are added."""

    def added(one: Any, other: Any, name: str = "") -> Any:
        if is_dataclass(one) and not isinstance(one, type):
            parts = {
                part.name: added(getattr(one, part.name), getattr(other, part.name), part.name) for part in fields(one)
            }
            return type(one)(**parts)
        if name == "maximum":
            return max(one, other)
        if name in ("bounds", "stage"):
            return one
        return type(one)(map(added, one, other)) if isinstance(one, (list, tuple)) else one + other

    return reduce(added, snapshots, StatisticsSnapshot())
