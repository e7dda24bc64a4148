"""One utterance of a WebSocket: text in piece by piece, its audio out in order, by one order or by several."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from vivavoce.doors.http.encoding import Encoding, open_encoding
from vivavoce.doors.http.ws_marks import Marks
from vivavoce.doors.http.ws_outbox import Reply, failure_of
from vivavoce.doors.http.ws_passage import Passage
from vivavoce.errors import InvalidRequest, InvalidText, VivavoceError
from vivavoce.service.audio.formats import AudioFormat
from vivavoce.service.host.speaker import SegmentText, SpeechPiece
from vivavoce.service.host.verdict import FinishReason, Verdict
from vivavoce.service.operations.reception import Visit
from vivavoce.service.text.checks import MAX_TEXT_CHARS

PIECES_PER_S = 10
"""Frames of a second of audio at least: so finely it can be stopped."""
MAX_WAITING = 200
"""Flushed passages that have not been spoken."""

Ask = Callable[[str], Awaitable[Visit]]
"""Asks for the next order of an utterance, by its request id."""


class Utterance:
    """From a start to its done, cancelled or error."""

    def __init__(
        self,
        request_id: str,
        response_format: AudioFormat,
        ask: Ask,
        send: Callable[[Reply], Awaitable[None]],
    ) -> None:
        self.request_id, self._format = request_id, response_format
        self._ask, self._send = ask, send
        self._asked = 0
        self._characters = 0
        self._lead_in = ""
        """White space since the last flush, which belongs to what follows."""
        self._passages: list[Passage] = []
        """Those that were not over when the last one began, and that one."""
        self._current: Passage | None = None
        self._queue: asyncio.Queue[Passage | None] = asyncio.Queue()
        self._verdicts: list[Verdict] = []
        self._marks: Marks | None = None
        self._encoding: Encoding | None = None
        self._stopped = False
        self.ended = False
        """All of its text has come."""
        self._begin_passage("")
        self.delivery = asyncio.create_task(self._deliver())
        """Ends when all audio was sent; raises VivavoceError, or what the socket raised."""

    def push(self, text: str) -> None:
        """More text.

        Raises:
            InvalidRequest: all of it had come already, or it is too long; nothing is taken.
        """
        if self.ended:
            raise InvalidRequest("text: it comes after the end; wait for done, then send start")
        if self._current is not None:
            self._current.push(text)
        elif len(self._lead_in + text) > MAX_TEXT_CHARS:
            raise InvalidText(
                f"text: {len(self._lead_in + text)} characters since the last flush are more than the limit of "
                f"{MAX_TEXT_CHARS}; leave white space out"
            )
        elif (self._lead_in + text).strip():
            self._begin_passage(self._lead_in + text)
            self._lead_in = ""
        else:
            self._lead_in += text
        self._characters += len(text)

    async def flush(self) -> None:
        """Speak what has come without waiting for more; confirmed when it was sent.

        Raises:
            InvalidRequest: too much is flushed and not spoken.
        """
        if self._current is not None and not self._current.blank:
            if len(self._passages) >= MAX_WAITING:
                raise InvalidRequest(f"flush: {MAX_WAITING} are waiting already; send more when some are confirmed")
            self._current.end()
            self._current.flushes += 1
            self._current = None
        elif self._current is None and not self._passages[-1].over.is_set():
            self._passages[-1].flushes += 1
        else:
            await self._send({"type": "flushed"})

    def end(self) -> None:
        """All of the text has come. A second time: nothing happens."""
        if self.ended:
            return
        self.ended = True
        if self._current is not None:
            self._current.end()
            self._current = None
        self._queue.put_nowait(None)

    async def stop(self) -> None:
        """Give up: when this returns nothing more is sent, and the speaker is told."""
        self._stopped = True
        for passage in self._passages:
            passage.cancel()
        self.delivery.cancel()
        await asyncio.wait({self.delivery})
        self.close()

    def close(self, failure: VivavoceError | None = None) -> None:
        """Free everything that it holds; failure: what the verdict of an order tells that has none yet."""
        self._stopped = True
        if self.delivery.done() and not self.delivery.cancelled():
            self.delivery.exception()  # whoever wanted to know has looked
        self.delivery.cancel()
        for passage in self._passages:
            passage.close(failure)
        if self._encoding is not None:
            self._encoding.close()

    def cancelled(self) -> Reply:
        """What is told of one that was stopped: how much was sent, and where in the text that ends."""
        marks = self._marks
        return {
            "type": "cancelled",
            "request_id": self.request_id,
            "audio_seconds": round(marks.seconds, 6) if marks else 0.0,
            "reached": marks.reached() if marks else None,
        }

    def done(self, error: VivavoceError | None = None) -> Reply:
        """The verdict of all its orders together."""
        reasons = {verdict.reason for verdict in self._verdicts}
        reason = FinishReason.LENGTH if FinishReason.LENGTH in reasons else FinishReason.STOP
        verdict: dict[str, Any] = {
            "request_id": self.request_id,
            "finish_reason": (FinishReason.ERROR if error else reason).value,
            "audio_seconds": round(self._marks.seconds, 6) if self._marks else 0.0,
            "segments_spoken": sum(verdict.segments_spoken for verdict in self._verdicts),
            "segments_given": sum(verdict.segments_given for verdict in self._verdicts),
            "error": {"code": error.code, "message": str(error)} if error else None,
        }
        return {"type": "done", "verdict": verdict}

    async def refused_piece(self, error: VivavoceError) -> None:
        """Tell of a piece that is left out."""
        try:
            await self._send(failure_of(error))
        except Exception:  # the client has left, or does not read: its session takes that from the delivery's end
            self.delivery.cancel()

    def _begin_passage(self, text: str) -> None:
        """The first at once, so that a bad voice is told at once; later ones with their first words."""
        self._passages = [passage for passage in self._passages if not passage.over.is_set()]
        before = self._passages[-1] if self._passages else None

        async def opened() -> Visit:
            # One listener is one stream: two at once would take the room of two, and be refused where one has room.
            if before is not None:
                await before.over.wait()
            self._asked += 1
            return await self._ask(self.request_id if self._asked == 1 else f"{self.request_id}.{self._asked}")

        passage = Passage(self._characters - len(self._lead_in), opened, self.refused_piece)
        self._passages.append(passage)
        self._current = passage
        self._queue.put_nowait(passage)
        if text:
            passage.push(text)

    async def _deliver(self) -> None:
        while (passage := await self._queue.get()) is not None:
            visit = await passage.visit()
            if self._marks is None:
                await self._started(visit)
            try:
                await self._speak(visit, passage)
            except VivavoceError as error:
                visit.fail(error)
                raise
            finally:
                if visit.verdict is not None:
                    self._verdicts.append(visit.verdict)
            passage.close()
            for _ in range(passage.flushes):
                await self._say({"type": "flushed"})
        if self._encoding is not None and (rest := await self._encoding.finish()):
            await self._send({"type": "audio", "audio": rest})

    async def _started(self, visit: Visit) -> None:
        self._marks = Marks(visit.sample_rate)
        self._encoding = open_encoding(self._format, visit.sample_rate)
        await self._say(
            {
                "type": "started",
                "request_id": self.request_id,
                "sample_rate": visit.sample_rate,
                "response_format": self._format.value,
            }
        )

    async def _speak(self, visit: Visit, passage: Passage) -> None:
        assert self._marks is not None
        self._marks.begin_order(passage.first_character)
        async for event in visit:
            if isinstance(event, SegmentText):
                self._marks.told(event)
                continue
            for reply in self._marks.before(event.segment):
                await self._say(reply)
            await self._say_piece(event, visit.sample_rate)
        try:
            visit.whole()
        except VivavoceError as error:
            raise passage.problem or error from None
        for reply in self._marks.end_order():
            await self._say(reply)

    async def _say_piece(self, piece: SpeechPiece, sample_rate: int) -> None:
        assert self._encoding is not None
        assert self._marks is not None
        step = sample_rate // PIECES_PER_S
        for start in range(0, len(piece.samples), step):
            samples = piece.samples[start : start + step]
            if encoded := await self._encoding.encode(samples):
                await self._send({"type": "audio", "audio": encoded})
            self._marks.sent(len(samples))
            self._check()

    async def _say(self, reply: Reply) -> None:
        await self._send(reply)
        self._check()

    def _check(self) -> None:
        """A cancellation can be lost in what waits for the transport, so that it is looked for, too."""
        if self._stopped:
            raise asyncio.CancelledError
