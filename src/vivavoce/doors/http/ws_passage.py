"""A stretch of an utterance's text that is spoken as one order: it grows until it is flushed or the text ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from vivavoce.errors import InvalidRequest, InvalidText, Overloaded, StageFailed, VivavoceError
from vivavoce.service.operations.reception import Visit
from vivavoce.service.text.checks import MAX_TEXT_CHARS

log = logging.getLogger(__name__)


class Passage:
    """Takes text at once and hands it on as soon as its order was taken in, so that nobody waits who has text.

    open: asks for the order; report: told of pieces that were refused, after which the passage goes on.
    """

    def __init__(
        self,
        first_character: int,
        open: Callable[[], Awaitable[Visit]],
        report: Callable[[VivavoceError], Awaitable[None]],
    ) -> None:
        self.first_character = first_character
        self.flushes = 0
        """Flushes to be confirmed when its audio was sent."""
        self.over = asyncio.Event()
        """Its audio was sent, and its order is closed."""
        self.problem: VivavoceError | None = None
        """Why its text could not be handed on."""
        self.blank = True
        """It has no text but white space."""
        self._length = 0
        self._open, self._report = open, report
        self._texts: asyncio.Queue[str | None] = asyncio.Queue()
        self._visit: asyncio.Future[Visit] = asyncio.get_running_loop().create_future()
        self._feeder = asyncio.create_task(self._feed())

    def push(self, text: str) -> None:
        """More of its text.

        Raises:
            InvalidText: it would become too long; nothing of the piece is taken.
        """
        if self._length + len(text) > MAX_TEXT_CHARS:
            raise InvalidText(
                f"text: {self._length + len(text)} characters without a flush are more than the limit of "
                f"{MAX_TEXT_CHARS}; send flush after a sentence, and the piece again"
            )
        if not text:
            return  # any number of them would have room
        self._length += len(text)
        self.blank = self.blank and not text.strip()
        self._texts.put_nowait(text)

    def end(self) -> None:
        """All of its text has come."""
        self._texts.put_nowait(None)

    async def visit(self) -> Visit:
        """Its order, once it was taken in; raises what it was refused with."""
        return await asyncio.shield(self._visit)

    def cancel(self) -> None:
        """Its caller gives it up."""
        self._feeder.cancel()
        if self._opened is not None:
            self._opened.cancel()

    def close(self, failure: VivavoceError | None = None) -> None:
        """Free what it holds; whoever waits for it goes on. failure: why its order ends, if it has not ended."""
        self._feeder.cancel()
        if self._opened is not None and failure is not None:
            self._opened.fail(failure)
        elif self._opened is not None:
            self._opened.close()
        elif not self._visit.done():
            self._visit.cancel()
        self.over.set()

    @property
    def _opened(self) -> Visit | None:
        if not self._visit.done() or self._visit.cancelled() or self._visit.exception() is not None:
            return None
        return self._visit.result()

    async def _feed(self) -> None:
        try:
            visit = await self._open()
        except Exception as error:
            if not self._visit.done():
                self._visit.set_exception(error)
            return
        if self._visit.done():
            visit.close()
            return
        self._visit.set_result(visit)
        try:
            while (text := await self._texts.get()) is not None:
                await self._hand_on(visit, text)
            await visit.end()
        except VivavoceError as error:
            self._fail(visit, error)
        except Exception:
            log.exception("the text of request %s could not be handed on", visit.request_id)
            self._fail(visit, StageFailed("server: an internal error, which was logged; ask again"))

    async def _hand_on(self, visit: Visit, text: str) -> None:
        try:
            await visit.push(text)
        except (InvalidRequest, Overloaded) as error:
            await self._report(error)

    def _fail(self, visit: Visit, error: VivavoceError) -> None:
        self.problem = error
        visit.fail(error)
