"""A deployment of Ray Serve with one engine in each replica, and the actor that brings streamed texts to them."""

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
    """An actor of each server that keeps streamed texts, by stream, until the engine takes them.

    Serve routes each call anew, and never to a replica that drains, but a text has to reach the engine of its stream.
    """

    def __init__(self) -> None:
        self._texts: defaultdict[str, asyncio.Queue[str | None]] = defaultdict(asyncio.Queue)

    async def put(self, stream_id: str, piece: str | None) -> None:
        """Add a piece; None: the end of the text."""
        self._texts[stream_id].put_nowait(piece)

    async def take(self, stream_id: str) -> str | None:
        return await self._texts[stream_id].get()

    async def forget(self, stream_id: str) -> None:
        """Drop a stream that has ended."""
        self._texts.pop(stream_id, asyncio.Queue()).put_nowait(None)  # a waiting `take` gets the end


class EngineReplica:
    """One replica. It sends errors as values, since Ray would wrap and log raised ones."""

    def __init__(self, settings: EngineProcessSettings) -> None:
        from ray import serve

        configure(settings.logging.format, settings.logging.level, log_text=settings.logging.log_text)
        self._name: str = serve.get_replica_context().replica_id.unique_id
        self._engine = EngineClient(settings, name=self._name)
        self._starting = asyncio.ensure_future(self._engine.start())

    async def speak(
        self, key: bytes | None, avoid: frozenset[str], request: SpeechRequest, mailbox: Any, stream_id: str
    ) -> AsyncIterator[tuple[str, int | VivavoceError] | SpeechEvent | Verdict | VivavoceError]:
        """First its name with the sample rate or a refusal, then events, then the end.

        key, avoid: for `HeadroomRouter`; mailbox, stream_id: the source of a streamed text.
        """
        try:
            stream = await self._engine.speak(request)
        except VivavoceError as refusal:
            yield self._name, refusal
            return
        feeding = asyncio.ensure_future(_feed(stream, mailbox, stream_id)) if request.text is None else None
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

    async def call(self, method: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Returns the result or the error of a method of the engine."""
        try:
            return await getattr(self._engine, method)(*arguments, **options)
        except VivavoceError as error:
            return error

    async def state(self) -> tuple[ModelInfo, bool, str]:
        return self._engine.about, self._engine.ready, self._engine.voice_store

    def record_routing_stats(self) -> dict[str, int]:
        return {"ready": self._engine.ready, **self.record_autoscaling_stats()}

    def record_autoscaling_stats(self) -> dict[str, int]:
        return {"streams": self._engine.load.streams, "capacity": self._engine.load.capacity}

    async def check_health(self) -> None:
        """Serve checks before the first request and then regularly; it replaces the replica after three failures."""
        await asyncio.shield(self._starting)
        if not self._engine.ready:
            raise EngineStopped("engine: it takes no requests now; it is started again, or replaced if that lasts")

    async def __del__(self) -> None:
        await self._engine.close()


async def _feed(stream: Any, mailbox: Any, stream_id: str) -> None:
    """Bring a streamed text to the engine; if the mailbox is lost, so is the listener."""
    from ray.exceptions import RayError

    with suppress(RayError):
        while (piece := await mailbox.take.remote(stream_id)) is not None:
            await stream.push(piece)
        await stream.end()
        return
    stream.cancel()
