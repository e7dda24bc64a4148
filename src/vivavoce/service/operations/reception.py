"""Where every request for speech comes in, whatever the door: who may, how much, what became of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

from vivavoce.errors import (
    EngineStopped,
    ListenerStalled,
    Overloaded,
    RequestCancelled,
    StageFailed,
    VivavoceError,
    VoiceStoreAway,
)
from vivavoce.service.host.order import SpeechOrder
from vivavoce.service.host.speaker import SegmentText, Speaker, SpeechEvent, SpeechPiece, SpeechStream
from vivavoce.service.host.verdict import FinishReason, Verdict
from vivavoce.service.operations.allowances import Allowances, Pass
from vivavoce.service.operations.callers import Caller
from vivavoce.service.operations.ledger import Ledger
from vivavoce.service.operations.logs import tell_text
from vivavoce.service.operations.meters import Meters


class Reception:
    """One for all doors of a server; lives in its event loop."""

    def __init__(
        self,
        speaker: Speaker,
        *,
        ledger: Ledger,
        meters: Meters,
        allowances: Allowances,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.speaker, self.ledger, self.meters = speaker, ledger, meters
        self._allowances, self._clock = allowances, clock
        self._coming = 0
        """Requests that the speaker was asked for and has neither taken nor refused."""
        self._visits: set[Visit] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self.draining = False
        """It takes no more requests: the server shuts down."""

    @property
    def ready(self) -> bool:
        """Requests are taken now."""
        return self.speaker.ready and not self.draining

    @property
    def visits(self) -> int:
        """Requests that were taken and have not ended."""
        return len(self._visits)

    async def speak(self, caller: Caller, order: SpeechOrder, *, door: str, request_id: str) -> Visit:
        """Take a request in. Whoever asked closes the visit, whatever happens.

        Raises:
            VivavoceError: it was refused: bad input, no room, no allowance, shutting down.
        """
        began = self._clock()
        self.ledger.begin(request_id, caller.name, door, time.time())
        try:
            stream, permit = await self._taken(caller, order)
        except BaseException as error:
            told = _told(error)
            reason = FinishReason.CANCELLED if isinstance(told, RequestCancelled) else FinishReason.ERROR
            verdict = Verdict(reason, 0.0, 0, 0, str(told), told.code)
            self.ledger.end(request_id, verdict, first_audio_s=None, total_s=self._clock() - began)
            self.meters.refused(door, told.code)
            raise
        self.ledger.admitted(request_id, self._clock() - began)
        self.meters.accepted(door)
        tell_text(request_id, order.text or "")
        self.meters.characters(len(order.text or ""))
        visit = Visit(self, stream, permit, door=door, request_id=request_id, began=began, clock=self._clock)
        self._visits.add(visit)
        return visit

    async def _taken(self, caller: Caller, order: SpeechOrder) -> tuple[SpeechStream, Pass]:
        if self.draining:
            raise EngineStopped("server: it is shutting down; ask another one, or again in some seconds")
        permit = self._allowances.enter(caller, len(order.text or ""))
        self._coming += 1
        self._empty.clear()
        try:
            stream = await self.speaker.speak(order)
        except BaseException:
            permit.leave()
            self._coming -= 1
            self._note_empty()
            raise
        self._coming -= 1  # its visit takes its place before anyone looks
        return stream, permit

    async def drain(self, seconds: float) -> None:
        """Take no more requests, and wait until those that came before have ended, for so many seconds at most."""
        self.draining = True
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except (TimeoutError, asyncio.TimeoutError):
            for visit in list(self._visits):
                visit.fail(EngineStopped("server: it shuts down, and the speech was not finished in time; ask again"))

    def left(self, visit: Visit) -> None:
        """A visit has ended."""
        self._visits.discard(visit)
        self._note_empty()

    def _note_empty(self) -> None:
        if not self._visits and not self._coming:
            self._empty.set()


class Visit:
    """One request for speech, with its listener at a door; iterate it once.

    A piece counts as delivered when the listener asks for what comes next: doors send each before they go on.
    """

    def __init__(
        self,
        reception: Reception,
        stream: SpeechStream,
        permit: Pass,
        *,
        door: str,
        request_id: str,
        began: float,
        clock: Callable[[], float],
    ) -> None:
        self._reception, self._stream, self._permit, self._clock = reception, stream, permit, clock
        self._door, self._began = door, began
        self.request_id = request_id
        self.sample_rate = stream.sample_rate
        self.verdict: Verdict | None = None
        """How it ended; None while it goes on."""
        self._failure: VivavoceError | None = None
        """Why it was ended from outside."""
        self._audio_s = 0.0
        self._given = 0
        self._speaking: int | None = None
        """Place of the segment whose audio is being delivered."""
        self._first_at: float | None = None
        self._last_at = began

    async def __aiter__(self) -> AsyncIterator[SpeechEvent]:
        """What is said, in order; raises what it failed with, its verdict then being written."""
        try:
            async for event in self._stream:
                if self.verdict is not None:
                    break  # it was ended from outside
                if isinstance(event, SegmentText):
                    self._given = max(self._given, event.place + 1)
                    yield event
                else:
                    self._count_arrival()
                    yield event
                    self._count_delivery(event)
        except Exception as error:
            self._finish(self._verdict(FinishReason.ERROR, _told(error)))
            raise
        if self._failure is not None:
            raise self._failure
        ended = self._stream.verdict
        if ended is None or ended.reason is FinishReason.CANCELLED:
            self._finish(self._verdict(FinishReason.CANCELLED))
        else:
            self._given = max(self._given, ended.segments_given)
            self._finish(replace(ended, audio_s=self._audio_s, segments_given=self._given))

    def whole(self) -> Verdict:
        """Its verdict, after an iteration that raised nothing.

        Raises:
            RequestCancelled, EngineStopped: not all was spoken, which the listener has to be told.
        """
        verdict = self.verdict
        if verdict is None or verdict.reason is FinishReason.CANCELLED:
            raise RequestCancelled("speech: it was ended before all of the text was spoken; ask again")
        if verdict.reason is FinishReason.ERROR:
            raise EngineStopped(verdict.error or "engine: it stopped before all of the text was spoken; ask again")
        return verdict

    async def push(self, text: str) -> None:
        """More of a text that arrives piece by piece.

        Raises:
            InvalidText: it cannot be spoken; Overloaded: its caller may not send so many characters a minute. What came
                before goes on.
        """
        self._permit.charge(len(text))
        self._reception.meters.characters(len(text))
        tell_text(self.request_id, text)
        await self._stream.push(text)

    async def end(self) -> None:
        """All of an arriving text has come."""
        await self._stream.end()

    def cancel(self) -> None:
        """Give it up, as its caller wishes; the iteration ends."""
        self._stream.cancel()
        self._finish(self._verdict(FinishReason.CANCELLED))

    def fail(self, error: VivavoceError) -> None:
        """Give it up for a reason that its verdict tells, and that the iteration raises."""
        self._failure = error
        self._stream.cancel()
        self._finish(self._verdict(FinishReason.ERROR, error))

    def close(self) -> None:
        """Its listener is done, or has left: what it holds is freed."""
        self._stream.cancel()
        self._finish(self._verdict(FinishReason.CANCELLED))

    async def sent_within(self, seconds: float, sending: Awaitable[object]) -> None:
        """Wait until a piece was sent, which its listener may hold up for so many seconds.

        Raises:
            ListenerStalled: that took longer; the visit has ended with it.
        """
        try:
            await asyncio.wait_for(sending, seconds)
        except (TimeoutError, asyncio.TimeoutError):
            stalled = ListenerStalled(
                f"listener: has not read its audio for {seconds:g} s; read faster, or ask for less at a time"
            )
            self.fail(stalled)
            raise stalled from None

    async def __aenter__(self) -> Visit:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _count_arrival(self) -> None:
        now = self._clock()
        if self._first_at is None:
            self._first_at = now
            self._reception.meters.first_audio(self._door, now - self._began)
        else:
            self._reception.meters.piece(now - self._last_at, now - (self._first_at + self._audio_s))
        self._last_at = now

    def _count_delivery(self, piece: SpeechPiece) -> None:
        self._audio_s += len(piece.samples) / self.sample_rate
        self._speaking = piece.segment
        self._reception.ledger.progress(self.request_id, self._audio_s, self._spoken(), self._given)

    def _spoken(self) -> int:
        """Segments whose audio was delivered to the end, as far as one can tell before the next one begins."""
        return self._speaking or 0

    def _verdict(self, reason: FinishReason, error: VivavoceError | None = None) -> Verdict:
        return Verdict(
            reason,
            self._audio_s,
            self._spoken(),
            self._given,
            None if error is None else str(error),
            None if error is None else error.code,
        )

    def _finish(self, verdict: Verdict) -> None:
        """Write down how it ended; the first verdict stands."""
        if self.verdict is not None:
            return
        self.verdict = verdict
        now = self._clock()
        self._permit.leave()
        first_s = None if self._first_at is None else self._first_at - self._began
        self._reception.ledger.end(self.request_id, verdict, first_audio_s=first_s, total_s=now - self._began)
        self._reception.meters.ended(self._door, verdict.reason, verdict.audio_s, now - self._began)
        self._reception.left(self)


def _told(error: BaseException) -> VivavoceError:
    """What is written down of a request that ended so; a door logs what nobody foresaw."""
    if isinstance(error, VivavoceError):
        return error
    if isinstance(error, Exception):
        return StageFailed(f"server: an internal error ({type(error).__name__}), which was logged; ask again")
    return RequestCancelled("request: its listener left")


def retry_after_s(error: VivavoceError) -> float | None:
    """Seconds after which the same request may succeed; None where waiting does not help."""
    if isinstance(error, Overloaded):
        return error.retry_after_s
    return 5.0 if isinstance(error, (EngineStopped, VoiceStoreAway)) else None
