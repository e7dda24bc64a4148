"""A speaker over several engines, each in a process of its own; `routing` says which of them is asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Set
from typing import TypeVar

from vivavoce.engine.devices import devices_of, seen_alone
from vivavoce.engine.request import AudioChunk
from vivavoce.engine.routing import is_retryable, order, shortest_wait, voice_key
from vivavoce.engine_process.client import EngineClient, RemoteStream
from vivavoce.engine_process.messages import EngineProcessSettings
from vivavoce.errors import EngineStopped, Overloaded, VivavoceError
from vivavoce.frontend.speech import FinishReason, Recording, SpeechEvent, SpeechRequest, Verdict
from vivavoce.frontend.speech_backend import BackendStatistics, ModelInfo, SpeechStream
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce_textnorm import NormalizedText

log = logging.getLogger(__name__)

Result = TypeVar("Result")
TakenIn = Callable[[SpeechRequest, Set[str], tuple[VivavoceError, ...]], Awaitable[tuple[str, SpeechStream]]]
MOST_LOST = 2
"""Engines that may end under one request: one that ends all that take it must not end a whole fleet."""


def open_engines(settings: EngineProcessSettings) -> EngineClient | EngineFleet:
    """One engine, or as many as the settings say; none is started yet. Errors as `devices_of`.

    Engines that share a device keep the setting that says how many they are: each takes its share of the threads.
    """
    model = settings.model
    devices = devices_of(model.gpus, model.engines, model.device)
    engines = {}
    for place, device in enumerate(devices):
        name = device if model.gpus is not None else str(place) if len(devices) > 1 else ""
        seen_as, variables = (device, {}) if model.gpus is None else seen_alone(device)
        own = settings._replace(model=model.model_copy(update={"device": seen_as, "gpus": None}))
        engines[name] = EngineClient(own, name=name, variables=variables)
    return EngineFleet(engines) if len(engines) > 1 else next(iter(engines.values()))


class FleetStream:
    """See `SpeechStream`. If its engine ends before any of its audio is taken, another one speaks the same request.

    Until then what is pushed is kept, and segments are told with the first audio: another engine tells its own.
    """

    def __init__(self, taken_in: TakenIn, request: SpeechRequest, sample_rate: int) -> None:
        """taken_in: as `EngineFleet.taken_in`; its streams' `push` and `end` do not wait."""
        self._taken_in, self._request, self.sample_rate = taken_in, request, sample_rate
        self._stream: SpeechStream
        self._taken_by: set[str] = set()
        """The engine that speaks, and those that have ended before."""
        self._pieces: list[str | None] | None = []
        """What was pushed, None at its end; no list: it sounds, and stays where it is."""
        self.verdict: Verdict | None = None
        """See `SpeechStream`."""

    async def begin(self, *refusals: VivavoceError) -> None:
        """Find an engine that takes it and had not done so before; errors as in `Speaker.speak`, or of `refusals`."""
        name, self._stream = await self._taken_in(self._request, self._taken_by, refusals)
        self._taken_by.add(name)
        for piece in self._pieces or ():  # no other comes in between: nothing here waits
            await (self._stream.end() if piece is None else self._stream.push(piece))
        if self.verdict is not None:  # it was cancelled meanwhile
            self._stream.cancel()

    async def __aiter__(self) -> AsyncIterator[SpeechEvent]:
        """See `SpeechStream`."""
        going = True
        while going:
            try:
                async for event in self._events():
                    yield event
                going = False
            except VivavoceError as error:
                if self.verdict is not None:
                    return  # it was cancelled, and nobody listens
                stays = self._pieces is None or len(self._taken_by) >= MOST_LOST
                try:
                    if stays or not isinstance(error, EngineStopped):
                        raise
                    await self.begin(error)
                    log.warning("request moved: another engine speaks it; %(error)s", {"error": error})
                except VivavoceError as last:
                    self.verdict = Verdict(FinishReason.ERROR, error=str(last), error_code=last.code)
                    raise
        self.verdict = self.verdict or self._stream.verdict

    async def _events(self) -> AsyncIterator[SpeechEvent]:
        held: list[SpeechEvent] = []
        async for event in self._stream:
            held.append(event)
            if isinstance(event, AudioChunk) and self._pieces is not None:
                ended = self._stream.verdict
                if ended is not None and ended.error_code == EngineStopped.code:
                    raise EngineStopped(ended.error or "")  # rather the whole from another engine than a beginning
                self._pieces = None
            if self._pieces is None:
                for one in held:
                    yield one
                held.clear()
        for one in held:
            yield one

    async def push(self, text: str) -> None:
        """See `SpeechStream`."""
        await self._stream.push(text)
        if self._pieces is not None:
            self._pieces.append(text)

    async def end(self) -> None:
        """See `SpeechStream`."""
        await self._stream.end()
        if self._pieces is not None:
            self._pieces.append(None)

    def cancel(self) -> None:
        """See `SpeechStream`."""
        self._stream.cancel()
        self.verdict = self.verdict or Verdict(FinishReason.CANCELLED)


