"""A listener's end of a request: audio as it is made, cancelling, text that is still arriving."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vivavoce.engine.request import Arrival, AudioChunk, SynthesisRequest
from vivavoce.errors import InvalidRequest, RequestCancelled


@dataclass(frozen=True)
class RequestTimings:
    """Seconds of one request; what did not happen is None.

    started_s, first_token_s, first_chunk_s, finished_s: after it was accepted; lm_s, flow_s, vocoder_s: its share of
    the stages' work (a batch's time divided by its rows); underruns: chunks that came after their listener had played
    everything before.
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
class Spoken:
    """A finished request: the speech tokens of each segment, all samples [n] float32, what it took.

    cut: for each segment, whether it was ended for its length, as in `Outcome`; segment_samples: how many of the
    samples speak each segment, in order.
    """

    tokens: tuple[tuple[int, ...], ...]
    samples: NDArray[np.float32]
    timings: RequestTimings
    cut: tuple[bool, ...] = ()
    segment_samples: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How a request ended; `error`: None if all its audio was made.

    cut: for each segment in `tokens`, whether the language model was ended at the most speech tokens that it may have
    rather than by itself. False where the number of tokens was asked for, where they were given, and where text arrives
    token by token, which ends with an error instead.
    """

    error: Exception | None
    tokens: tuple[tuple[int, ...], ...]
    timings: RequestTimings
    cut: tuple[bool, ...] = ()


class Outbox:
    """What was made for one request, in order: the loop's thread writes, one listener in any thread reads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._chunks: deque[AudioChunk] = deque()
        self._outcome: Outcome | None = None
        self._wakers: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._text_wanted = False
        self._texts_sent = 0
        """Texts that were pushed and that the loop has not read yet."""

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None while it goes on."""
        return self._outcome

    def put(self, chunk: AudioChunk) -> None:
        """The next chunk is there."""
        with self._changed:
            self._chunks.append(chunk)
            self._wake()

    def end(self, outcome: Outcome) -> None:
        """No more chunks will come; the first outcome stands."""
        with self._changed:
            if self._outcome is None:
                self._outcome = outcome
                self._wake()

    def want_text(self, wanted: bool) -> None:
        """Speech waits for more of its text, or does not any more."""
        with self._changed:
            if wanted != self._text_wanted:
                self._text_wanted = wanted
                self._wake()

    def text_sent(self) -> None:
        """More text is on its way: until it was read, nobody knows whether speech waits for still more."""
        with self._changed:
            self._texts_sent += 1

    def text_read(self) -> None:
        """The text that was sent has arrived, or will not."""
        with self._changed:
            self._texts_sent -= 1
            self._wake()

    def wait_for_text_wanted(self) -> bool:
        """Block until speech waits for its text; False: the request has ended and wants none."""
        with self._changed:
            self._changed.wait_for(lambda: (self._text_wanted and not self._texts_sent) or self._outcome is not None)
            return self._outcome is None

    def get(self) -> AudioChunk | None:
        """The next chunk, None at the end; blocks. Raises what the request ended with."""
        with self._changed:
            self._changed.wait_for(lambda: self._chunks or self._outcome is not None)
            return self._take()

    async def get_async(self) -> AudioChunk | None:
        """`get` for an event loop, which is not blocked."""
        while True:
            with self._changed:
                if self._chunks or self._outcome is not None:
                    return self._take()
                loop = asyncio.get_running_loop()
                waker = loop.create_future()
                self._wakers.append((loop, waker))
            await waker

    def _take(self) -> AudioChunk | None:
        if self._chunks:
            return self._chunks.popleft()
        assert self._outcome is not None
        if self._outcome.error is not None:
            raise self._outcome.error
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


More = SynthesisRequest | tuple[int, ...] | Exception | None
"""What arrives of a text: a segment, text ids, None for its end, or what kept the rest from coming."""


def check_arrival(more: More, arrival: Arrival) -> None:
    """Refuse text that a request has no place for.

    Raises:
        InvalidRequest: it takes text of another form, or all of its text was there from the start.
    """
    if more is None or isinstance(more, Exception):
        return
    if arrival is not (Arrival.SEGMENTS if isinstance(more, SynthesisRequest) else Arrival.TOKENS):
        given = "a segment was" if isinstance(more, SynthesisRequest) else "text ids were"
        raise InvalidRequest(f"text: {given} pushed to a request of arrival {arrival.value}; push what it takes")


class ArrivingText:
    """The end of a request at which its text comes in; from any thread."""

    def __init__(self, outbox: Outbox, push: Callable[[More], None]) -> None:
        self._outbox, self._push = outbox, push
        self._closed = False

    def push(self, more: Sequence[int] | SynthesisRequest) -> None:
        """More text: ids, or a whole segment, as the request's `Arrival` says.

        Raises:
            InvalidRequest: the segment does not fit the model, or ids came where segments are awaited, or the other
                way round, or after the end; what was pushed before goes on.
        """
        if self._closed:
            raise InvalidRequest("text: its end was announced; send more in a new request")
        self._send(more if isinstance(more, SynthesisRequest) else tuple(more))

    def close(self) -> None:
        """All of it has arrived."""
        self._closed = True
        self._send(None)

    def fail(self, error: Exception) -> None:
        """No more can come. What has come is spoken, then the listener gets the error."""
        self._closed = True
        self._send(error)

    def wait_until_wanted(self) -> bool:
        """Block until speech waits for more text; False: the request has ended and wants none."""
        return self._outbox.wait_for_text_wanted()

    def _send(self, more: More) -> None:
        self._outbox.text_sent()
        try:
            self._push(more)
        except BaseException:
            self._outbox.text_read()
            raise


class Handle:
    """One submitted request. Iterate it, in a thread or an event loop, for its chunks; one listener at a time.

    Leaving the iteration early, or letting go of the handle, cancels the request.
    """

    def __init__(self, outbox: Outbox, cancel: Callable[[], None], push: Callable[[More], None]) -> None:
        self._outbox, self._cancel = outbox, cancel
        self.text = ArrivingText(outbox, push)
        """Where the rest of a text comes in that arrives piece by piece."""

    @property
    def done(self) -> bool:
        """Nothing more is made for it."""
        return self._outbox.outcome is not None

    @property
    def timings(self) -> RequestTimings:
        """What it took; empty until it is done."""
        outcome = self._outbox.outcome
        return RequestTimings() if outcome is None else outcome.timings

    @property
    def tokens(self) -> tuple[tuple[int, ...], ...]:
        """Speech tokens of each segment; empty until the request is done."""
        outcome = self._outbox.outcome
        return () if outcome is None else outcome.tokens

    @property
    def cut(self) -> tuple[bool, ...]:
        """For each segment whether it was ended for its length, see `Outcome`; empty until the request is done."""
        outcome = self._outbox.outcome
        return () if outcome is None else outcome.cut

    def __iter__(self) -> Generator[AudioChunk, None, None]:
        """Chunks in order, each as soon as it is made; raises what the request failed with."""
        try:
            while (chunk := self._outbox.get()) is not None:
                yield chunk
        finally:
            self.cancel()

    async def __aiter__(self) -> AsyncGenerator[AudioChunk, None]:
        """The same in an event loop."""
        try:
            while (chunk := await self._outbox.get_async()) is not None:
                yield chunk
        finally:
            self.cancel()

    def result(self) -> Spoken:
        """Wait for the end and return everything; raises what the request failed with."""
        return self._spoken(list(self))

    async def result_async(self) -> Spoken:
        """`result` for an event loop."""
        return self._spoken([chunk async for chunk in self])

    def cancel(self) -> None:
        """Give it up: its slot and state are freed within a step. After the end: nothing happens."""
        if not self.done:
            self._outbox.end(Outcome(RequestCancelled("request: was cancelled"), (), RequestTimings()))
            self._cancel()

    def __del__(self) -> None:
        self.cancel()

    def _spoken(self, chunks: Sequence[AudioChunk]) -> Spoken:
        outcome = self._outbox.outcome
        assert outcome is not None
        samples = [chunk.samples for chunk in chunks]
        joined = np.concatenate(samples) if samples else np.zeros(0, np.float32)
        counts = _segment_samples(chunks, len(outcome.tokens))
        return Spoken(outcome.tokens, joined, outcome.timings, outcome.cut, counts)


def _segment_samples(chunks: Sequence[AudioChunk], segments: int) -> tuple[int, ...]:
    counts = [0] * segments
    for chunk in chunks:
        if len(chunk.samples):
            counts[chunk.segment] += len(chunk.samples)
    return tuple(counts)
