"""The listener's end of a request that another process speaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from vivavoce.errors import EngineStopped, VivavoceError
from vivavoce.service.host.messages import Cancel, Heard, MoreText
from vivavoce.service.host.speaker import SegmentText, SpeechEvent, SpeechPiece
from vivavoce.service.host.verdict import FinishReason, Verdict
from vivavoce.service.text.checks import check_characters, check_length


class RemoteStream:
    """See `SpeechStream`. How much may wait here the other process bounds, which is told what was heard."""

    def __init__(self, number: int, sample_rate: int, send: Callable[[Any], None]) -> None:
        self._number, self._send = number, send
        self.sample_rate = sample_rate
        self.verdict: Verdict | None = None
        """How it ended; None while it goes on."""
        self._events: asyncio.Queue[SpeechEvent | None] = asyncio.Queue()
        self._error: VivavoceError | None = None
        self._audio_s = 0.0
        self._given = 0
        self.ended = asyncio.Event()
        """Nothing more is made for it."""

    async def __aiter__(self) -> AsyncIterator[SpeechEvent]:
        """See `SpeechStream`."""
        while (event := await self._events.get()) is not None:
            yield event
            if isinstance(event, SpeechPiece):
                self._send(Heard(self._number, event.segment))
        if self._error is not None:
            raise self._error

    async def push(self, text: str) -> None:
        """See `SpeechStream`."""
        check_length(text)
        check_characters(text)
        if self.verdict is None:
            self._send(MoreText(self._number, text))

    async def end(self) -> None:
        """See `SpeechStream`."""
        if self.verdict is None:
            self._send(MoreText(self._number, None))

    def cancel(self) -> None:
        """See `SpeechStream`."""
        if self.verdict is None:
            self._send(Cancel(self._number))
            self._finish(Verdict(FinishReason.CANCELLED, self._audio_s, 0, self._given), None)

    def said(self, event: SpeechEvent) -> None:
        """The next event is there."""
        if self.verdict is not None:
            return
        if isinstance(event, SegmentText):
            self._given = max(self._given, event.place + 1)
        else:
            self._audio_s += len(event.samples) / self.sample_rate
        self._events.put_nowait(event)

    def over(self, verdict: Verdict, error: VivavoceError | None) -> None:
        """The other process has no more."""
        if self.verdict is not None:
            return
        if verdict.reason is FinishReason.CANCELLED:
            # Not from here: it leaves, and what was made is no whole speech.
            self.lost(EngineStopped("engine: its process gave the request up; ask again in some seconds"))
        else:
            self._finish(verdict, error)

    def lost(self, error: VivavoceError) -> None:
        """The other process has gone."""
        if self.verdict is None:
            self._finish(Verdict(FinishReason.ERROR, self._audio_s, 0, self._given, str(error), error.code), error)

    def _finish(self, verdict: Verdict, error: VivavoceError | None) -> None:
        self.verdict, self._error = verdict, error
        if verdict.reason is FinishReason.CANCELLED:
            while not self._events.empty():  # nobody will take it
                self._events.get_nowait()
        self._events.put_nowait(None)
        self.ended.set()
