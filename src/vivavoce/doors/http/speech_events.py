"""Speech as bytes of one format, and as server-sent events with segments and a verdict."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator
from contextlib import closing
from typing import Any

from vivavoce.doors.http.encoding import open_encoding
from vivavoce.doors.http.errors import body_of
from vivavoce.errors import VivavoceError
from vivavoce.service.audio.formats import AudioFormat
from vivavoce.service.host.speaker import SegmentText
from vivavoce.service.host.verdict import Verdict
from vivavoce.service.operations.reception import Visit


async def encoded(visit: Visit, audio_format: AudioFormat) -> AsyncGenerator[bytes, None]:
    """All of a visit's audio, each piece as soon as it was made; raises what one is told with that is not whole."""
    with closing(open_encoding(audio_format, visit.sample_rate)) as encoding:
        async for event in visit:
            if isinstance(event, SegmentText):
                continue
            data = await encoding.encode(event.samples)
            if data:
                yield data
        visit.whole()
        rest = await encoding.finish()
        if rest:
            yield rest


async def events(visit: Visit, audio_format: AudioFormat) -> AsyncGenerator[bytes, None]:
    """The same as events. What is known before the first audio waits for it: until then a failure is an answer."""
    clock = SegmentClock(visit.sample_rate)
    waiting: list[bytes] = []
    sounding = False
    with closing(open_encoding(audio_format, visit.sample_rate)) as encoding:
        try:
            async for event in visit:
                if isinstance(event, SegmentText):
                    clock.told(event)
                    continue
                waiting += map(_event, clock.began(event.segment))
                waiting.append(_delta(await encoding.encode(event.samples)))
                clock.heard(len(event.samples))
                sounding = True
                yield b"".join(waiting)
                waiting.clear()
            if not sounding:
                visit.whole()
        except VivavoceError as error:
            if not sounding:
                raise
            yield _event({"type": "error", "error": body_of(error)})
        else:
            waiting += map(_event, clock.ended())
            waiting.append(_delta(await encoding.finish()))
    assert visit.verdict is not None
    waiting.append(_event(done(visit.request_id, visit.verdict)))
    yield b"".join(waiting)


def done(request_id: str, verdict: Verdict) -> dict[str, Any]:
    """The last event: what was used, and the verdict."""
    read, made = verdict.text_tokens or 0, verdict.speech_tokens or 0
    usage = {"input_tokens": read, "output_tokens": made, "total_tokens": read + made}
    return {"type": "speech.audio.done", "usage": usage, "verdict": verdict_body(request_id, verdict)}


def verdict_body(request_id: str, verdict: Verdict) -> dict[str, Any]:
    """A verdict as clients get it."""
    error = None if verdict.error is None else {"code": verdict.error_code, "message": verdict.error}
    return {
        "request_id": request_id,
        "finish_reason": verdict.reason.value,
        "audio_seconds": round(verdict.audio_s, 6),
        "segments_spoken": verdict.segments_spoken,
        "segments_given": verdict.segments_given,
        "error": error,
    }


class SegmentClock:
    """When each segment of a text begins and ends in the audio: samples counted, so exact.

    `began` and `ended` return the events that follow, as JSON values.
    """

    def __init__(self, sample_rate: int) -> None:
        self._rate = sample_rate
        self._samples = 0
        self._texts: dict[int, SegmentText] = {}
        self._speaking: int | None = None
        self._begin_s = 0.0

    @property
    def seconds(self) -> float:
        """Audio so far."""
        return round(self._samples / self._rate, 6)

    def told(self, text: SegmentText) -> None:
        """A segment will come."""
        self._texts[text.place] = text

    def began(self, place: int) -> list[dict[str, Any]]:
        """The next audio is of this segment."""
        if place == self._speaking:
            return []
        events = self.ended()
        self._speaking, self._begin_s = place, self.seconds
        return [*events, {"type": "speech.segment", **self._characters(place), "start": self._begin_s}]

    def heard(self, samples: int) -> None:
        """So much audio was sent."""
        self._samples += samples

    def ended(self) -> list[dict[str, Any]]:
        """The segment that was spoken is complete."""
        if self._speaking is None:
            return []
        place, self._speaking = self._speaking, None
        characters = self._characters(place)
        self._texts.pop(place, None)
        return [{"type": "speech.segment.done", **characters, "start": self._begin_s, "end": self.seconds}]

    def _characters(self, place: int) -> dict[str, Any]:
        text = self._texts.get(place)
        where = {} if text is None else {"start_character": text.start, "end_character": text.end}
        return {"segment": place, **where}


def _delta(data: bytes) -> bytes:
    return _event({"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()}) if data else b""


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
