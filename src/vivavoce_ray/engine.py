"""A deployment of Ray Serve whose replicas hold an engine each, and how texts that arrive reach them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from vivavoce.engine_process.client import EngineClient
from vivavoce.engine_process.messages import EngineProcessSettings
from vivavoce.errors import EngineStopped, VivavoceError
from vivavoce.frontend.speech import SpeechEvent, SpeechRequest, Verdict
from vivavoce.frontend.speech_backend import ModelInfo
from vivavoce.logs import configure


class TextMailbox:
    """An actor of each server: texts that arrive, by the id of their stream, until its engine takes them.

    Serve routes each call anew, and none to a replica that drains; a text has to reach the engine that it began at.
    """

    def __init__(self) -> None:
        self._texts: defaultdict[str, asyncio.Queue[str | None]] = defaultdict(asyncio.Queue)

    async def put(self, stream_id: str, piece: str | None) -> None:
        """More of a text; None: all of it has come."""
        self._texts[stream_id].put_nowait(piece)

    async def take(self, stream_id: str) -> str | None:
        """The next piece."""
        return await self._texts[stream_id].get()

    async def forget(self, stream_id: str) -> None:
        """Its stream has ended."""
        self._texts.pop(stream_id, asyncio.Queue()).put_nowait(None)  # whoever waits for more gets the end


class EngineReplica:
    """One replica. Errors are sent as values: Ray would wrap those that are raised, and log where they come from."""

    def __init__(self, settings: EngineProcessSettings) -> None:
        from ray import serve

        configure(settings.logging.format, settings.logging.level, log_text=settings.logging.log_text)
        self._name: str = serve.get_replica_context().replica_id.unique_id
        self._engine = EngineClient(settings, name=self._name)
        self._starting = asyncio.ensure_future(self._engine.start())

    async def speak(
        self, key: bytes | None, avoid: frozenset[str], request: SpeechRequest, box: Any, stream_id: str
    ) -> AsyncIterator[tuple[str, int | VivavoceError] | SpeechEvent | Verdict | VivavoceError]:
        """Its name with the sample rate or a refusal, then events, then the end.

        key, avoid: see `HeadroomRouter`; box, stream_id: where the text comes from, if it arrives.
        """
        try:
            stream = await self._engine.speak(request)
        except VivavoceError as refusal:
            yield self._name, refusal
            return
        feeding = asyncio.ensure_future(_feed(stream, box, stream_id)) if request.text is None else None
        try:
            yield self._name, stream.sample_rate
            async for event in stream:
                yield event
            if stream.verdict is not None:
                yield stream.verdict
        except VivavoceError as failure:
            yield failure
        finally:
            stream.cancel()
            if feeding is not None:
                feeding.cancel()

    async def call(self, method: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What a method of `Speaker` returns or raises."""
        try:
            return await getattr(self._engine, method)(*given, **named)
        except VivavoceError as error:
            return error

    async def state(self) -> tuple[ModelInfo, bool, str]:
        """About its model, whether it is ready, and its voice store; see `Speaker`."""
        return self._engine.about, self._engine.ready, self._engine.voice_store

    def record_routing_stats(self) -> dict[str, int]:
        """For the router."""
        return {"ready": self._engine.ready, **self.record_autoscaling_stats()}

    def record_autoscaling_stats(self) -> dict[str, int]:
        """For the policy."""
        return {"streams": self._engine.load.streams, "capacity": self._engine.load.capacity}

    async def check_health(self) -> None:
        """Serve asks before it sends anything, and then at times: three failures, and another replica is begun."""
        await asyncio.shield(self._starting)
        if not self._engine.ready:
            raise EngineStopped("engine: it takes no requests now; it is started again, or replaced if that lasts")

    async def __del__(self) -> None:
        await self._engine.close()


async def _feed(stream: Any, box: Any, stream_id: str) -> None:
    """Bring a text that arrives to the engine; without its box it has no listener either."""
    from ray.exceptions import RayError

    with suppress(RayError):
        while (piece := await box.take.remote(stream_id)) is not None:
            await stream.push(piece)
        await stream.end()
        return
    stream.cancel()
