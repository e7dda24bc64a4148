"""A speaker whose engines are replicas of Ray Serve's deployments."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Sequence, Set
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from vivavoce.engine.routing import is_retryable, shortest_wait, voice_key
from vivavoce.engine_process.fleet import FleetStream
from vivavoce.errors import EngineStopped, VivavoceError
from vivavoce.frontend.speech import FinishReason, SpeechEvent, SpeechRequest, Verdict
from vivavoce.frontend.speech_backend import BackendStatistics, ModelInfo
from vivavoce.frontend.text.checks import check_text
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce_ray.engine import TextMailbox
from vivavoce_textnorm import NormalizedText

log = logging.getLogger(__name__)

AWAY = (RayError, RayServeException, TimeoutError, asyncio.TimeoutError)
"""What is raised where a replica, a node or a whole deployment is gone."""
TRIES = 3
"""Replicas of a pool that are asked for one request, the one with the most headroom first."""
ASK_S = 120.0
"""How long one may take to answer: longer than one that works does, with a voice, a text and a wait for room."""
PULSE_S, LATE_S = 1.0, 3.0
"""How often each pool is asked for its state, and how long its answer may take before it is taken for away."""


class _Stream:
    """See `SpeechStream`: a call to one replica, as an engine's process would give."""

    def __init__(self, calls: Any, sample_rate: int, box: Any, stream_id: str) -> None:
        self._calls, self.sample_rate, self._box, self._id = calls, sample_rate, box, stream_id
        self.verdict: Verdict | None = None

    async def __aiter__(self) -> AsyncIterator[SpeechEvent]:
        with suppress(*AWAY):
            async for item in self._calls:
                if isinstance(item, VivavoceError):
                    raise item
                if isinstance(item, Verdict):
                    self.verdict = self.verdict or item
                elif self.verdict is None:
                    yield item
        self._box.forget.remote(self._id)
        if self.verdict is None:
            raise _lost()

    async def push(self, text: str) -> None:
        check_text(text)
        self._box.put.remote(self._id, text)

    async def end(self) -> None:
        self._box.put.remote(self._id, None)

    def cancel(self) -> None:
        if self.verdict is None:
            self.verdict = Verdict(FinishReason.CANCELLED)
            self._calls.cancel()
            self._box.forget.remote(self._id)


class RayBackend:
    """See `Speaker`. One event loop's, and for as long as its process lives."""

    stuck = False
    """See `Speaker`: what does not answer is not ready."""

    def __init__(self, pools: Sequence[Any]) -> None:
        """pools: handles to deployments of `EngineReplica`, in the order in which they are asked."""
        self._pools = pools
        self._about: ModelInfo | None = None
        self._states: list[tuple[bool, str] | None] = [None] * len(pools)
        """Of each pool whether it is ready, and its voice store; None: it does not answer."""
        self._box = ray.remote(TextMailbox).options(num_cpus=0, max_restarts=-1, max_concurrency=100_000).remote()
        self._watching = [asyncio.ensure_future(self._watch(place)) for place in range(len(pools))]

    @property
    def about(self) -> ModelInfo:
        """See `Speaker`."""
        if self._about is None:
            raise EngineStopped("engine: it is starting; ask again in some seconds")
        return self._about

    @property
    def ready(self) -> bool:
        """See `Speaker`."""
        return any(state is not None and state[0] for state in self._states)

    @property
    def voice_store(self) -> str:
        """See `Speaker`."""
        return next((state[1] for state in self._states if state is not None and state[1] != "ok"), "ok")

    async def speak(self, request: SpeechRequest) -> FleetStream:
        """See `Speaker`."""
        stream = FleetStream(self.taken_in, request, self.about.sample_rate)
        await stream.begin()
        return stream

    async def taken_in(
        self, request: SpeechRequest, taken_by: Set[str], refusals: tuple[VivavoceError, ...]
    ) -> tuple[str, _Stream]:
        """See `FleetStream`."""
        stream_id, key = uuid.uuid4().hex, voice_key(request.owner, request.voice)
        for pool in self._there():
            avoid = frozenset(taken_by)
            for _ in range(TRIES):
                calls = pool.options(stream=True).speak.remote(key, avoid, request, self._box, stream_id)
                replica, said = await _first(calls)
                if isinstance(said, int):
                    return replica, _Stream(calls, said, self._box, stream_id)
                if not is_retryable(said):
                    raise said
                refusals = (*refusals, said)
                if replica in avoid:
                    break  # there is no other
                avoid |= {replica}
        raise shortest_wait(refusals or (_away(),))

    async def normalize(self, request: SpeechRequest) -> NormalizedText:
        """See `Speaker`."""
        reading: NormalizedText = await self._call("normalize", request)
        return reading

    async def voices(self, *given: Any) -> list[VoiceSummary]:
        """See `Speaker`, as for the next two."""
        return await self._call("voices", *given)

    async def add_voice(self, *given: Any, **named: Any) -> VoiceSummary:
        """All engines find it, as all have the same store."""
        return await self._call("add_voice", *given, **named)

    async def remove_voice(self, *given: Any) -> None:
        """None of them finds it any more."""
        await self._call("remove_voice", *given)

    async def statistics(self) -> BackendStatistics | None:
        """None: those of one engine would mislead, and Ray's metrics name each."""
        return None

    def _there(self) -> list[Any]:
        """The pools that answer."""
        return [pool for pool, state in zip(self._pools, self._states, strict=True) if state is not None]

    async def _call(self, method: str, *given: Any, **named: Any) -> Any:
        for pool in self._there():
            try:
                answer = await asyncio.wait_for(pool.call.remote(method, given, named), ASK_S)
            except AWAY:
                raise _lost() from None
            if isinstance(answer, VivavoceError):
                raise answer
            return answer
        raise _away()

    async def _watch(self, place: int) -> None:
        while True:
            asking = self._pools[place].state.remote()
            try:
                about, *state = await asyncio.wait_for(asking, LATE_S)
                self._about, self._states[place] = self._about or about, (state[0], state[1])
            except Exception as error:
                asking.cancel()
                if self._states[place] is not None:
                    log.warning("engines away: %(error)s", {"error": error})
                self._states[place] = None
            await asyncio.sleep(PULSE_S)


async def _first(calls: Any) -> tuple[str, int | VivavoceError]:
    """What a replica says first: its name with the sample rate or a refusal; without a name: it was lost."""
    try:
        said: tuple[str, int | VivavoceError] = await asyncio.wait_for(anext(calls), ASK_S)
        return said
    except (*AWAY, StopAsyncIteration):
        calls.cancel()
        return "", _lost()
    except asyncio.CancelledError:
        calls.cancel()
        raise


def _away() -> EngineStopped:
    return EngineStopped("engine: none can be reached just now; ask again in some seconds")


def _lost() -> EngineStopped:
    return EngineStopped("engine: its replica has ended before the speech was whole; ask again soon")
