"""Dispatches requests of all protocols: applies limits, deadlines and admission, and records how each ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import numpy as np

from vivavoce.engine.request import AudioChunk
from vivavoce.errors import (
    DeadlineExceeded,
    EngineStopped,
    InvalidRequest,
    InvalidText,
    ListenerStalled,
    RequestCancelled,
    StageFailed,
    VivavoceError,
)
from vivavoce.frontend.audio.tag import AudioTag, new_tag
from vivavoce.frontend.speech import (
    INSTRUCTIONS_LEFT_OUT,
    SILENCE_S,
    FinishReason,
    SegmentText,
    SpeechEvent,
    SpeechRequest,
    Verdict,
    foreign_to,
    without_instructions,
)
from vivavoce.frontend.speech_backend import SpeechBackend, SpeechStream
from vivavoce.logs import log_text
from vivavoce.server.key_limits import KeyLimits, KeyPermit
from vivavoce.server.long_text import check_length, speak_long
from vivavoce.server.metrics import RequestMetrics
from vivavoce.server.notice import NoticedStream, Notices
from vivavoce.server.rate_limiter import Principal
from vivavoce.server.request_log import RequestLog, RequestRecord
from vivavoce.server.settings import ProvenanceSection, RequestsSection

NOTED_CHARS = 500
"""Number of characters at the start of a text in which its language is detected, for a note to the client."""
NEAR_S = 0.25
"""If a client disconnects within this many seconds before its deadline, its request counts as timed out."""


class RequestDispatcher:
    def __init__(
        self,
        backend: SpeechBackend,
        *,
        request_log: RequestLog | None = None,
        rules: RequestsSection = RequestsSection(),
        provenance: ProvenanceSection = ProvenanceSection(),
        limits: KeyLimits | None = None,
        flow_steps: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """rules and provenance may change while requests run. flow_steps: the engine's own; None if unknown."""
        self.backend, self.rules, self.provenance, self.clock = backend, rules, provenance, clock
        self.flow_steps = flow_steps
        self.request_log = RequestLog() if request_log is None else request_log
        self.metrics = RequestMetrics()
        self.request_log.observers.append(self.metrics.ended)
        self._limits = KeyLimits() if limits is None else limits
        self._notices = Notices()
        self._active: dict[RequestRecord, ActiveRequest] = {}
        self._permitted = 0
        """Number of running requests for something other than speech."""
        self._empty = asyncio.Event()
        self._empty.set()
        self.draining = False

    @property
    def ready(self) -> bool:
        return self.backend.ready and not self.draining

    @property
    def active(self) -> int:
        return len(self._active)

    def tag(self, model: str = "") -> AudioTag | None:
        """Return the tag for an answer of this model that begins now, or None if the settings switch tags off."""
        return new_tag(self.backend.about.of(model).name) if self.provenance.tag else None

    @asynccontextmanager
    async def permitted(self, principal: Principal) -> AsyncIterator[None]:
        """Apply the limits to a request for something other than speech; `drain` waits for it. Errors: see `speak`."""
        self._check_draining()
        self._permitted += 1
        self._empty.clear()
        permit = None
        try:
            permit = await self._limits.enter(principal, 0)
            yield
        finally:
            if permit is not None:
                permit.leave()
            self._permitted -= 1
            self._note_end()

    async def speak(
        self,
        principal: Principal,
        request: SpeechRequest,
        *,
        protocol: str,
        request_id: str,
        deadline: float | None = None,
        begins: bool = True,
    ) -> ActiveRequest:
        """Accept a request. The caller must use the result as a context, or call its `cancel` at the end.

        deadline: the time of `clock` at which the request is ended; None: never. begins: the request begins an answer,
        so a spoken notice comes first if the settings have one.
        VivavoceError: the request is refused because of bad input, no room, a limit, no time left or a shutdown.
        """
        began, permit = self.clock(), None
        record = self.request_log.begin(request_id, principal.name, protocol, time.time())
        record.deadline = deadline
        self._empty.clear()
        try:
            self._check_draining()
            left_s = None if deadline is None else deadline - began
            if left_s is not None and left_s <= 0:
                raise _too_late("the request was accepted")
            check_length(len(request.text or ""), self.rules.max_text_chars)
            permit = await self._limits.enter(principal, len(request.text or ""))
            default = self.backend.about
            about = default.of(request.model)
            record.model = about.name if default.others else None
            if request.instruct and not about.instructions:
                if self.rules.instructions == "refuse":
                    raise InvalidRequest("instruct: the model that speaks cannot follow instructions; leave them out")
                request = replace(without_instructions(request), notes=(*request.notes, INSTRUCTIONS_LEFT_OUT))
            if request.text:
                begin = request.text[:NOTED_CHARS]
                request = replace(request, notes=request.notes + foreign_to(begin, request.language, about.languages))
            if principal.priority == "batch":
                request = replace(request, priority="batch")
            record.notes = request.notes
            stream: SpeechStream
            try:
                stream = await asyncio.wait_for(self._stream(request, begins), left_s)
            except InvalidText as error:
                stream = self.silence_for(error, len(request.text or ""), about.sample_rate)
            except (TimeoutError, asyncio.TimeoutError):
                raise _too_late("the request was accepted") from None
        except BaseException as error:
            if permit is not None:
                permit.leave()
            public, record.figures = _public(error), getattr(error, "figures", None)
            reason = FinishReason.CANCELLED if isinstance(public, RequestCancelled) else FinishReason.ERROR
            self.end(record, Verdict(reason, error=str(public), error_code=public.code), began)
            raise
        record.admission_s = self.clock() - began
        self.metrics.admitted(record)
        self._active[record] = active = ActiveRequest(self, record, request, stream, permit, began)
        return active

    async def _stream(self, request: SpeechRequest, begins: bool) -> SpeechStream:
        notice = self.provenance.notice if begins else None
        if notice is None:
            return await speak_long(request, self.backend.speak)
        samples = await self._notices.samples(notice, request.model, self.backend)
        return NoticedStream(await speak_long(request, self.backend.speak), samples)

    async def drain(self, seconds: float) -> None:
        """Refuse new requests; after `seconds`, end those that still run."""
        self.draining = True
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except (TimeoutError, asyncio.TimeoutError):
            for active in list(self._active.values()):
                active.fail(EngineStopped("server: it shuts down, and the speech was not finished in time; ask again"))

    def end(self, record: RequestRecord, verdict: Verdict, began: float) -> None:
        self._active.pop(record, None)
        self.request_log.end(record, verdict, self.clock() - began)
        self._note_end()

    def silence_for(self, error: InvalidText, characters: int, sample_rate: int) -> SilentStream:
        """Return silence if the text has nothing to say. Else, or if the settings refuse such texts, raise `error`."""
        if not error.nothing_to_say or self.rules.empty_text == "refuse":
            raise error
        return SilentStream(sample_rate, characters)

    def _check_draining(self) -> None:
        if self.draining:
            raise EngineStopped("server: it is shutting down; ask another one, or again in some seconds")

    def _note_end(self) -> None:
        if not self.request_log.running and not self._permitted:
            self._empty.set()


