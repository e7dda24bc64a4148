"""A server as the target of a load test: the client of `POST /v1/audio/speech`, in a process of its own."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from vivavoce.errors import InvalidRequest
from vivavoce_bench.load import Piece, Refused, Utterance, is_audible
from vivavoce_bench.recordings import Recorded, altered

PCM_RATE = 24_000
"""Samples per second of `pcm` in OpenAI's API, whatever the model."""
_TIMEOUT = httpx.Timeout(120.0, connect=10.0)
_BUSY = (429, 503)


@dataclass(frozen=True, eq=False)
class HttpTarget:
    """Requests of OpenAI's form, each with `stream` and `pcm`.

    client: its base address is the server's. recorded: recordings that requests send, by the voices' names. fresh:
    alter the recording for each request, so that the server has nothing of it in a cache. policy: None leaves it out.
    """

    client: httpx.AsyncClient
    recorded: Mapping[str, Recorded]
    fresh: bool
    policy: str | None = None
    sample_rate: int = PCM_RATE

    async def speak(self, utterance: Utterance) -> AsyncIterator[Piece]:
        body: dict[str, Any] = {"model": "tts-1", "input": utterance.text, "response_format": "pcm", "stream": True}
        body |= {"seed": utterance.seed, **self._voice(utterance)}
        if self.policy is not None:
            body["chunk_policy"] = self.policy
        async with self.client.stream("POST", "/v1/audio/speech", json=body) as answer:
            if answer.status_code in _BUSY:
                raise Refused(float(answer.headers.get("retry-after", 1)))
            if answer.status_code != httpx.codes.OK:
                text = (await answer.aread()).decode(errors="replace")
                raise InvalidRequest(f"server: it answered {answer.status_code}: {text[:200]}")
            rest = b""
            async for received in answer.aiter_raw():
                received = rest + received
                whole = len(received) // 2 * 2
                rest = received[whole:]
                if whole:
                    samples = np.frombuffer(received[:whole], "<i2").astype(np.float32) / np.float32(32768)
                    yield Piece(len(samples), audible=is_audible(samples))

    def _voice(self, utterance: Utterance) -> dict[str, str]:
        if utterance.voice is None:
            return {}
        if utterance.voice not in self.recorded:
            return {"voice": utterance.voice}
        recorded = self.recorded[utterance.voice]
        content = altered(recorded.content, utterance.number) if self.fresh else recorded.content
        return {"ref_audio": base64.b64encode(content).decode(), "ref_text": recorded.transcript}


def open_client(url: str, key: str | None) -> httpx.AsyncClient:
    """A client with as many connections as there are users; `InvalidRequest`: `url` is not an address."""
    if not url.startswith(("http://", "https://")):
        raise InvalidRequest(f"url: {url!r} is not an address; write one such as http://127.0.0.1:8880")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(base_url=url.rstrip("/"), headers=headers, limits=limits, timeout=_TIMEOUT)
