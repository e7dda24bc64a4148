"""An answer that is made while it is sent: its status follows the first bytes, its end tells whether it is whole."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from vivavoce.doors.http.connections import drop
from vivavoce.errors import RequestCancelled, StageFailed, VivavoceError
from vivavoce.service.operations.reception import Visit

log = logging.getLogger(__name__)


class StreamedSpeech(Response):
    """The body that `frames` makes of a visit, sent piece by piece.

    What fails before the first bytes is an error answer as any other. After them the body is broken off: a client sees
    that it is cut, and a whole one ends as HTTP wants it. A client that leaves ends the visit at once; one that does
    not read for `patience_s` ends it with ListenerStalled, and its connection is dropped.
    """

    def __init__(
        self,
        visit: Visit,
        frames: AsyncGenerator[bytes, None],
        *,
        media_type: str,
        headers: Mapping[str, str],
        patience_s: float,
    ) -> None:
        super().__init__(media_type=media_type, headers={"cache-control": "no-store", **headers})
        del self.headers["content-length"]
        self._visit, self._frames, self._patience_s = visit, frames, patience_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all of it, or as much as there will be."""
        leaving = asyncio.ensure_future(_left(receive))
        sending = asyncio.ensure_future(self._send(send))
        try:
            await asyncio.wait((leaving, sending), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        except _BrokenOff:
            drop(scope)
        except VivavoceError:
            raise
        except Exception:
            self._visit.fail(StageFailed("server: an internal error, which was logged; tell its operator this id"))
            raise
        finally:
            leaving.cancel()
            sending.cancel()
            self._visit.close()
            # Both end now, sending at its next piece if its cancellation met the end of a wait and was lost.
            await asyncio.gather(leaving, sending, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        started = False
        try:
            async with aclosing(self._frames) as frames:
                async for frame in frames:
                    if not started:
                        started = True
                        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                        await self._sent(send, head)
                    await self._sent(send, {"type": "http.response.body", "body": frame, "more_body": True})
        except VivavoceError as error:
            if not started:
                raise
            log.info("request %s was cut: %s", self._visit.request_id, error.code)
            raise _BrokenOff from None
        if not started:
            raise RequestCancelled("request: it ended before there was audio")
        await self._sent(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _sent(self, send: Send, message: dict[str, object]) -> None:
        await self._visit.sent_within(self._patience_s, send(message))


class _BrokenOff(Exception):
    """The body ends before its time."""


async def _left(receive: Receive) -> None:
    """Wait until the client has left; raises where it still sends, and what it sends cannot be taken."""
    while (await receive())["type"] != "http.disconnect":
        pass
