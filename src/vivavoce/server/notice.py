"""The audible notice before an answer: a tone or a sentence, by which listeners learn that a machine speaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vivavoce.engine.request import AudioChunk
from vivavoce.errors import StageFailed, VivavoceError
from vivavoce.frontend.speech import FinishReason, SpeechEvent, SpeechRequest, Verdict, moved
from vivavoce.frontend.speech_backend import SpeechBackend, SpeechStream

Samples = NDArray[np.float32]
TONE = "tone"
NO_SEGMENT = -1
"""The segment number of a notice's audio; segments of the text are numbered from 0."""
_TONE_S, _TONE_HZ, _TONE_PEAK, _FADE_S = 0.25, 660.0, 0.1, 0.02
_PAUSE_S = 0.25
"""Seconds of silence between the notice and the answer."""


class Notices:
    """A cache of the notices' samples; each sentence is spoken once with each model, in the default voice."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], asyncio.Task[Samples]] = {}

    async def samples(self, notice: str, model: str, backend: SpeechBackend) -> Samples:
        """Return the samples [n] of a notice, `TONE` or a sentence. VivavoceError: it cannot be spoken now."""
        key = notice, model
        if key not in self._made:
            if any(kept != notice for kept, _ in self._made):  # provenance.notice was changed
                self._made.clear()
            self._made[key] = asyncio.create_task(_make(notice, model, backend))
        making = self._made[key]
        try:
            return await asyncio.shield(making)  # other requests may wait for it, too
        except Exception as error:
            if self._made.get(key) is making:
                del self._made[key]
            if not isinstance(error, VivavoceError) or error.retry_after_s is not None:
                raise
            raise StageFailed(f"provenance.notice: could not be spoken ({error}); tell the server's operator") from None


async def _make(notice: str, model: str, backend: SpeechBackend) -> Samples:
    rate = backend.about.of(model).sample_rate
    if notice == TONE:
        parts = [_tone(rate)]
    else:
        stream = await backend.speak(SpeechRequest(notice, model=model))
        parts = [event.samples async for event in stream if isinstance(event, AudioChunk)]
        if stream.verdict is None or stream.verdict.reason is not FinishReason.STOP:
            raise StageFailed("engine: it stopped before the end")
    return np.concatenate([*parts, np.zeros(round(_PAUSE_S * rate), np.float32)])


def _tone(rate: int) -> Samples:
    time = np.arange(round(_TONE_S * rate)) / rate
    fade = np.minimum(1.0, np.minimum(time, time[::-1]) / _FADE_S)
    return (_TONE_PEAK * fade * np.sin(2 * np.pi * _TONE_HZ * time)).astype(np.float32)


class NoticedStream:
    """A stream with a notice before its first event. The length of the notice is added to the times of words."""

    def __init__(self, stream: SpeechStream, notice: Samples) -> None:
        self._stream, self._notice = stream, notice
        self.sample_rate = stream.sample_rate
        self.push, self.end, self.cancel = stream.push, stream.end, stream.cancel

    @property
    def verdict(self) -> Verdict | None:
        return self._stream.verdict

    async def __aiter__(self) -> AsyncGenerator[SpeechEvent, None]:
        late_s, is_first = len(self._notice) / self.sample_rate, True
        async for event in self._stream:
            if is_first:
                yield AudioChunk(self._notice, self.sample_rate, segment=NO_SEGMENT)
                is_first = False
            if isinstance(event, AudioChunk) and event.words:
                event = replace(event, words=tuple(moved(one, 0, late_s) for one in event.words))
            yield event