@dataclass
class SilentStream:
    sample_rate: int
    characters: int
    verdict: Verdict | None = None

    async def __aiter__(self) -> AsyncGenerator[SpeechEvent, None]:
        yield SegmentText(0, 0, self.characters)
        yield AudioChunk(np.zeros(round(SILENCE_S * self.sample_rate), np.float32), self.sample_rate, segment=0)
        self.verdict = Verdict(FinishReason.STOP, segments_spoken=1, segments_given=1)

    async def push(self, text: str) -> None: ...

    async def end(self) -> None: ...

    def cancel(self) -> None: ...


class ActiveRequest:
    """One accepted request for speech; iterate it once.

    A piece of audio counts as delivered when the next event is requested, because protocols first send the piece.
    """

    def __init__(
        self,
        dispatcher: RequestDispatcher,
        record: RequestRecord,
        request: SpeechRequest,
        stream: SpeechStream,
        permit: KeyPermit,
        began: float,
    ) -> None:
        self.request = request
        self._dispatcher, self._record, self._stream, self._permit = dispatcher, record, stream, permit
        self._began = self._last_at = began
        self.request_id, self.admission_s = record.request_id, record.admission_s or 0.0
        self.sample_rate, self.flow_steps = stream.sample_rate, request.flow_steps or dispatcher.flow_steps
        self.verdict: Verdict | None = None
        self._failure: VivavoceError | None = None
        self._events: AsyncGenerator[SpeechEvent, None] | None = None
        self._count_text(request.text or "")
        self._timer: asyncio.TimerHandle | None = None
        if record.deadline is not None:
            left_s = record.deadline - dispatcher.clock()
            self._timer = asyncio.get_running_loop().call_later(left_s, self.fail, _too_late("its speech was complete"))

    def __aiter__(self) -> AsyncGenerator[SpeechEvent, None]:
        self._events = self._iterate()
        return self._events

    async def _iterate(self) -> AsyncGenerator[SpeechEvent, None]:
        record, metrics, events = self._record, self._dispatcher.metrics, aiter(self._stream)
        try:
            while self.verdict is None:
                try:
                    event = await anext(events)
                except StopAsyncIteration:
                    break
                except InvalidText as error:  # a streamed text ended with nothing to say
                    self._stream = self._dispatcher.silence_for(error, record.characters, self.sample_rate)
                    events = aiter(self._stream)
                    continue
                if self.verdict is not None:
                    break  # the client or the server ended the request while this waited for the event
                if isinstance(event, SegmentText):
                    record.segments_given = max(record.segments_given, event.place + 1)
                    yield event
                    continue
                now = self._dispatcher.clock()
                if record.first_audio_s is None:
                    record.first_audio_s = now - self._began
                    metrics.first_audio.labels(record.protocol).observe(record.first_audio_s)
                elif self.request.priority == "live":
                    played_until = self._began + record.first_audio_s + record.audio_s
                    metrics.next_audio(now - self._last_at, now - played_until)
                self._last_at = now
                yield event
                if self.verdict is None:
                    record.audio_s += len(event.samples) / self.sample_rate
                    # Until the next segment begins, only the segments before this one are known to be spoken.
                    record.segments_spoken = max(0, event.segment)
        except Exception as error:
            record.figures = getattr(error, "figures", None)
            self._finish(FinishReason.ERROR, _public(error))
            raise
        finally:
            await events.aclose()
        if self._failure is not None:
            raise self._failure
        ended = self._stream.verdict
        if ended is None or ended.reason is FinishReason.CANCELLED:
            self._finish(FinishReason.CANCELLED)
        else:
            given = max(record.segments_given, ended.segments_given)
            self._end(replace(ended, audio_s=record.audio_s, segments_given=given))

    def whole(self) -> Verdict:
        """Return the verdict after the iteration. RequestCancelled, EngineStopped: not all of the text was spoken."""
        verdict = self.verdict
        if verdict is None or verdict.reason is FinishReason.CANCELLED:
            raise RequestCancelled("speech: it was ended before all of the text was spoken; ask again")
        if verdict.reason is FinishReason.ERROR:
            raise EngineStopped(verdict.error or "engine: it stopped before all of the text was spoken; ask again")
        return verdict

    async def push(self, text: str) -> None:
        """Add to a streamed text. InvalidText, Overloaded: this piece is refused; the text before it is spoken."""
        await self._permit.charge(len(text))
        self._count_text(text)
        await self._stream.push(text)

    async def end(self) -> None:
        await self._stream.end()

    def cancel(self) -> None:
        """End the request because its client cancels it or has disconnected; the iteration ends."""
        deadline = self._record.deadline
        if self.verdict is None and deadline is not None and self._dispatcher.clock() > deadline - NEAR_S:
            self.fail(_too_late("its speech was complete"))
        # A stream that failed has a verdict already, and may still hold requests and tasks.
        self._stream.cancel()
        self._finish(FinishReason.CANCELLED)

    def fail(self, error: VivavoceError) -> None:
        """End the request with an error, which the verdict names and the iteration raises."""
        self._failure = error
        self._stream.cancel()
        self._finish(FinishReason.ERROR, error)

    async def sent_within(self, seconds: float, sending: Awaitable[object]) -> None:
        try:
            await sent_within(seconds, sending)
        except ListenerStalled as stalled:
            self.fail(stalled)
            raise

    async def __aenter__(self) -> ActiveRequest:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()
        if self._events is not None:
            await self._events.aclose()

    def _count_text(self, text: str) -> None:
        self._record.characters += len(text)
        self._dispatcher.metrics.characters.inc(len(text))
        log_text(self.request_id, text)

    def _finish(self, reason: FinishReason, error: VivavoceError | None = None) -> None:
        record = self._record
        text, code = (None, None) if error is None else (str(error), error.code)
        warnings = () if self._stream.verdict is None else self._stream.verdict.warnings
        given = record.audio_s, record.segments_spoken, record.segments_given
        self._end(Verdict(reason, *given, text, code, warnings=warnings))

    def _end(self, verdict: Verdict) -> None:
        if self.verdict is not None:
            return
        self.verdict = verdict
        if self._timer is not None:
            self._timer.cancel()
        self._permit.leave()
        self._dispatcher.end(self._record, verdict, self._began)


async def sent_within(seconds: float, sending: Awaitable[object]) -> None:
    """Wait until a piece is sent. ListenerStalled: the client has not taken it within `seconds`."""
    try:
        await asyncio.wait_for(sending, seconds)
    except (TimeoutError, asyncio.TimeoutError):
        raise ListenerStalled(
            f"listener: has not read its audio for {seconds:g} s; read faster, or ask for less at a time"
        ) from None


def _too_late(what: str) -> DeadlineExceeded:
    return DeadlineExceeded(f"deadline: was over before {what}; give it more time, or ask for less at a time")


def _public(error: BaseException) -> VivavoceError:
    """Return the error for clients and the request log; protocols log unexpected errors with their tracebacks."""
    if isinstance(error, VivavoceError):
        return error
    if isinstance(error, Exception):
        return StageFailed(f"server: an internal error ({type(error).__name__}), which was logged; ask again")
    return RequestCancelled("request: its client disconnected")
