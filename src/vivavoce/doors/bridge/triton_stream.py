"""One request's speech from a Triton server: sentence by sentence, the next one asked for while the last is heard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from vivavoce.doors.bridge.sentence_source import ArrivingText, sentences_of
from vivavoce.doors.bridge.upstream_call import UpstreamCall
from vivavoce.errors import InvalidText, VivavoceError
from vivavoce.service.host.speaker import SegmentText, SpeechEvent, SpeechPiece
from vivavoce.service.host.verdict import FinishReason, Verdict
from vivavoce.service.text.checks import check_characters, check_length
from vivavoce.service.text.sentences import Sentence

Ask = Callable[[str, int], UpstreamCall]
"""Asks for a sentence, by its place among the segments."""

_Segment = tuple[Sentence, UpstreamCall]


class TritonStream:
    """See `SpeechStream`. A sentence is a segment, and a request to the server."""

    def __init__(self, text: str | None, sample_rate: int, ask: Ask, left: Callable[[TritonStream], None]) -> None:
        """text: None: it arrives; left: told once when it has ended."""
        self.sample_rate = sample_rate
        self.verdict: Verdict | None = None
        """How it ended; None while it goes on."""
        self._ask, self._left = ask, left
        self._arriving = ArrivingText() if text is None else None
        self._sentences = aiter(self._arriving) if self._arriving is not None else sentences_of(text or "")
        self._calls: list[UpstreamCall] = []
        """The one that is heard, and the next."""
        self._next: asyncio.Task[_Segment | None] | None = None
        self._progress = Verdict(FinishReason.CANCELLED, 0.0, 0, 0)

    async def __aiter__(self) -> AsyncIterator[SpeechEvent]:
        """See `SpeechStream`."""
        try:
            async for event in self._speak():
                yield event
                if self.verdict is not None:
                    return
        except VivavoceError as error:
            if self.verdict is not None:
                return
            self._finish(replace(self._progress, reason=FinishReason.ERROR, error=str(error), error_code=error.code))
            raise
        self._finish(replace(self._progress, reason=FinishReason.STOP))

    async def push(self, text: str) -> None:
        """See `SpeechStream`."""
        check_length(text)
        check_characters(text)
        if self._arriving is not None:
            self._arriving.push(text)

    async def end(self) -> None:
        """See `SpeechStream`."""
        if self._arriving is not None:
            self._arriving.push(None)

    def cancel(self) -> None:
        """See `SpeechStream`."""
        self._finish(self._progress)

    async def _speak(self) -> AsyncIterator[SpeechEvent]:
        segment = await self._ahead()
        if segment is None and self.verdict is None:
            raise InvalidText("text: nothing in it can be spoken; write at least one word")
        while segment is not None and self.verdict is None:
            sentence, call = segment
            place = self._progress.segments_given
            self._progress = replace(self._progress, segments_given=place + 1)
            yield SegmentText(place, sentence.start, sentence.end)
            async for chunk in call.chunks():
                self._next = self._next or asyncio.create_task(self._ask_next())
                yield SpeechPiece(chunk, place)
                self._progress = replace(self._progress, audio_s=self._progress.audio_s + len(chunk) / self.sample_rate)
            if self.verdict is not None:
                return  # it was cancelled
            self._calls.remove(call)
            self._progress = replace(self._progress, segments_spoken=place + 1)
            segment = await self._ahead()

    async def _ahead(self) -> _Segment | None:
        """The next sentence's call, which may have begun long ago; None: there is no more, or nobody listens."""
        task = self._next or asyncio.create_task(self._ask_next())
        self._next = task
        try:
            await asyncio.wait({task})
        finally:
            self._next = None if task.done() else task
        return None if task.cancelled() else task.result()

    async def _ask_next(self) -> _Segment | None:
        sentence = await anext(self._sentences, None)
        if sentence is None:
            return None
        call = self._ask(sentence.text, self._progress.segments_given)
        self._calls.append(call)
        return sentence, call

    def _finish(self, verdict: Verdict) -> None:
        """The first verdict stands; everything is let go."""
        if self.verdict is not None:
            return
        self.verdict = verdict
        if self._next is not None and not self._next.cancel() and not self._next.cancelled():
            self._next.exception()  # nobody will ask for it
        for call in self._calls:
            call.cancel()
        if self._arriving is not None:
            self._arriving.close()
        self._left(self)
