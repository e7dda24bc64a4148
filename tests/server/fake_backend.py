"""A backend without an engine: each letter is a hundredth of a second of a tone, each sentence a segment."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from vivavoce.engine.request import AudioChunk, Word
from vivavoce.engine.statistics import Statistics
from vivavoce.errors import EngineStopped, InvalidAudio, InvalidText, VivavoceError, VoiceExists, VoiceNotFound
from vivavoce.frontend.speech import (
    Delivery,
    FinishReason,
    Recording,
    SegmentText,
    SpeechEvent,
    SpeechRequest,
    Verdict,
)
from vivavoce.frontend.speech_backend import BackendStatistics, ModelInfo
from vivavoce.frontend.voices.consent import Consent
from vivavoce.frontend.voices.names import VoiceSummary
from vivavoce_textnorm.reader import read
from vivavoce_textnorm.types import NormalizedText

RATE = 24_000
SAMPLES_PER_LETTER = 240
CHUNK_LETTERS = 10


def tone(letters: int, seed: int) -> np.ndarray:
    """[letters · 240] float32, a tone whose pitch the seed gives."""
    time = np.arange(letters * SAMPLES_PER_LETTER) / RATE
    return (0.3 * np.sin(2 * np.pi * (200 + seed % 400) * time)).astype(np.float32)


class Gate(asyncio.Event):
    """Lets some pieces of audio pass, and blocks the others until it is set."""

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self._remaining = pieces

    async def wait(self) -> Literal[True]:
        self._remaining -= 1
        return True if self._remaining >= 0 else await super().wait()


@dataclass
class FakeStream:
    """Speaks its request; waits for the `gate`, if any, before each piece of audio."""

    order: SpeechRequest
    gate: asyncio.Event | None
    fails_after: int | None = None
    """Pieces of audio until it fails, or ends with `ends_with`."""
    ends_with: Verdict | None = None
    sample_rate: int = RATE
    verdict: Verdict | None = None
    texts: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def push(self, text: str) -> None:
        if "\x00" in text:
            raise InvalidText("text: holds U+0000; leave it out")
        await self.texts.put(text)

    async def end(self) -> None:
        await self.texts.put(None)

    def cancel(self) -> None:
        self.cancelled.set()
        self.texts.put_nowait(None)

    async def __aiter__(self) -> AsyncGenerator[SpeechEvent, None]:
        audio_s, given, spoken, pieces = 0.0, 0, 0, 0
        offset = 0
        async for text in self._texts():
            for match in re.finditer(r"[^.!?]+[.!?]*\s*", text):
                yield SegmentText(given, offset + match.start(), offset + match.end())
                given += 1
                samples = tone(len(match[0]), self.order.seed)
                for start in range(0, len(samples), CHUNK_LETTERS * SAMPLES_PER_LETTER):
                    if not await self._may_go_on():
                        self.verdict = Verdict(FinishReason.CANCELLED, audio_s, spoken, given)
                        return
                    if self.fails_after is not None and pieces >= self.fails_after:
                        if self.ends_with is not None:
                            self.verdict = self.ends_with
                            return
                        self.verdict = Verdict(
                            FinishReason.ERROR, audio_s, spoken, given, "engine: it broke", "engine_stopped"
                        )
                        raise EngineStopped("engine: it broke")
                    piece = samples[start : start + CHUNK_LETTERS * SAMPLES_PER_LETTER]
                    pieces += 1
                    audio_s += len(piece) / self.sample_rate
                    yield AudioChunk(piece, self.sample_rate, segment=given - 1)
                spoken += 1
            offset += len(text)
        reason = FinishReason.CANCELLED if self.cancelled.is_set() else FinishReason.STOP
        self.verdict = Verdict(reason, audio_s, spoken, given)

    async def _texts(self) -> AsyncIterator[str]:
        if self.order.text is not None:
            yield self.order.text
            return
        while (text := await self.texts.get()) is not None:
            yield text

    async def _may_go_on(self) -> bool:
        if self.gate is not None and not self.cancelled.is_set():
            waits = [asyncio.ensure_future(self.gate.wait()), asyncio.ensure_future(self.cancelled.wait())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        return not self.cancelled.is_set()


@dataclass
class FakeBackend:
    """Has the built-in public voice "anna", and those that are added."""

    gate: asyncio.Event | None = None
    refuses_with: VivavoceError | None = None
    fails_after: int | None = None
    ends_with: Verdict | None = None
    is_ready: bool = True
    stuck: bool = False
    voice_store: str = "ok"
    rate: int = RATE
    """The claimed sample rate; the samples stay the same, so that it changes the duration of a letter."""
    orders: list[SpeechRequest] = field(default_factory=list)
    streams: list[FakeStream] = field(default_factory=list)
    stored: dict[tuple[str, str], VoiceSummary] = field(default_factory=dict)

    @property
    def about(self) -> ModelInfo:
        return ModelInfo("fake", "a tone", self.rate, demo=True)

    @property
    def ready(self) -> bool:
        return self.is_ready

    async def speak(self, order: SpeechRequest) -> FakeStream:
        if not self.is_ready:
            raise EngineStopped("engine: is starting; try again in some seconds")
        if self.refuses_with is not None:
            raise self.refuses_with
        if order.text is not None and not order.text.strip():
            raise InvalidText("text: nothing in '' can be spoken; write at least one word", nothing_to_say=True)
        if isinstance(order.voice, str) and order.voice not in {v.name for v in await self.voices(order.owner)}:
            raise VoiceNotFound(f"voice: {order.voice!r} is not registered (known: anna)")
        self.orders.append(order)
        self.streams.append(FakeStream(order, self.gate, self.fails_after, self.ends_with, self.rate))
        return self.streams[-1]

    async def normalize(self, order: SpeechRequest) -> NormalizedText:
        if self.refuses_with is not None:
            raise self.refuses_with
        self.orders.append(order)
        return read(order.text or "", order.language)

    async def voices(self, owner: str) -> list[VoiceSummary]:
        stored = [voice for (whose, _), voice in self.stored.items() if whose in ("", owner)]
        return [VoiceSummary("anna", "built_in", True, "a tone"), *stored]

    async def add_voice(
        self,
        owner: str,
        name: str,
        recording: Recording,
        *,
        description: str = "",
        replace: bool = False,
        consent: Consent | None = None,
        adapter: str = "",
    ) -> VoiceSummary:
        if self.refuses_with is not None:
            raise self.refuses_with
        if not recording.content:
            raise InvalidAudio("reference audio: the given data is empty (0 bytes); give a recording with sound in it")
        if (owner, name) in self.stored and not replace:
            raise VoiceExists(f"voice: {name!r} is stored already; choose another name, or replace it")
        told = {"consent": consent.statement, "consent_by": consent.who, "consent_at": consent.at} if consent else {}
        problems = ("is clipped; record it at a lower level",) * recording.content.startswith(b"clipped")
        voice = VoiceSummary(
            name, "stored", owner == "", description, recording.transcript, adapter=adapter, warnings=problems, **told
        )
        self.stored[owner, name] = voice
        return voice

    async def remove_voice(self, owner: str, name: str) -> None:
        if (owner, name) not in self.stored:
            raise VoiceNotFound(f"voice: {name!r} is not registered (known: anna)")
        del self.stored[owner, name]

    async def statistics(self) -> BackendStatistics | None:
        return BackendStatistics(Statistics().snapshot(), 1, 2, 0, 0, "ok")


@dataclass
class WordedStream(FakeStream):
    """Tells each word with the segment's first audio, if words are asked for; a letter lasts 0.01 s."""

    async def __aiter__(self) -> AsyncGenerator[SpeechEvent, None]:
        text, told = "", 0
        async for event in super().__aiter__():
            if isinstance(event, SegmentText):
                text, first, begun = self.order.text or "", event.start, True
                found = re.finditer(r"\S+", text[first : event.end])
                words = [(one[0], first + one.start(), first + one.end()) for one in found]
            elif begun and self.order.word_times:
                timed = tuple(Word(word, start, end, start / 100, end / 100) for word, start, end in words)
                event, begun, told = replace(event, words=timed), False, told + len(timed)
            yield event
        if self.verdict is not None and self.order.word_times:
            self.verdict = replace(self.verdict, delivery=Delivery(0.5, ("there,",), ("skips",), ("loops",), 0.25))


class Worded(FakeBackend):
    """Knows when the words of a whole text are heard."""

    async def speak(self, order: SpeechRequest) -> FakeStream:
        await super().speak(order)
        self.streams[-1] = WordedStream(order, self.gate, self.fails_after, self.ends_with, self.rate)
        return self.streams[-1]


class Unguided(FakeBackend):
    """Its model cannot follow instructions."""

    @property
    def about(self) -> ModelInfo:
        return replace(super().about, instructions=False)
