"""`python -m benchmarks.http_overhead.client URL KIND`: users of a server, in a separate process.

KIND: "openai", the openai package's streaming call as in OpenAI's documents, or "raw", httpx without that package.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai

from benchmarks.http_overhead.loads import SAMPLE_RATE, TIMEOUT_S, Load, answer_loads, counted
from vivavoce_bench.load import Piece, Refused, Utterance

KINDS = ("openai", "raw")


@dataclass(frozen=True, eq=False)
class HttpSpeaker:
    """A `LoadTarget` over HTTP. Connections stay open; a failed request is counted and not repeated."""

    client: httpx.AsyncClient
    package: openai.AsyncOpenAI | None
    accepted_s: dict[int, float] = field(default_factory=dict)

    @classmethod
    def open(cls, url: str, kind: str) -> HttpSpeaker:
        """Connect: the openai package has connections of its own, httpx has one for each user."""
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        client = httpx.AsyncClient(base_url=f"{url}/v1", limits=limits, timeout=TIMEOUT_S)
        if kind == "raw":
            return cls(client, None)
        return cls(client, openai.AsyncOpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0, timeout=TIMEOUT_S))

    def target(self, load: Load) -> HttpTarget:
        """The target for the requests of one load."""
        return HttpTarget(self, load)

    async def close(self) -> None:
        """Close all connections."""
        await self.client.aclose()
        if self.package is not None:
            await self.package.close()


@dataclass(frozen=True, eq=False)
class HttpTarget:
    """A `Target` of one load: sends each utterance to the server as a request."""

    speaker: HttpSpeaker
    load: Load
    sample_rate: int = SAMPLE_RATE

    async def speak(self, utterance: Utterance) -> AsyncIterator[Piece]:
        """Yield the pieces of the utterance's audio as they arrive."""
        own = self.load.own_fields(utterance)
        headers = {"x-request-id": self.load.request_id(utterance.number)}
        wanted: dict[str, Any] = {"model": "tts-1", "input": utterance.text, "response_format": "pcm"}
        async with self._asked({**wanted, "voice": utterance.voice}, own, headers) as chunks:
            async for piece in counted(chunks):
                yield piece

    @asynccontextmanager
    async def _asked(
        self, wanted: dict[str, Any], own: dict[str, Any], headers: dict[str, str]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        if self.speaker.package is not None:
            speech = self.speaker.package.audio.speech.with_streaming_response
            try:
                async with speech.create(
                    **{**wanted, "voice": wanted["voice"] or ""}, extra_body=own, extra_headers=headers
                ) as answer:
                    yield answer.iter_bytes()
            except openai.RateLimitError as error:
                raise Refused(float(error.response.headers.get("retry-after", 1))) from error
            return
        asked = self.speaker.client.stream("POST", "/audio/speech", json={**wanted, **own}, headers=headers)
        async with asked as plain:
            if plain.status_code == httpx.codes.TOO_MANY_REQUESTS:
                raise Refused(float(plain.headers.get("retry-after", 1)))
            plain.raise_for_status()
            yield plain.aiter_raw()

    async def close(self) -> None:
        """Do nothing: the connections stay open for the next load."""


if __name__ == "__main__":
    speaker = HttpSpeaker.open(*sys.argv[1:])
    answer_loads({}, speaker, speaker.close)
