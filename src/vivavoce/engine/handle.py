"""The handle of a request: through it the listener takes audio or tokens, cancels, or sends more text."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from vivavoce.engine.request import AudioChunk, SegmentRequest, SpeechTokens
from vivavoce.errors import InvalidRequest, RequestCancelled

T = TypeVar("T")
"""The type of the pieces: `AudioChunk`, or a list of speech tokens."""


@dataclass
class RequestTimings:
    """Times of one request in seconds; a time is None if its event has not happened.

    started_s, first_token_s, first_chunk_s, finished_s: seconds after the request was accepted; lm_s, flow_s,
    vocoder_s: the request's share of the stages' work (a batch's time divided by its rows); underruns: number of chunks
    that came after the listener had played all audio before them.
    """

    started_s: float | None = None
    first_token_s: float | None = None
    first_chunk_s: float | None = None
    finished_s: float | None = None
    lm_s: float = 0.0
    flow_s: float = 0.0
    vocoder_s: float = 0.0
    underruns: int = 0


@dataclass(frozen=True, eq=False)
class RequestResult:
    """The result of a request that has ended.

    error: None if all audio was made; tokens: speech tokens of each segment; cut: for each segment in `tokens`, whether
    the language model was stopped at its limit of speech tokens instead of ending by itself (always False if an exact
    number of tokens was asked for, if the tokens were given, or if text arrives token by token, where the limit is an
    error); samples: all samples, [n] float32; segment_samples: number of samples of each segment; reached:
    `AudioChunk.reached` of each whole segment (only `RequestHandle.result` sets samples, segment_samples and reached);
    attended: for each segment, the attention to each of its text tokens, summed over the speech tokens, None for a
    segment that was not followed; faults: each fault that the guard found, and whether it was removed before it was
    heard.
    """

    error: Exception | None = None
    tokens: tuple[tuple[int, ...], ...] = ()
    timings: RequestTimings = field(default_factory=RequestTimings)
    cut: tuple[bool, ...] = ()
    samples: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    segment_samples: tuple[int, ...] = ()
    reached: tuple[tuple[tuple[int, float], ...] | None, ...] = ()
    attended: tuple[tuple[float, ...] | None, ...] = ()
    faults: tuple[tuple[str, bool], ...] = ()


class Outbox(Generic[T]):
    """One request's audio or tokens, in order: the loop's thread writes, one listener in any thread reads."""

    def __init__(self) -> None:
        self.outcome: RequestResult | None = None
        """The result; None until the request has ended."""
        self.begun = False
        self._changed = threading.Condition()
        self._made: deque[T] = deque()
        self._wakers: list[Callable[[], object]] = []
        self._text_wanted = False
        self._texts_sent = 0
        """Number of pushed texts that the loop has not read yet."""

    def put(self, made: T) -> None:
        """Add a piece. Lists of tokens that the listener has not taken yet are joined into one list."""
        with self._changed:
            if self._made and isinstance(made, list) and isinstance(self._made[-1], list):
                self._made[-1].extend(made)
            else:
                self._made.append(made)
            self._wake()

    def begin(self) -> None:
        with self._changed:
            self.begun = True
            self._wake()

    def end(self, outcome: RequestResult) -> None:
        """Record the request's result; later calls change nothing."""
        with self._changed:
            if self.outcome is None:
                self.outcome = outcome
                self._wake()

    def want_text(self, wanted: bool) -> None:
        """Note whether synthesis waits for more text."""
        with self._changed:
            if wanted != self._text_wanted:
                self._text_wanted = wanted
                self._wake()

    def text_sent(self, count: int) -> None:
        """Add to the count of texts that the loop has not read: 1 if a text was sent, −1 if a text was read or refused.
        While there are unread texts, it is unknown whether synthesis waits for text."""
        with self._changed:
            self._texts_sent += count
            self._wake()

    def text_wanted_or_ended(self) -> bool:
        return (self._text_wanted and not self._texts_sent) or self.outcome is not None

    def wait(self, happened: Callable[[], bool]) -> None:
        """Block until `happened` returns True."""
        with self._changed:
            self._changed.wait_for(happened)

    def get(self) -> T | None:
        """Wait for the next piece, and return it; None if the request has ended. Raises the request's error."""
        with self._changed:
            while not (self._made or self.outcome):
                self._changed.wait()
            if self._made:
                return self._made.popleft()
            assert self.outcome is not None
            if self.outcome.error is not None:
                raise self.outcome.error
            return None

    async def get_async(self) -> T | None:
        await self.until(lambda: bool(self._made or self.outcome))
        return self.get()

    async def until(self, happened: Callable[[], bool]) -> None:
        """Wait in an event loop until `happened` returns True."""
        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        while True:
            with self._changed:
                if happened():
                    return
                changed.clear()
                self._wakers.append(partial(loop.call_soon_threadsafe, changed.set))
            await changed.wait()

    def _wake(self) -> None:
        self._changed.notify_all()
        wakers, self._wakers = self._wakers, []
        for wake in wakers:
            with suppress(RuntimeError):  # the listener's event loop was closed
                wake()


More = SegmentRequest | SpeechTokens | tuple[int, ...] | Exception | None
"""More input for a request: a segment, speech tokens, text ids, None at the end, or an error if no more can come."""


class ArrivingText:
    """Sends text to a request while it is being spoken. Any thread may call it.

    It does not refer to the handle, because a dropped handle cancels its request, and a thread that still sends text
    must not keep the handle alive.
    """

    def __init__(self, outbox: Outbox[T], push: Callable[[More], None]) -> None:
        self._outbox: Outbox[Any] = outbox
        self._push, self._closed = push, False

    def wait_until_wanted(self) -> bool:
        """Block until synthesis waits for more text; return False if the request has ended."""
        self._outbox.wait(self._outbox.text_wanted_or_ended)
        return self._outbox.outcome is None

    async def until_wanted(self) -> bool:
        """`wait_until_wanted` for an event loop."""
        await self._outbox.until(self._outbox.text_wanted_or_ended)
        return self._outbox.outcome is None

    def push(self, more: Sequence[int] | SegmentRequest | SpeechTokens) -> None:
        """Send more: text ids, a whole segment, or speech tokens, as the request's `InputMode` says.

        Raises:
            InvalidRequest: it does not fit the model or `InputMode`, or the text has ended; earlier input is spoken.
        """
        if self._closed:
            raise InvalidRequest("text: the end of the text was announced; send more in a new request")
        self._send(more if isinstance(more, SegmentRequest | SpeechTokens) else tuple(more))

    def close(self) -> None:
        """Announce that all text has arrived."""
        self._closed = True
        self._send(None)

    def fail(self, error: Exception) -> None:
        """Announce that no more text can come. The text so far is spoken, then the listener gets `error`."""
        self._closed = True
        self._send(error)

    def _send(self, more: More) -> None:
        self._outbox.text_sent(1)
        try:
            self._push(more)
        except BaseException:
            self._outbox.text_sent(-1)
            raise


class RequestHandle(Generic[T]):
    """One submitted request. Iterate over it in a thread or an event loop to get its pieces; one listener at a time.

    If the iteration is left early, or the handle is dropped, the request is cancelled.
    """

    def __init__(
        self,
        outbox: Outbox[T],
        cancel: Callable[[], None],
        push: Callable[[More], None],
        change: Callable[[T], T] = lambda made: made,
    ) -> None:
        """change: a function that is applied to each piece before the listener gets it."""
        self._outbox, self._cancel, self._push, self._change = outbox, cancel, push, change

    @cached_property
    def text(self) -> ArrivingText:
        """The object through which more text, or more speech tokens, are sent to the request."""
        return ArrivingText(self._outbox, self._push)

    @property
    def done(self) -> bool:
        """Whether the request has ended."""
        return self._outbox.outcome is not None

    @property
    def outcome(self) -> RequestResult:
        """The result of the request; an empty `RequestResult` until the request has ended."""
        return self._outbox.outcome or RequestResult()

    def __iter__(self) -> Generator[T, None, None]:
        """Yield each piece in order, as soon as it exists; raises the request's error."""
        try:
            while (made := self._outbox.get()) is not None:
                yield self._change(made)
        finally:
            self.cancel()

    async def __aiter__(self) -> AsyncGenerator[T, None]:
        try:
            while (made := await self._outbox.get_async()) is not None:
                yield self._change(made)
        finally:
            self.cancel()

    async def begun_async(self) -> None:
        """Wait in an event loop until the request has started, or has ended."""
        await self._outbox.until(lambda: self._outbox.begun or self.done)

    def result(self) -> RequestResult:
        """Wait for the end and return everything; raises the request's error."""
        return self._result(list(self))

    async def result_async(self) -> RequestResult:
        """`result` for an event loop."""
        return self._result([made async for made in self])

    def cancel(self) -> None:
        """Cancel the request; its slot and state are freed within one step. If the request has ended, do nothing."""
        if self._outbox.outcome is None:
            self._outbox.end(RequestResult(RequestCancelled("request: was cancelled")))
            self._cancel()

    __del__ = cancel

    def _result(self, made: Sequence[T]) -> RequestResult:
        outcome, counts = self.outcome, [0] * len(self.outcome.tokens)
        samples = [np.zeros(0, np.float32)]
        reached: list[tuple[tuple[int, float], ...] | None] = [None] * len(counts)
        for chunk in made:
            if isinstance(chunk, AudioChunk) and counts:
                samples.append(chunk.samples)
                counts[chunk.segment] += len(chunk.samples)
                if chunk.reached is not None:
                    reached[chunk.segment] = (*(reached[chunk.segment] or ()), *chunk.reached)
        whole = np.concatenate(samples)
        return replace(outcome, samples=whole, segment_samples=tuple(counts), reached=tuple(reached))


Handle = RequestHandle[AudioChunk]
TokenHandle = RequestHandle[list[int]]
"""A handle with lists of speech tokens as pieces; each list has the tokens that are new since the list before it."""
