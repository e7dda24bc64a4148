"""A backend whose engines are replicas of Ray Serve deployments."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any, cast

import ray
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException

from vivavoce.errors import EngineStopped, VivavoceError
from vivavoce.frontend.speech import FinishReason, SpeechEvent, SpeechRequest, Verdict
from vivavoce.frontend.speech_backend import BackendStatistics, ModelInfo
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce_fleet.engine_fleet import FleetStream
from vivavoce_fleet.routing import is_retryable, shortest_wait, voice_key
from vivavoce_ray.engine import TextMailbox
from vivavoce_textnorm import NormalizedText, check_length

log = logging.getLogger(__name__)

AWAY = (RayError, RayServeException, TimeoutError, asyncio.TimeoutError)
"""Errors of a call whose replica has ended or cannot be reached."""
TRIES = 3
"""Maximum number of replicas of a pool to which one request is sent."""
ASK_S = 120.0
"""Timeout of a call, which may extract a voice, normalise a text and wait for a slot."""
PULSE_S, LATE_S = 1.0, 3.0
"""Seconds between two checks of a pool's state, and the timeout of a check."""


class _Stream:
    def __init__(self, calls: Any, sample_rate: int, mailbox: Any, stream_id: str) -> None:
        self._calls, self.sample_rate, self._mailbox, self._id = calls, sample_rate, mailbox, stream_id
        self.verdict: Verdict | None = None

    async def __aiter__(self) -> AsyncGenerator[SpeechEvent, None]:
        with suppress(*AWAY):
            async for item in self._calls:
                if isinstance(item, VivavoceError):
                    raise item
                if isinstance(item, Verdict):
                    self.verdict = self.verdict or item
                elif self.verdict is None:
                    yield item
        self._mailbox.forget.remote(self._id)
        if self.verdict is None:
            raise _lost()

    async def push(self, text: str) -> None:
        check_length(text)
        self._mailbox.put.remote(self._id, text)

    async def end(self) -> None:
        self._mailbox.put.remote(self._id, None)

    def cancel(self) -> None:
        if self.verdict is None:
            self.verdict = Verdict(FinishReason.CANCELLED)
            self._calls.cancel()
            self._mailbox.forget.remote(self._id)


class RayBackend:
    """A `SpeechBackend` of Ray Serve replicas, for one event loop. It works until its process ends."""

    stuck = False
    """Always False: a replica that does not answer counts as not ready."""

    def __init__(self, pools: Sequence[Any]) -> None:
        """pools: handles to deployments of `EngineReplica`, in the order in which requests try them."""
        self._pools = pools
        self._about: ModelInfo | None = None
        self._states: list[tuple[bool, str] | None] = [None] * len(pools)
        """For each pool: whether it is ready, and the state of its voice store; None if the pool is unreachable."""
        self._mailbox = ray.remote(TextMailbox).options(num_cpus=0, max_restarts=-1, max_concurrency=100_000).remote()
        self._watching = [asyncio.ensure_future(self._watch(index)) for index in range(len(pools))]

    @property
    def about(self) -> ModelInfo:
        if self._about is None:
            raise EngineStopped("engine: it is starting; ask again in some seconds")
        return self._about

    @property
    def ready(self) -> bool:
        return any(state is not None and state[0] for state in self._states)

    @property
    def voice_store(self) -> str:
        return next((state[1] for state in self._states if state is not None and state[1] != "ok"), "ok")

    async def speak(self, request: SpeechRequest) -> FleetStream:
        stream = FleetStream(self._submit, request, self.about.sample_rate)
        await stream.begin()
        return stream

    async def _submit(self, request: SpeechRequest, used: set[str], refusals: tuple[VivavoceError, ...]) -> _Stream:
        stream_id, key = uuid.uuid4().hex, voice_key(request.owner, request.voice)
        for pool in self._reachable():
            avoid = frozenset(used)
            for _ in range(TRIES):
                calls = pool.options(stream=True).speak.remote(key, avoid, request, self._mailbox, stream_id)
                replica, answer = await _first(calls)
                if isinstance(answer, int):
                    used.add(replica)
                    return _Stream(calls, answer, self._mailbox, stream_id)
                if not is_retryable(answer):
                    raise answer
                refusals = (*refusals, answer)
                if replica in avoid:
                    break  # the router has no other replica
                avoid |= {replica}
        raise shortest_wait(refusals or (_unreachable(),))

    async def normalize(self, request: SpeechRequest) -> NormalizedText:
        return cast(NormalizedText, await self._call("normalize", request))

    async def voices(self, *arguments: Any) -> list[VoiceSummary]:
        return await self._call("voices", *arguments)

    async def add_voice(self, *arguments: Any, **options: Any) -> VoiceSummary:
        return await self._call("add_voice", *arguments, **options)

    async def remove_voice(self, *arguments: Any) -> None:
        await self._call("remove_voice", *arguments)

    async def statistics(self) -> BackendStatistics | None:
        """Return None: Ray's metrics have the statistics of each engine."""
        return None

    def _reachable(self) -> list[Any]:
        return [pool for pool, state in zip(self._pools, self._states, strict=True) if state is not None]

    async def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of some engine in the first reachable pool; all engines have the same voice store."""
        for pool in self._reachable():
            try:
                answer = await asyncio.wait_for(pool.call.remote(method, arguments, options), ASK_S)
            except AWAY:
                raise _lost() from None
            if isinstance(answer, VivavoceError):
                raise answer
            return answer
        raise _unreachable()

    async def _watch(self, index: int) -> None:
        while True:
            asking = self._pools[index].state.remote()
            try:
                about, *state = await asyncio.wait_for(asking, LATE_S)
                self._about, self._states[index] = self._about or about, (state[0], state[1])
            except Exception as error:
                asking.cancel()
                if self._states[index] is not None:
                    log.warning("engines away: %(error)s", {"error": error})
                self._states[index] = None
            await asyncio.sleep(PULSE_S)


async def _first(calls: Any) -> tuple[str, int | VivavoceError]:
    """Return the first item of a call: the replica's name, and a sample rate or an error. The name is "" if the replica
    is lost."""
    try:
        return cast(tuple[str, int | VivavoceError], await asyncio.wait_for(anext(calls), ASK_S))
    except (*AWAY, StopAsyncIteration):
        calls.cancel()
        return "", _lost()
    except asyncio.CancelledError:
        calls.cancel()
        raise


def _unreachable() -> EngineStopped:
    return EngineStopped("engine: no engine can be reached; try again in some seconds")


def _lost() -> EngineStopped:
    return EngineStopped("engine: its replica ended before the speech was complete; try again")
