"""A listener's end of a request for speech tokens: tokens as they are drawn, and cancelling."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import suppress

from vivavoce.errors import RequestCancelled


class TokenOutbox:
    """Tokens of one request, in order: the engine's thread writes, one listener in any thread reads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tokens: list[int] = []
        self._ended = False
        self._error: Exception | None = None
        self._wakers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    @property
    def ended(self) -> bool:
        """No more tokens will come; some may not have been taken yet."""
        return self._ended

    def put(self, tokens: Sequence[int]) -> None:
        """More tokens are there."""
        with self._changed:
            self._tokens += tokens
            self._wake()

    def end(self, error: Exception | None) -> None:
        """No more tokens will come; the first end stands. error: what the listener gets after the tokens."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
                self._wake()

    def get(self) -> list[int] | None:
        """All tokens that came since the last call, None at the end; blocks. Raises what the request ended with."""
        with self._changed:
            self._changed.wait_for(lambda: self._tokens or self._ended)
            return self._take()

    async def get_async(self) -> list[int] | None:
        """`get` for an event loop, which is not blocked."""
        while True:
            with self._changed:
                if self._tokens or self._ended:
                    return self._take()
                loop = asyncio.get_running_loop()
                waker = loop.create_future()
                self._wakers.append((loop, waker))
            await waker

    def _take(self) -> list[int] | None:
        if self._tokens:
            tokens, self._tokens = self._tokens, []
            return tokens
        if self._error is not None:
            raise self._error
        return None

    def _wake(self) -> None:
        self._changed.notify_all()
        wakers, self._wakers = self._wakers, []
        for loop, waker in wakers:
            with suppress(RuntimeError):  # the listener's event loop was closed: nobody listens
                loop.call_soon_threadsafe(_resolve, waker)


def _resolve(waker: asyncio.Future[None]) -> None:
    if not waker.done():
        waker.set_result(None)


class TokenHandle:
    """One submitted request. Iterate it, in a thread or an event loop, for lists of speech tokens; one listener at a
    time, who gets in one list what came since the last one.

    Leaving the iteration early, or letting go of the handle, cancels the request.
    """

    def __init__(self, outbox: TokenOutbox, cancel: Callable[[], None]) -> None:
        self._outbox, self._cancel = outbox, cancel

    @property
    def done(self) -> bool:
        """Nothing more is drawn for it."""
        return self._outbox.ended

    def __iter__(self) -> Generator[list[int], None, None]:
        """Tokens in order, as they are drawn; raises what the request failed with, after those that came before."""
        try:
            while (tokens := self._outbox.get()) is not None:
                yield tokens
        finally:
            self.cancel()

    async def __aiter__(self) -> AsyncGenerator[list[int], None]:
        """The same in an event loop."""
        try:
            while (tokens := await self._outbox.get_async()) is not None:
                yield tokens
        finally:
            self.cancel()

    def result(self) -> list[int]:
        """Wait for the end and return all tokens; raises what the request failed with."""
        return [token for tokens in self for token in tokens]

    async def result_async(self) -> list[int]:
        """`result` for an event loop."""
        return [token async for tokens in self for token in tokens]

    def cancel(self) -> None:
        """Give it up: its slot is freed within a step. After the end: nothing happens."""
        if not self.done:
            self._outbox.end(RequestCancelled("request: was cancelled"))
            self._cancel()

    def __del__(self) -> None:
        self.cancel()
