"""A server's users who ask through the openai package."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import openai

from benchmarks.http_overhead.loads import SAMPLE_RATE, TIMEOUT_S, Load, counted
from vivavoce.bench.target import Piece, Refused, Utterance


@dataclass(frozen=True, eq=False)
class OpenAISpeaker:
    """See `LoadTarget`."""

    client: openai.AsyncOpenAI
    accepted_s: dict[int, float] = field(default_factory=dict)

    @classmethod
    def open(cls, url: str) -> OpenAISpeaker:
        """With the package's own connections; a request that fails is a figure and not asked again."""
        return cls(openai.AsyncOpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0, timeout=TIMEOUT_S))

    def target(self, load: Load) -> OpenAITarget:
        """See `LoadTarget`."""
        return OpenAITarget(self.client, load)


@dataclass(frozen=True, eq=False)
class OpenAITarget:
    """See `Target`; `with_streaming_response`, as OpenAI's documents show it."""

    client: openai.AsyncOpenAI
    load: Load
    sample_rate: int = SAMPLE_RATE

    async def speak(self, utterance: Utterance) -> AsyncIterator[Piece]:
        """See `Target`."""
        speech = self.client.audio.speech.with_streaming_response.create(
            model="tts-1",
            input=utterance.text,
            voice=utterance.voice or "",
            response_format="pcm",
            extra_body=self.load.own_fields(utterance),
            extra_headers={"x-request-id": self.load.request_id(utterance.number)},
        )
        try:
            async with speech as answer:
                async for piece in counted(answer.iter_bytes()):
                    yield piece
        except openai.RateLimitError as error:
            raise Refused(float(error.response.headers.get("retry-after", 1))) from error

    async def close(self) -> None:
        """See `Target`; the client stays."""
