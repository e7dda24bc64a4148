"""Targets of a load test (a loaded model, or a server over HTTP), and recordings that are sent with requests."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import soundfile
from numpy.typing import NDArray

from vivavoce.api import Vivavoce
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.request import SamplingParams
from vivavoce.errors import InvalidAudio, InvalidRequest, Overloaded
from vivavoce.frontend.audio.samples import to_int16
from vivavoce.frontend.voices.voice import Voice
from vivavoce_bench.evaluate import Case, Clip, Instruments, PocketSphinx, assess
from vivavoce_bench.evaluate.assessment import ready
from vivavoce_bench.evaluate.cases import cases_of
from vivavoce_bench.evaluate.speaking import embed_with
from vivavoce_bench.load import Outcome, Piece, Refused, Utterance, first_sound

_CUT_S = 0.05
_SOFTEST = 0.8


@dataclass(frozen=True)
class Recorded:
    """content: bytes of an audio file; transcript: the spoken words, or "" if unknown."""

    content: bytes
    transcript: str = ""

    @classmethod
    def read(cls, path: str, transcript: str) -> Recorded:
        """Read a recording. `InvalidRequest`: the file cannot be read."""
        try:
            return cls(Path(path).read_bytes(), transcript)
        except OSError as error:
            raise InvalidRequest(f"voice: {path!r} cannot be read ({error.strerror}); check the path") from None

    def altered(self, number: int) -> bytes:
        """Return the recording as a WAV file that is a little quieter and shorter; `number` decides how much.

        The difference is not audible, but these bytes are in no cache. `InvalidAudio`: the recording cannot be decoded.
        """
        samples, rate = self._decoded
        drawn = random.Random(number)
        start, gain = drawn.randrange(int(_CUT_S * rate)), drawn.uniform(_SOFTEST, 1.0)
        made = BytesIO()
        soundfile.write(made, (gain * samples[start:]).astype(np.int16), rate, subtype="PCM_16", format="WAV")
        return made.getvalue()

    @cached_property
    def _decoded(self) -> tuple[NDArray[np.int16], int]:
        """The samples and their rate. Decoding for each request would delay it, and falsify its measured times."""
        try:
            samples, rate = soundfile.read(BytesIO(self.content), dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            raise InvalidAudio(f"voice: the recording cannot be decoded ({error}); give a WAV or FLAC file") from None
        return to_int16(samples), rate


QUALITY_KEYS = ("wer_free", "wer_free_low", "wer_free_high", "wer_closed", "per", "speaker_similarity", "runaways")


@dataclass(frozen=True, eq=False)
class EngineTarget:
    """A loaded model as the `Target` of a load test.

    voices: name in utterances → voice; a recording is altered, and its voice extracted, within each request. policy:
    if None, whole utterances are requested; keep: whether to keep the samples.
    """

    tts: Vivavoce
    voices: Mapping[str, Voice | Recorded]
    policy: ChunkPolicy | None
    sampling: SamplingParams
    keep: bool

    @property
    def sample_rate(self) -> int:
        return self.tts.sample_rate

    async def speak(self, utterance: Utterance) -> AsyncIterator[Piece]:
        voice = None if utterance.voice is None else self.voices[utterance.voice]
        if isinstance(voice, Recorded):
            content = voice.altered(utterance.number)
            voice = await asyncio.to_thread(self.tts.voice, content, voice.transcript)
        keywords: dict[str, Any] = {"seed": utterance.seed, "sampling": self.sampling}
        try:
            if self.policy is None:
                samples = (await self.tts.aspeak(utterance.text, voice, **keywords)).samples
                yield Piece(len(samples), samples if self.keep else None, first_sound(samples))
                return
            async for chunk in self.tts.astream(utterance.text, voice, policy=self.policy, **keywords):
                kept = chunk.samples if self.keep else None
                yield Piece(len(chunk.samples), kept, first_sound(chunk.samples))
        except Overloaded as error:
            raise Refused(error.retry_after_s) from error


def instruments_for(tts: Vivavoce, utterances: Sequence[Utterance], jobs: int) -> Instruments:
    """Make and test the recogniser and the speaker encoder before the load test starts; errors as in `ready`."""
    texts = dict.fromkeys(utterance.text for utterance in utterances)
    return ready(cases_of(texts), Instruments(PocketSphinx, jobs, tts.normalize, embed_with(tts.embed)), None)


def quality(
    ok: Sequence[Outcome], voices: Mapping[str, Voice], instruments: Instruments, show: Callable[[str], None]
) -> dict[str, Any]:
    """Measure word errors and speaker similarity of successful requests with samples; None if not measured."""
    if not ok:
        return dict.fromkeys(QUALITY_KEYS)
    clips = (
        Clip(Case(f"{one.number:04d}", one.text), one.voice or "", outcome.samples, outcome.sample_rate, one.seed)
        for outcome in ok
        for one in [outcome.utterance]
    )
    summary = assess(clips, voices, instruments, show=show).summary
    return {key: summary.get(key) for key in QUALITY_KEYS}


PCM_RATE = 24_000
"""Sample rate in Hz of the format `pcm` in OpenAI's API, which does not depend on the model."""
_TIMEOUT = httpx.Timeout(120.0, connect=10.0)
_BUSY = (429, 503)


@dataclass(frozen=True, eq=False)
class HttpTarget:
    """Sends requests in the form of OpenAI's API, each with `stream` and `pcm`.

    client: has the server's base address. recorded: name of a voice → recording to send. fresh: alter the recording
    for each request, so that no cache of the server has it. policy: chunk policy to send, or None.
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
                raise Refused(_retry_after_s(answer.headers.get("retry-after", "")))
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
                    yield Piece(len(samples), sound_at=first_sound(samples))

    def _voice(self, utterance: Utterance) -> dict[str, str]:
        if utterance.voice is None:
            return {}
        if utterance.voice not in self.recorded:
            return {"voice": utterance.voice}
        recorded = self.recorded[utterance.voice]
        content = recorded.altered(utterance.number) if self.fresh else recorded.content
        return {"ref_audio": base64.b64encode(content).decode(), "ref_text": recorded.transcript}


def _retry_after_s(given: str) -> float:
    """Return the seconds of a Retry-After header; 1 if it is missing or is a date, as RFC 9110 allows."""
    return float(given) if given.strip().isdecimal() else 1.0


def open_client(url: str, key: str | None) -> httpx.AsyncClient:
    """Return a client with any number of connections. `InvalidRequest`: `url` is not an address."""
    if not url.startswith(("http://", "https://")):
        raise InvalidRequest(f"url: {url!r} is not an address; write one such as http://127.0.0.1:8880")
    headers = {"authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return httpx.AsyncClient(base_url=url.rstrip("/"), headers=headers, limits=limits, timeout=_TIMEOUT)
