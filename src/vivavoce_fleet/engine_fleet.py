"""A backend over several engines, each in a process of its own; `routing` orders them for each request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from typing_extensions import Unpack

from vivavoce.engine.adapters import AdapterInfo
from vivavoce.engine.request import AudioChunk
from vivavoce.engine_process.client import EngineClient
from vivavoce.engine_process.messages import EngineProcessSettings
from vivavoce.errors import EngineStopped, Overloaded, VivavoceError
from vivavoce.frontend.speech import FinishReason, Recording, SpeechEvent, SpeechRequest, Verdict
from vivavoce.frontend.speech_backend import BackendStatistics, ModelInfo, SpeechStream, VoiceOptions
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce_fleet.devices import devices_of, seen_alone
from vivavoce_fleet.routing import EngineLoad, is_retryable, order, shortest_wait, voice_key
from vivavoce_textnorm import NormalizedText

log = logging.getLogger(__name__)

Result = TypeVar("Result")
Submit = Callable[[SpeechRequest, set[Any], tuple[VivavoceError, ...]], Awaitable[SpeechStream]]
"""Sends a request to an engine that is not in the set, and adds the engine to the set. If all engines refuse, it raises
the refusal with the shortest wait, among the new refusals and those in the tuple."""
MOST_LOST = 2
"""Largest number of engines that one request may crash, so that it cannot crash a whole fleet."""


def open_engines(
    settings: EngineProcessSettings, of: str = "", adapters: tuple[tuple[str, str], ...] = ()
) -> EngineFleet:
    """Return a fleet of the engines that the settings describe, not started yet. Errors: see `devices_of`.

    adapters: names and folders of adapters beyond those of the settings.
    """
    return EngineFleet(make_engines(settings._replace(adapters=adapters), of))


def make_engines(settings: EngineProcessSettings, of: str = "") -> dict[str, EngineClient]:
    """Return the engines by name, in the order of their start; see `open_engines`.

    of: the model's name, if the server has several models; the names of its engines begin with it.
    Engines that share a device keep `model.engines`, so that each uses its share of the threads.
    """
    model = settings.model
    devices = devices_of(model.gpus, model.engines, model.device)
    engines = {}
    for index, device in enumerate(devices):
        own_name = device if model.gpus is not None else str(index) if len(devices) > 1 else ""
        name = "/".join(part for part in (of, own_name) if part)
        seen_as, variables = (device, {}) if model.gpus is None else seen_alone(device)
        own = settings._replace(model=model.model_copy(update={"device": seen_as, "gpus": None}))
        engines[name] = EngineClient(own, name=name, variables=variables)
    return engines


class FleetStream:
    """A `SpeechStream` that moves to another engine if its engine ends before the first audio.

    Until the first audio, it keeps pushed text and holds events back, because another engine sends events of its own.
    """

    def __init__(self, submit: Submit, request: SpeechRequest, sample_rate: int) -> None:
        """submit: sends the request to an engine; `push` and `end` of the stream it returns must not block."""
        self._submit, self._request, self.sample_rate = submit, request, sample_rate
        self._stream: SpeechStream
        self._used = set[Any]()
        """All engines that got the request: the engine that speaks, and those that ended before."""
        self._pieces: list[str | None] | None = []
        """The pushed pieces; a piece None is the text's end. After the first audio this is None: the request stays."""
        self.verdict: Verdict | None = None

    async def begin(self, *refusals: VivavoceError) -> None:
        """Send the request to an engine that did not get it before. Errors of `SpeechBackend.speak`, or `refusals`."""
        self._stream = await self._submit(self._request, self._used, refusals)
        for piece in self._pieces or ():  # `push` and `end` do not wait, so no other piece comes in between
            await (self._stream.end() if piece is None else self._stream.push(piece))
        if self.verdict is not None:  # `cancel` was called while this waited for an engine
            self._stream.cancel()

    async def __aiter__(self) -> AsyncGenerator[SpeechEvent, None]:
        while True:
            waiting: list[SpeechEvent] = []
            try:
                async with aclosing(aiter(self._stream)) as events:
                    async for event in events:
                        waiting.append(event)
                        if isinstance(event, AudioChunk) and self._pieces is not None:
                            self._stay_here()
                        if self._pieces is None:
                            for one in waiting:
                                yield one
                            waiting.clear()
                for one in waiting:
                    yield one
                break
            except VivavoceError as error:
                if self.verdict is not None:
                    return  # the client has cancelled it
                await self._move(error)
        self.verdict = self.verdict or self._stream.verdict

    def _stay_here(self) -> None:
        """Keep the request at its engine. EngineStopped: the engine has ended; another must speak the whole text."""
        ended = self._stream.verdict
        if ended is not None and ended.error_code == EngineStopped.code:
            raise EngineStopped(ended.error or "")
        self._pieces = None

    async def _move(self, error: VivavoceError) -> None:
        """Send the request to another engine; raise `error` if that is not allowed, or the last refusal."""
        try:
            if self._pieces is None or len(self._used) >= MOST_LOST or not isinstance(error, EngineStopped):
                raise error
            await self.begin(error)
        except VivavoceError as last:
            self.verdict = Verdict(FinishReason.ERROR, error=str(last), error_code=last.code)
            raise
        log.warning("request moved: another engine takes it; %(error)s", {"error": error})

    async def push(self, text: str) -> None:
        await self._stream.push(text)
        if self._pieces is not None:
            self._pieces.append(text)

    async def end(self) -> None:
        await self._stream.end()
        if self._pieces is not None:
            self._pieces.append(None)

    def cancel(self) -> None:
        self._stream.cancel()
        self.verdict = self.verdict or Verdict(FinishReason.CANCELLED)


