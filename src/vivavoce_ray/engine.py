"""A deployment of Ray Serve with one engine in each replica, and an actor that passes streamed texts to the engines."""

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
    """An actor that queues the pieces of each streamed text until the stream's engine takes them.

    Calls of a replica cannot bring these pieces: Serve may route each call to another replica, and routes no call to a
    replica that drains."""

    def __init__(self) -> None:
        self._texts: defaultdict[str, asyncio.Queue[str | None]] = defaultdict(asyncio.Queue)

    async def put(self, stream_id: str, piece: str | None) -> None:
        """Add a piece of the text, or end the text with None."""
        self._texts[stream_id].put_nowait(piece)

    async def take(self, stream_id: str) -> str | None:
        return await self._texts[stream_id].get()

    async def forget(self, stream_id: str) -> None:
        self._texts.pop(stream_id, asyncio.Queue()).put_nowait(None)  # a waiting `take` gets the end


class EngineReplica:
    """One engine. Its methods return errors as values, because Ray wraps and logs raised errors."""

    def __init__(self, settings: EngineProcessSettings) -> None:
        from ray import serve

        configure(settings.logging.format, settings.logging.level, log_text=settings.logging.log_text)
        self._name: str = serve.get_replica_context().replica_id.unique_id
        self._engine = EngineClient(settings, name=self._name)
        self._starting = asyncio.ensure_future(self._engine.start())

    async def speak(
        self, key: bytes | None, avoid: frozenset[str], request: SpeechRequest, mailbox: Any, stream_id: str
    ) -> AsyncIterator[tuple[str, int | VivavoceError] | SpeechEvent | Verdict | VivavoceError]:
        """Yield (replica name, sample rate or error), then events and the verdict. key, avoid: for `HeadroomRouter`."""
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
        try:
            return await getattr(self._engine, method)(*arguments, **options)
        except VivavoceError as error:
            return error

    async def state(self) -> tuple[ModelInfo, bool, str]:
        return self._engine.about, self._engine.ready, self._engine.voice_store

    def record_routing_stats(self) -> dict[str, int]:
        return {"ready": self._engine.ready, **self.record_autoscaling_stats()}

    def record_autoscaling_stats(self) -> dict[str, int]:
        return {"streams": self._engine.active, "capacity": self._engine.capacity}

    async def check_health(self) -> None:
        """Raise EngineStopped if the engine is not ready. Serve calls this before the first request and then regularly,
        and replaces the replica after three failures."""
        await asyncio.shield(self._starting)
        if not self._engine.ready:
            raise EngineStopped("engine: it accepts no requests; it is restarted, or replaced if it stays so")

    async def __del__(self) -> None:
        await self._engine.close()


async def _feed(stream: Any, mailbox: Any, stream_id: str) -> None:
    """Pass a streamed text to the engine; cancel the stream if the mailbox is lost."""
    from ray.exceptions import RayError

    with suppress(RayError):
        while (piece := await mailbox.take.remote(stream_id)) is not None:
            await stream.push(piece)
        await stream.end()
        return
    stream.cancel()