class EngineFleet:
    """See `Speaker`; made and used in one event loop. engines: by their names, in the order in which they start.

    All read and write the same store of voices, and look there for each request: what is added or removed through one
    is seen by all.
    """

    def __init__(self, engines: Mapping[str, EngineClient]) -> None:
        self.engines = engines
        """See `engines_of`."""
        self._first = next(iter(engines.values()))
        self._starting: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the first engine and wait until it can speak; then the others begin to start, all at once.

        VivavoceError: the first one cannot. It may have a model to download and kernels to compile, which the others
        then find. One of them that cannot begin is logged and started again: there are engines to speak without it.
        """
        await self._first.start()
        self._starting = [asyncio.ensure_future(self._start(name)) for name in list(self.engines)[1:]]

    async def _start(self, name: str) -> None:
        try:
            await self.engines[name].start(self._first.about)
        except VivavoceError as error:
            log.error("engine not started: %(name)s: %(error)s", {"name": name, "error": error})

    @property
    def about(self) -> ModelInfo:
        """See `Speaker`."""
        return self._first.about

    @property
    def ready(self) -> bool:
        """See `Speaker`: one of the engines does."""
        return any(one.ready for one in self.engines.values())

    @property
    def stuck(self) -> bool:
        """See `Speaker`."""
        return not self.ready and any(one.stuck for one in self.engines.values())

    @property
    def voice_store(self) -> str:
        """See `Speaker`."""
        states = (one.voice_store for one in self.engines.values() if one.ready)
        return next((state for state in states if state != "ok"), "ok")

    async def speak(self, request: SpeechRequest) -> FleetStream:
        """See `Speaker`; Overloaded: all engines refuse, and the shortest wait that one of them asks for."""
        stream = FleetStream(self.taken_in, request, self.about.sample_rate)
        await stream.begin()
        return stream

    async def taken_in(
        self, request: SpeechRequest, taken_by: Set[str], refusals: tuple[VivavoceError, ...]
    ) -> tuple[str, RemoteStream]:
        """The engine that takes a request, and its stream; taken_by: engines that are not asked; errors as `begin`."""
        key = voice_key(request.owner, request.voice)

        async def ask(engine: EngineClient) -> tuple[str, RemoteStream]:
            return engine.load.name, await engine.speak(request)

        return await self._asked(ask, key, taken_by=taken_by, refusals=refusals)

    async def normalize(self, request: SpeechRequest) -> NormalizedText:
        """See `Speaker`."""
        return await self._asked(lambda engine: engine.normalize(request))

    async def voices(self, owner: str) -> list[VoiceSummary]:
        """See `Speaker`."""
        return await self._asked(lambda engine: engine.voices(owner))

    async def add_voice(
        self, owner: str, name: str, recording: Recording, *, description: str = "", replace: bool = False
    ) -> VoiceSummary:
        """See `Speaker`."""

        def add(engine: EngineClient) -> Awaitable[VoiceSummary]:
            return engine.add_voice(owner, name, recording, description=description, replace=replace)

        return await self._asked(add, voice_key(owner, recording), _is_full)

    async def remove_voice(self, owner: str, name: str) -> None:
        """See `Speaker`."""
        await self._asked(lambda engine: engine.remove_voice(owner, name), None, _is_full)

    async def statistics(self) -> BackendStatistics | None:
        """See `Speaker`: None, as each engine has its own."""
        return None

    async def close(self) -> None:
        """End all processes, and what they still speak."""
        for one in self._starting:
            one.cancel()
        await asyncio.gather(*(one.close() for one in self.engines.values()))

    async def _asked(
        self,
        ask: Callable[[EngineClient], Awaitable[Result]],
        key: bytes | None = None,
        elsewhere: Callable[[VivavoceError], bool] = is_retryable,
        *,
        taken_by: Set[str] = frozenset(),
        refusals: tuple[VivavoceError, ...] = (),
    ) -> Result:
        """What the first engine answers that does not refuse; elsewhere: which refusals send a request to the next."""
        for load in order([one.load for one in self.engines.values()], key):
            try:
                if load.name not in taken_by:
                    return await ask(self.engines[load.name])
            except VivavoceError as refusal:
                if not elsewhere(refusal):
                    raise
                refusals = (*refusals, refusal)
        raise shortest_wait(refusals or (EngineStopped("engine: all of them are starting; ask again in some seconds"),))


def _is_full(refusal: VivavoceError) -> bool:
    """What an engine was at when it ended may be done: nobody else does that again."""
    return isinstance(refusal, Overloaded)