class EngineFleet:
    """The `SpeechBackend` of one engine or several; used in one event loop.

    engines: by name, in the order of their start; a new engine of the same name may replace an engine. All engines use
    the same store of voices and read it for each request, so that they see each other's changes.
    """

    def __init__(self, engines: Mapping[str, EngineClient]) -> None:
        self.engines = dict(engines)
        self._starting: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Wait until the first engine is ready, then begin to start the others; VivavoceError: the first cannot start.

        The first engine may download a model and compile kernels, which the others then use.
        """
        await self._first.start()
        self._starting = [asyncio.ensure_future(self._start(name)) for name in list(self.engines)[1:]]

    async def _start(self, name: str) -> None:
        try:
            await self.engines[name].start(self._first.about)
        except VivavoceError as error:
            log.error("engine not started: %(name)s: %(error)s", {"name": name, "error": error})

    @property
    def _first(self) -> EngineClient:
        return next(iter(self.engines.values()))

    @property
    def about(self) -> ModelInfo:
        return next((one for one in self.engines.values() if one.ready), self._first).about

    @property
    def ready(self) -> bool:
        return any(one.ready for one in self.engines.values())

    @property
    def stuck(self) -> bool:
        return not self.ready and any(one.stuck for one in self.engines.values())

    @property
    def voice_store(self) -> str:
        states = (one.voice_store for one in self.engines.values() if one.ready)
        return next((state for state in states if state != "ok"), "ok")

    async def speak(self, request: SpeechRequest) -> FleetStream:
        stream = FleetStream(self._submit, request, self.about.sample_rate)
        await stream.begin()
        return stream

    async def normalize(self, request: SpeechRequest) -> NormalizedText:
        return await self._ask(lambda engine: engine.normalize(request))

    async def voices(self, owner: str) -> list[VoiceSummary]:
        return await self._ask(lambda engine: engine.voices(owner))

    async def add_voice(
        self, owner: str, name: str, recording: Recording, **options: Unpack[VoiceOptions]
    ) -> VoiceSummary:
        def add(engine: EngineClient) -> Awaitable[VoiceSummary]:
            return engine.add_voice(owner, name, recording, **options)

        return await self._ask(add, voice_key(owner, recording), _is_full)

    async def remove_voice(self, owner: str, name: str) -> None:
        await self._ask(lambda engine: engine.remove_voice(owner, name), None, _is_full)

    @property
    def added_adapters(self) -> tuple[tuple[str, str], ...]:
        """The adapters that were added while the server ran; all engines have the same."""
        return self._first.added_adapters

    async def adapters(self) -> tuple[AdapterInfo, ...]:
        return await self._ask(lambda engine: engine.adapters())

    async def add_adapter(self, name: str, folder: str) -> AdapterInfo:
        """Load an adapter into all engines or into none. EngineStopped: an engine is not ready."""
        done: list[EngineClient] = []
        try:
            for one in self._all_ready():
                info = await one.add_adapter(name, folder)
                done.append(one)
        except VivavoceError:
            for one in done:
                with suppress(VivavoceError):
                    await one.remove_adapter(name)
            raise
        return info

    async def remove_adapter(self, name: str) -> None:
        for one in self._all_ready():
            await one.remove_adapter(name)

    def _all_ready(self) -> list[EngineClient]:
        if not all(one.ready for one in self.engines.values()):
            raise EngineStopped("engine: not all of them are ready to change adapters; ask again in some seconds")
        return list(self.engines.values())

    async def statistics(self) -> BackendStatistics | None:
        """The statistics of a single engine, or None if there are several engines, because each has its own."""
        return await self._first.statistics() if len(self.engines) == 1 else None

    async def close(self) -> None:
        for one in self._starting:
            one.cancel()
        await asyncio.gather(*(one.close() for one in self.engines.values()))

    async def _submit(
        self, request: SpeechRequest, used: set[EngineClient], refusals: tuple[VivavoceError, ...]
    ) -> SpeechStream:
        key = voice_key(request.owner, request.voice)
        return await self._ask(lambda engine: engine.speak(request), key, used=used, refusals=refusals)

    async def _ask(
        self,
        question: Callable[[EngineClient], Awaitable[Result]],
        key: bytes | None = None,
        goes_on: Callable[[VivavoceError], bool] = is_retryable,
        *,
        used: set[EngineClient] | None = None,
        refusals: tuple[VivavoceError, ...] = (),
    ) -> Result:
        """Ask the engines one after another; return the first answer that is not a refusal.

        goes_on: whether to ask the next engine after a refusal. used: engines that are not asked; the engine that
        answers is added.
        """
        used = set() if used is None else used
        asked = set(used)
        while (engine := self._next(key, asked)) is not None:
            asked.add(engine)
            try:
                answer = await question(engine)
            except VivavoceError as refusal:
                if not goes_on(refusal):
                    raise
                refusals = (*refusals, refusal)
            else:
                used.add(engine)
                return answer
        raise shortest_wait(refusals or (EngineStopped("engine: all of them are starting; ask again in some seconds"),))

    def _next(self, key: bytes | None, asked: set[EngineClient]) -> EngineClient | None:
        """Return the next engine not in `asked`, or None. An engine that replaced an asked engine is not in `asked`."""
        loads = [EngineLoad(name, one.ready, one.active, one.capacity) for name, one in self.engines.items()]
        ready = [self.engines[load.name] for load in order(loads, key)]
        if len(self.engines) == 1:
            ready = [self._first]  # even if it is not ready: its error says why
        return next((one for one in ready if one not in asked), None)


def _is_full(refusal: VivavoceError) -> bool:
    """Return whether another engine may make the change; after EngineStopped, the ended engine may have made it."""
    return isinstance(refusal, Overloaded)
