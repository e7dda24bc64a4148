"""Speech as an HTTP answer, sent while it is made: audio of one format, or server-sent events with a verdict."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from vivavoce.engine.request import AudioChunk
from vivavoce.errors import InvalidRequest, ListenerStalled, RequestCancelled, StageFailed, VivavoceError, VoiceNotFound
from vivavoce.frontend.audio.encode import OutputFormat, encode
from vivavoce.frontend.audio.encoders import Encoder
from vivavoce.frontend.speech import SegmentText, SpeechRequest, Verdict
from vivavoce.logs import current_scope
from vivavoce.server.dispatcher import ActiveRequest
from vivavoce.server.http.app_state import ADMISSION_HEADER, FLOW_STEPS_HEADER, SPEED_HEADER, WARNING_HEADER, state_of
from vivavoce.server.http.errors import error_body, renamed
from vivavoce.server.http.listener import drop_connection
from vivavoce.server.rate_limiter import Principal
from vivavoce.server.segment_clock import SegmentClock

log = logging.getLogger(__name__)

_HALF = re.compile("[\ud800-\udfff]")
"""A lone UTF-16 surrogate, which JSON can contain as an escape sequence."""
_HEADERS = {
    "cache-control": "no-store",
    "x-accel-buffering": "no",
    "referrer-policy": "no-referrer",  # the URL may hold the text to speak
    "x-content-type-options": "nosniff",
}


class AudioBody:
    media_type = ""
    """Content type of the body; if empty, the audio format determines it."""

    def __init__(self, active: ActiveRequest) -> None:
        self._active = active

    def announce(self, segment: SegmentText) -> None: ...

    def piece(self, chunk: AudioChunk, data: bytes) -> bytes:
        """Return the bytes that a chunk adds to the body; data: the encoded chunk."""
        return data

    def end(self, data: bytes) -> bytes:
        """Return the last bytes of the body; data: the end of the encoded audio. Raises if the speech is incomplete."""
        self._active.whole()
        return data

    def failed(self, error: VivavoceError) -> bytes:
        """Return the last bytes of a body after a failure; raise the error if this format cannot tell of a failure."""
        raise error


class TimedBody(AudioBody):
    """Audio in frames that a subclass makes, with marks at both ends of segments and, if requested, for words."""

    start_mark, end_mark, words_mark = "", "done", "words"

    def __init__(self, active: ActiveRequest) -> None:
        super().__init__(active)
        self._clock = SegmentClock(active.sample_rate, self.start_mark, self.end_mark, self.words_mark)

    def announce(self, segment: SegmentText) -> None:
        self._clock.announce(segment)

    def piece(self, chunk: AudioChunk, data: bytes) -> bytes:
        marks = [*self._clock.begin(chunk.segment), *self._clock.words(chunk.words)]
        self._clock.add(len(chunk.samples))
        return self.frame(data, marks)

    def end(self, data: bytes) -> bytes:
        self._active.whole()
        return self.frame(data, self._clock.end())

    def frame(self, data: bytes, marks: list[dict[str, Any]]) -> bytes:
        raise NotImplementedError


class EventBody(TimedBody):
    """Audio in server-sent events, with segments and a verdict.

    The first event comes with the first audio. An earlier failure gives an error answer; a later one gives an event.
    """

    media_type = "text/event-stream; charset=utf-8"
    start_mark, end_mark, words_mark = "speech.segment", "speech.segment.done", "speech.words"

    def frame(self, data: bytes, marks: list[dict[str, Any]]) -> bytes:
        audio = [{"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()}] if data else []
        return b"".join(f"data: {compact_json(event)}\n\n".encode() for event in (*marks, *audio))

    def end(self, data: bytes) -> bytes:
        if not self._clock.seconds:
            self._active.whole()
        return self.frame(data, self._clock.end()) + self.frame(b"", [self._done()])

    def failed(self, error: VivavoceError) -> bytes:
        if not self._clock.seconds:
            raise error
        return self.frame(b"", [{"type": "error", "error": error_body(error)}, self._done()])

    def _done(self) -> dict[str, Any]:
        verdict = self._active.verdict
        assert verdict is not None
        read, made = verdict.text_tokens or 0, verdict.speech_tokens or 0
        usage = {"input_tokens": read, "output_tokens": made, "total_tokens": read + made}
        return {
            "type": "speech.audio.done",
            "usage": usage,
            "verdict": verdict_body(self._active.request_id, verdict),
        }


class SpeechAnswer(Response):
    """The answer to a request for speech: passes the request to the dispatcher, and sends the audio piece by piece.

    A failure before the first bytes gives a normal error answer. A later failure drops the connection, so that the
    client sees that the body is incomplete. The request ends at once if its client disconnects, and with
    ListenerStalled if its client does not read for `listener_timeout_s`. A request id that the principal has used
    before is replaced by a new one. For a HEAD request nothing is spoken.
    """

    def __init__(
        self,
        request: Request,
        principal: Principal,
        wanted: SpeechRequest,
        output: OutputFormat,
        *,
        protocol: str,
        deadline: float | None,
        body: type[AudioBody] = AudioBody,
        field_names: Mapping[str, str] | None = None,
    ) -> None:
        """field_names: see `errors.renamed`, for errors of the dispatcher."""
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._request, self._state = request, state_of(request)
        self._principal, self._wanted, self._output = principal, wanted, output
        self._protocol, self._deadline = protocol, deadline
        self._body, self._field_names = body, field_names or {"transcript": "prompt_text"}
        self._active: ActiveRequest | None = None
        self._has_started = self._is_over = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._request.state.is_head:
            about = self._state.dispatcher.backend.about.of(self._wanted.model)
            await self._start(send, about.sample_rate)
            await send({"type": "http.response.body", "body": b""})
            return
        leaving = asyncio.ensure_future(_until_disconnected(receive))
        speaking = asyncio.ensure_future(self._speak(send))
        try:
            await asyncio.wait((leaving, speaking), return_when=asyncio.FIRST_COMPLETED)
            if speaking.done():
                speaking.result()
            elif self._has_started:
                drop_connection()  # the client has disconnected, or the rest of its body does not come
            else:
                leaving.result()  # raises if the rest of the request's body was refused
                if self._active is None:
                    raise RequestCancelled("request: its client left before there was audio")
        finally:
            leaving.cancel()
            speaking.cancel()
            self._is_over = True
            if self._active is not None:
                self._active.cancel()
            # A cancellation is lost if it comes just as a task's wait ends; then the cancelled request ends the task.
            await asyncio.gather(leaving, speaking, return_exceptions=True)

    async def _speak(self, send: Send) -> None:
        dispatcher, scope = self._state.dispatcher, current_scope()
        identity = dispatcher.request_log.accept_request_id(self._request.state.request_id, self._principal)
        self._request.state.request_id = identity
        if scope is not None:
            scope.request_id = identity
        try:
            active = self._active = await dispatcher.speak(
                self._principal, self._wanted, protocol=self._protocol, request_id=identity, deadline=self._deadline
            )
        except (InvalidRequest, VoiceNotFound) as error:
            raise renamed(error, self._field_names) from None
        async with active:
            if self._is_over:
                active.cancel()
            try:
                with closing(self._output.open(active.sample_rate, dispatcher.tag(self._wanted.model))) as encoder:
                    last = await self._send_speech(active, encoder, self._body(active), send)
                await self._deliver(active, last, send, is_last=True)
            except VivavoceError as error:
                if not self._has_started:
                    raise
                log.info("request cut: %(error_code)s", {"error_code": error.code})
                drop_connection()
            except Exception:
                active.fail(StageFailed("server: an internal error, which was logged; tell its operator this id"))
                raise

    async def _send_speech(self, active: ActiveRequest, encoder: Encoder, body: AudioBody, send: Send) -> bytes:
        """Send all bytes except the last ones, and return those: the caller sends them after closing the encoder."""
        try:
            async for event in active:
                if isinstance(event, SegmentText):
                    body.announce(event)
                    continue
                data = await encode(encoder, event.samples)
                if piece := body.piece(event, data):
                    await self._deliver(active, piece, send, is_last=False)
            return body.end(await encode(encoder, None))
        except ListenerStalled:
            raise
        except VivavoceError as error:
            return body.failed(error)

    async def _deliver(self, active: ActiveRequest, data: bytes, send: Send, *, is_last: bool) -> None:
        patience_s = self._state.settings.server.listener_timeout_s
        if not self._has_started:
            if is_last and not data:
                raise RequestCancelled("request: it ended before there was audio")
            await active.sent_within(patience_s, self._start(send, active.sample_rate, active))
        message = {"type": "http.response.body", "body": data, "more_body": not is_last}
        await active.sent_within(patience_s, send(message))

    async def _start(self, send: Send, sample_rate: int, active: ActiveRequest | None = None) -> None:
        """Send the head of the answer; active: None for an answer to HEAD."""
        self._has_started = True
        self.headers["content-type"] = self._body.media_type or self._output.content_type(sample_rate)
        if active is not None:
            self.headers[ADMISSION_HEADER] = f"{active.admission_s:.3f}"
            self.headers[SPEED_HEADER] = f"{active.request.speed:g}"
            if active.flow_steps is not None:
                self.headers[FLOW_STEPS_HEADER] = active.flow_steps
            if active.request.notes:
                self.headers[WARNING_HEADER] = "; ".join(active.request.notes)
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})


async def _until_disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def compact_json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if text.isascii() or not _HALF.search(text):
        return text
    return json.dumps(value, separators=(",", ":"))  # UTF-8 cannot encode a lone surrogate, but an escape can


def verdict_body(request_id: str, verdict: Verdict) -> dict[str, Any]:
    return {
        "request_id": request_id,
        "finish_reason": verdict.reason.value,
        "audio_seconds": round(verdict.audio_s, 6),
        "segments_spoken": verdict.segments_spoken,
        "segments_given": verdict.segments_given,
        "error": None if verdict.error is None else {"code": verdict.error_code, "message": verdict.error},
        **({"warnings": list(verdict.warnings)} if verdict.warnings else {}),
        **({"delivery": asdict(verdict.delivery)} if verdict.delivery else {}),
    }
