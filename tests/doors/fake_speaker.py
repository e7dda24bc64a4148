"""A speaker that needs no engine: every letter is a hundredth of a second of a tone, every sentence a segment."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import numpy as np

from vivavoce.engine.statistics import Statistics
from vivavoce.errors import EngineStopped, InvalidAudio, InvalidText, VivavoceError, VoiceExists, VoiceNotFound
from vivavoce.service.host.figures import SpeakerStatistics
from vivavoce.service.host.order import Recording, SpeechOrder
from vivavoce.service.host.speaker import ModelAbout, SegmentText, SpeechEvent, SpeechPiece, VoiceSummary
from vivavoce.service.host.verdict import FinishReason, Verdict

RATE = 24_000
SAMPLES_PER_LETTER = 240
CHUNK_LETTERS = 10


def tone(letters: int, seed: int) -> np.ndarray:
    """[letters · 240] float32, a tone whose pitch the seed gives."""
    time = np.arange(letters * SAMPLES_PER_LETTER) / RATE
    return (0.3 * np.sin(2 * np.pi * (200 + seed % 400) * time)).astype(np.float32)


@dataclass
class FakeStream:
    """Speaks what it was given; `gate`, if there is one, is awaited before every piece of audio."""

    order: SpeechOrder
    gate: asyncio.Event | None
    fails_after: int | None = None
    """Pieces of audio after which it fails."""
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

    async def __aiter__(self) -> AsyncIterator[SpeechEvent]:
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
                        self.verdict = Verdict(
                            FinishReason.ERROR, audio_s, spoken, given, "engine: it broke", "engine_stopped"
                        )
                        raise EngineStopped("engine: it broke")
                    piece = samples[start : start + CHUNK_LETTERS * SAMPLES_PER_LETTER]
                    pieces += 1
                    audio_s += len(piece) / RATE
                    yield SpeechPiece(piece, given - 1)
                spoken += 1
            offset += len(text)
        self.verdict = Verdict(FinishReason.STOP, audio_s, spoken, given)

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
class FakeSpeaker:
    """Public voices "anna" (built in) and whatever is added."""

    gate: asyncio.Event | None = None
    refuses_with: VivavoceError | None = None
    fails_after: int | None = None
    is_ready: bool = True
    starts_at: int = 1
    orders: list[SpeechOrder] = field(default_factory=list)
    streams: list[FakeStream] = field(default_factory=list)
    stored: dict[tuple[str, str], VoiceSummary] = field(default_factory=dict)
    closed: bool = False

    @property
    def about(self) -> ModelAbout:
        return ModelAbout("fake", "a tone", RATE, demo=True)

    @property
    def ready(self) -> bool:
        return self.is_ready

    async def speak(self, order: SpeechOrder) -> FakeStream:
        if not self.is_ready:
            raise EngineStopped("engine: is starting; try again in some seconds")
        if self.refuses_with is not None:
            raise self.refuses_with
        if order.text is not None and not order.text.strip():
            raise InvalidText("text: nothing in '' can be spoken; write at least one word")
        if isinstance(order.voice, str) and order.voice not in {v.name for v in await self.voices(order.owner)}:
            raise VoiceNotFound(f"voice: {order.voice!r} is not registered (known: anna)")
        self.orders.append(order)
        self.streams.append(FakeStream(order, self.gate, self.fails_after))
        return self.streams[-1]

    async def voices(self, owner: str) -> list[VoiceSummary]:
        stored = [voice for (whose, _), voice in self.stored.items() if whose in ("", owner)]
        return [VoiceSummary("anna", "built_in", True, "a tone"), *stored]

    async def add_voice(
        self, owner: str, name: str, recording: Recording, *, description: str = "", replace: bool = False
    ) -> VoiceSummary:
        if not recording.content:
            raise InvalidAudio("reference audio: the given data is empty (0 bytes); give a recording with sound in it")
        if (owner, name) in self.stored and not replace:
            raise VoiceExists(f"voice: {name!r} is stored already; choose another name, or replace it")
        voice = VoiceSummary(name, "stored", owner == "", description, recording.transcript)
        self.stored[owner, name] = voice
        return voice

    async def remove_voice(self, owner: str, name: str) -> None:
        if (owner, name) not in self.stored:
            raise VoiceNotFound(f"voice: {name!r} is not registered (known: anna)")
        del self.stored[owner, name]

    async def statistics(self) -> SpeakerStatistics | None:
        return SpeakerStatistics(Statistics().snapshot(), "cpu", 1, 2, 0, 0, "ok", self.starts_at)

    async def close(self, drain_s: float) -> None:
        self.closed = True
