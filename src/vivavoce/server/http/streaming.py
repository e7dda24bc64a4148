"""Speech as an HTTP answer, made while it is sent: bytes of one format, or server-sent events with a verdict."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, closing
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from vivavoce.errors import RequestCancelled, StageFailed, VivavoceError
from vivavoce.frontend.audio.encode import OutputFormat, encode
from vivavoce.frontend.speech import SegmentText, SpeechRequest, Verdict
from vivavoce.logs import current_scope
from vivavoce.server.dispatcher import ActiveRequest
from vivavoce.server.http.app_state import (
    ADMISSION_HEADER,
    SPEED_HEADER,
    WARNING_HEADER,
    request_id,
    state_of,
)
from vivavoce.server.http.errors import error_body
from vivavoce.server.http.listener import drop_connection
from vivavoce.server.rate_limiter import Principal
from vivavoce.server.segment_clock import SegmentClock

log = logging.getLogger(__name__)

_HEADERS = {
    "cache-control": "no-store",
    "x-accel-buffering": "no",
    "referrer-policy": "no-referrer",  # an address that is opened may hold a text and a signature
    "x-content-type-options": "nosniff",
}


class StreamedSpeech(Response):
    """The audio of an active request, or its events, sent piece by piece.

    A failure before the first bytes is an error answer as any other. After them the body is broken off: a client sees
    that it is cut, and a whole one ends as HTTP wants it. A client that leaves ends the request at once; one that does
    not read for `patience_s` ends it with ListenerStalled, and its connection is dropped.
    """

    def __init__(
        self, active: ActiveRequest, pieces: AsyncGenerator[bytes, None], *, media_type: str, patience_s: float
    ) -> None:
        wanted = active.request
        headers = {**_HEADERS, ADMISSION_HEADER: f"{active.admission_s:.3f}", SPEED_HEADER: f"{wanted.speed:g}"}
        if wanted.notes:
            headers[WARNING_HEADER] = "; ".join(wanted.notes)
        super().__init__(media_type=media_type, headers=headers)
        del self.headers["content-length"]
        self._active, self._patience_s, self._pieces = active, patience_s, pieces
        self._has_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all of it, or as much as there will be."""
        leaving = asyncio.ensure_future(_until_left(receive))
        sending = asyncio.ensure_future(self._send(send))
        try:
            await asyncio.wait((leaving, sending), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
            elif self._has_started:
                drop_connection()  # the client has left, or the rest of its body does not come
            else:
                leaving.result()  # a body that is refused after all
        except VivavoceError:
            raise
        except Exception:
            self._active.fail(StageFailed("server: an internal error, which was logged; tell its operator this id"))
            raise
        finally:
            leaving.cancel()
            sending.cancel()
            self._active.cancel()
            # Both end now, sending at its next piece if its cancellation met the end of a wait and was lost.
            await asyncio.gather(leaving, sending, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        try:
            async with aclosing(self._pieces) as pieces:
                async for piece in pieces:
                    if not self._has_started:
                        self._has_started = True
                        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                        await self._send_message(send, head)
                    await self._send_message(send, {"type": "http.response.body", "body": piece, "more_body": True})
        except VivavoceError as error:
            if not self._has_started:
                raise
            log.info("request cut: %(error_code)s", {"error_code": error.code})
            drop_connection()
            return
        if not self._has_started:
            raise RequestCancelled("request: it ended before there was audio")
        await self._send_message(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_message(self, send: Send, message: dict[str, object]) -> None:
        await self._active.sent_within(self._patience_s, send(message))


async def speak(
    request: Request,
    principal: Principal,
    wanted: SpeechRequest,
    output: OutputFormat,
    *,
    door: str,
    deadline: float | None,
    media_type: str = "",
    form: Callable[[ActiveRequest, OutputFormat], AsyncGenerator[bytes, None]] | None = None,
) -> Response:
    """The answer to a request for speech that was taken in. RequestCancelled: its client left before.

    form: makes the body, of this media type; None: it is the bare audio. The request gets another id than its client
    wants if the principal has used that one before. To HEAD nothing is spoken.
    """
    state, scope = state_of(request), current_scope()
    if request.state.is_head:
        media_type = media_type or output.content_type(state.dispatcher.backend.about.sample_rate)
        looked_at = Response(media_type=media_type, headers=_HEADERS)
        del looked_at.headers["content-length"]
        return looked_at
    identity = request.state.request_id = state.dispatcher.request_log.accept_request_id(request_id(request), principal)
    if scope is not None:
        scope.request_id = identity
    taking = state.dispatcher.speak(principal, wanted, protocol=door, request_id=identity, deadline=deadline)
    leaving, taken, active = asyncio.ensure_future(_until_left(request.receive)), asyncio.ensure_future(taking), None
    try:
        await asyncio.wait((leaving, taken), return_when=asyncio.FIRST_COMPLETED)
        if not taken.done():
            leaving.result()  # a body that is refused after all
            raise RequestCancelled("request: its client left before there was audio")
        active = taken.result()
    finally:
        leaving.cancel()
        taken.cancel()
        _, late = await asyncio.gather(leaving, taken, return_exceptions=True)
        if active is None and isinstance(late, ActiveRequest):
            late.cancel()  # the task's own cancellation met the end of a wait and was lost
    patience_s = state.settings.server.listener_timeout_s
    media_type = media_type or output.content_type(active.sample_rate)
    return StreamedSpeech(active, (form or encoded)(active, output), media_type=media_type, patience_s=patience_s)


async def _until_left(receive: Receive) -> None:
    """Wait until the client has left; raises where it still sends, and what it sends cannot be taken."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def encoded(active: ActiveRequest, output: OutputFormat) -> AsyncGenerator[bytes, None]:
    """All of a request's audio, each piece as soon as it was made; raises the failure of one that is not whole."""
    with closing(output.open(active.sample_rate)) as encoder:
        async for event in active:
            if isinstance(event, SegmentText):
                continue
            if data := await encode(output, partial(encoder.encode, event.samples)):
                yield data
        active.whole()
        if rest := await encode(output, encoder.finish):
            yield rest


async def speech_events(active: ActiveRequest, output: OutputFormat) -> AsyncGenerator[bytes, None]:
    """The same as events, of which the first come with the first audio: until then a failure is an error answer."""
    clock = SegmentClock(active.sample_rate, "speech.segment", "speech.segment.done")
    with closing(output.open(active.sample_rate)) as encoder:
        try:
            async for event in active:
                if isinstance(event, SegmentText):
                    clock.announce(event)
                    continue
                marks = clock.begin(event.segment)
                data = await encode(output, partial(encoder.encode, event.samples))
                clock.add(len(event.samples))
                yield _lines(*marks, *_delta(data))
            if clock.reached is None:
                active.whole()
        except VivavoceError as error:
            if clock.reached is None:
                raise
            last = [{"type": "error", "error": error_body(error)}]
        else:
            last = [*clock.end(), *_delta(await encode(output, encoder.finish))]
    assert active.verdict is not None
    read, made = active.verdict.text_tokens or 0, active.verdict.speech_tokens or 0
    usage = {"input_tokens": read, "output_tokens": made, "total_tokens": read + made}
    verdict = verdict_body(active.request_id, active.verdict)
    yield _lines(*last, {"type": "speech.audio.done", "usage": usage, "verdict": verdict})


def _delta(data: bytes) -> list[dict[str, Any]]:
    return [{"type": "speech.audio.delta", "audio": base64.b64encode(data).decode()}] if data else []


def _lines(*events: dict[str, Any]) -> bytes:
    return b"".join(
        b"data: " + json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n" for event in events
    )


def verdict_body(request_id: str, verdict: Verdict) -> dict[str, Any]:
    """A verdict as clients get it."""
    return {
        "request_id": request_id,
        "finish_reason": verdict.reason.value,
        "audio_seconds": round(verdict.audio_s, 6),
        "segments_spoken": verdict.segments_spoken,
        "segments_given": verdict.segments_given,
        "error": None if verdict.error is None else {"code": verdict.error_code, "message": verdict.error},
    }
