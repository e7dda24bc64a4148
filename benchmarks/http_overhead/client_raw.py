"""A server's users who ask through httpx."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx

from benchmarks.http_overhead.loads import SAMPLE_RATE, TIMEOUT_S, Load, counted
from vivavoce.bench.target import Piece, Refused, Utterance


@dataclass(frozen=True, eq=False)
class RawSpeaker:
    """See `LoadTarget`."""

    client: httpx.AsyncClient
    accepted_s: dict[int, float] = field(default_factory=dict)

    @classmethod
    def open(cls, url: str) -> RawSpeaker:
        """With as many connections as there are users, which stay open."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        return cls(httpx.AsyncClient(base_url=f"{url}/v1", limits=limits, timeout=TIMEOUT_S))

    def target(self, load: Load) -> RawTarget:
        """See `LoadTarget`."""
        return RawTarget(self.client, load)


@dataclass(frozen=True, eq=False)
class RawTarget:
    """See `Target`."""

    client: httpx.AsyncClient
    load: Load
    sample_rate: int = SAMPLE_RATE

    async def speak(self, utterance: Utterance) -> AsyncIterator[Piece]:
        """See `Target`."""
        body = {
            "model": "tts-1",
            "input": utterance.text,
            "voice": utterance.voice,
            "response_format": "pcm",
            **self.load.own_fields(utterance),
        }
        headers = {"x-request-id": self.load.request_id(utterance.number)}
        async with self.client.stream("POST", "/audio/speech", json=body, headers=headers) as answer:
            if answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
                raise Refused(float(answer.headers.get("retry-after", 1)))
            answer.raise_for_status()
            async for piece in counted(answer.aiter_raw()):
                yield piece

    async def close(self) -> None:
        """See `Target`; the client stays."""
