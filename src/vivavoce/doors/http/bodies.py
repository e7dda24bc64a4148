"""Bodies of requests, bounded: each in bytes and in the time it may take, all together in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vivavoce.doors.http.errors import refusal, response_of
from vivavoce.errors import Overloaded, RequestCancelled, TooLarge, VivavoceError

BODIES_AT_ONCE = 16
"""So many bodies of the greatest size may be in memory at once, and so many messages of WebSockets."""
LINGER_S = 10.0
"""How long what is too large is still read, and thrown away: who writes all before reading would not see the answer."""
PAUSE_S = 1.0
"""Who writes nothing for so long meanwhile is not about to."""


class BodyLimits:
    """Around an app: bodies of at most `each` bytes, `together` in memory at once, with pauses of `pause_s` at most.

    What passes a limit is answered with 413, 429 or 408 in place of the app, and ends the connection.
    """

    def __init__(self, app: ASGIApp, *, each: int, together: int, pause_s: float) -> None:
        self._app, self._each, self._together, self._pause_s = app, each, together, pause_s
        self._held = 0
        """Bytes of bodies that were not answered yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        promised = Headers(scope=scope).get("content-length", "")
        if promised.isdigit() and int(promised) > self._each:
            await _refuse(response_of(self._too_large(int(promised))), scope, receive, send)
            return
        intake = _Intake(receive, self._take, self._pause_s)
        started = False

        async def unless_refused(message: Message) -> None:
            nonlocal started
            if started or intake.refused is None:
                started = True
                self._release(intake)  # speech may go on for minutes after what it needs of the body was handed over
                await send(message)

        try:
            await self._app(scope, intake.receive, unless_refused)
        finally:
            self._release(intake)
        if intake.refused is not None and not started:
            await _refuse(intake.refused, scope, receive, send)

    def _take(self, added: int, size: int) -> None:
        self._held += added
        if size > self._each:
            raise self._too_large(size)
        if self._held > self._together:
            raise Overloaded(f"uploads: {self._held} bytes are being read, the limit is {self._together}", 2.0)

    def _release(self, intake: _Intake) -> None:
        self._held -= intake.size
        intake.size = 0

    def _too_large(self, size: int) -> TooLarge:
        return TooLarge(f"body: {size} bytes are more than the limit of {self._each}; send a shorter recording")


class _Intake:
    """The body of one request on its way to the app."""

    def __init__(self, receive: Receive, take: Callable[[int, int], None], pause_s: float) -> None:
        self._receive, self._take, self._pause_s = receive, take, pause_s
        self._complete = False
        self.size = 0
        self.refused: Response | None = None
        """What is to be answered in place of whatever the app makes of a body that breaks off."""

    async def receive(self) -> Message:
        """The next message; what comes after the body (that the client has left) may take any time.

        Raises:
            VivavoceError: the rest of the body will not come, or is not wanted; it is for ending the app's work only.
        """
        if self._complete:
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), self._pause_s)
        except (TimeoutError, asyncio.TimeoutError):
            raise self._stalled() from None
        if message["type"] == "http.disconnect":
            raise RequestCancelled("request: its client left before all of its body had come")
        self._complete = not message.get("more_body", False)
        added = len(message.get("body", b""))
        self.size += added
        try:
            self._take(added, self.size)
        except VivavoceError as error:
            self.refused = response_of(error)
            raise
        return message

    def _stalled(self) -> VivavoceError:
        message = f"body: nothing of it came for {self._pause_s:g} s; send it at once"
        self.refused = refusal(408, message, "request_timeout")
        return RequestCancelled(message)


async def _refuse(answer: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer, and read on for a while what is still being sent before the answer, and with it the connection, ends."""

    async def unfinished(message: Message) -> None:
        await send({**message, "more_body": True} if message["type"] == "http.response.body" else message)

    answer.headers["connection"] = "close"
    await answer(scope, receive, unfinished)
    with suppress(TimeoutError, asyncio.TimeoutError):
        await asyncio.wait_for(_discard(receive), LINGER_S)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _discard(receive: Receive) -> None:
    while (await asyncio.wait_for(receive(), PAUSE_S)).get("more_body", False):
        pass
