"""The session of a streamed request, from its text to its audio, for the Python API and the servers."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, islice

from vivavoce.engine.chunk_policy import ChunkPolicy, policy_for
from vivavoce.engine.engine import EngineInterface
from vivavoce.engine.handle import ArrivingText, Handle, Outbox, RequestResult
from vivavoce.engine.request import AudioChunk, EngineRequest, InputMode, Word
from vivavoce.errors import InvalidText, RequestCancelled
from vivavoce.frontend.delivery import delivery_of, reason_of, warnings_about
from vivavoce.frontend.front_end import FrontEnd, PlannedSegment
from vivavoce.frontend.speech import (
    Delivery,
    HeardText,
    Mark,
    SegmentText,
    SpeakOptions,
    SpeechEvent,
    Verdict,
    heard_until,
    marks_of,
    warnings_of,
)
from vivavoce.frontend.text_heads import know_heads
from vivavoce.frontend.text_threads import in_thread, read_in_loop, start_thread
from vivavoce.frontend.voices.voice import Voice
from vivavoce.frontend.word_times import WordTimer
from vivavoce_textnorm import MAX_BLOCK_CHARS

Text = str | Iterable[str] | AsyncIterable[str]
AHEAD = 4
"""The engine gets this many segments after the segment being heard: fewer may cause gaps, more may be wasted work."""


class RequestSession(Iterator[AudioChunk], AsyncIterator[AudioChunk]):
    """A stream of speech over an engine and a front end.

    `start` takes the text and submits its beginning to the engine. Then the listener takes chunks in one of three ways:
    `for chunk in session`; `async for chunk in session`; or, for a listener in another process, `session.events()` with
    calls of `session.on_heard(segment)`, which report the segment being heard. The engine gets a segment when the
    listener is within `AHEAD` segments of it. `close`, or deleting the session, cancels the request and frees its
    memory.

        session = RequestSession(engine, front_end, ChunkPolicy.low_latency())
        session.start("Hello there.", voice, SpeakOptions(seed=1))  # blocks while the front end plans the text
        async for chunk in session: ...
        session.marks  # characters and times of the segments
        session.verdict()  # why the audio ended, and warnings
    """

    def __init__(
        self,
        engine: EngineInterface,
        front_end: FrontEnd,
        policy: ChunkPolicy | None = None,
        later: Callable[[RequestSession], None] | None = None,
    ) -> None:
        """Open a session without a text. Raises the errors of `policy_for`.

        policy: how the audio is cut into chunks; the model's default if None. later: a function that calls `start`. The
        session calls it when the listener asks for the first chunk, in a thread if `async for` is used."""
        self._engine, self._front_end, self._later = engine, front_end, later
        self._progress = _Progress()
        self.handle = _NOT_STARTED
        """The handle of the engine's request; before `start`, a handle without chunks."""
        self.policy = policy_for(front_end.config.generation, policy)
        self.batch = False
        """Whether the request has no deadlines, see `EngineRequest`; set it before `start`."""
        self._language: str | None = None
        self._chunks: Iterator[AudioChunk] | None = None
        self._chunks_async: AsyncIterator[AudioChunk] | None = None

    def start(self, text: Text, voice: Voice, options: SpeakOptions = SpeakOptions(), silent: bool = False) -> None:
        """Plan the text's beginning and submit it to the engine.

        text: a text, or an iterable of its pieces, for example from a language model. This call reads a block of a long
        text, or pieces until the first sentence or words are complete. A thread reads and checks the rest while the
        beginning is spoken. silent: as in `FrontEnd.plan`. Raises Overloaded, RequestCancelled if the session is closed
        during this call, and the errors of `FrontEnd.plan`."""
        progress, self._language, options = self._progress, options.language, self._front_end.resolved(options)
        progress.word_times = options.word_times
        if options.follows:
            progress.timer = WordTimer()
            know_heads(self._engine, self._front_end)
        if isinstance(text, AsyncIterable) and progress.loop is not None:
            text, progress.end_source = read_in_loop(text, progress.loop)
            if progress.closed.is_set():
                progress.end_source()
        if isinstance(text, str):
            progress.text = text
            segments = self._front_end.plan(text, voice, options, progress.closed.is_set, silent)
            # All of a short text is read now, so that the engine knows whether more segments will follow.
            is_short = len(text) <= MAX_BLOCK_CHARS
            near = list(islice(segments, AHEAD + 2 if is_short else 1))
            arrival = InputMode.WHOLE if is_short and len(near) < AHEAD + 2 else InputMode.SEGMENTS
            near, segments = near[: AHEAD + 1], chain(near[AHEAD + 1 :], segments)
        elif not isinstance(text, Iterable) or isinstance(text, bytes):
            problem = f"text: {type(text).__name__} is not text"
            raise InvalidText(f"{problem}; give a string, an iterable of strings, or an async one to astream")
        else:
            arrival = progress.arrival = self._front_end.arrival
            pieces, is_closed = progress.reading(text), progress.closed.is_set
            segments = self._front_end.plan_arriving(pieces, voice, options, is_closed, silent)
            near = list(islice(segments, 1))
            if not near:
                raise InvalidText("text: all pieces are empty; send some text", nothing_to_say=True)
            if near[0].request.pause_s and arrival is InputMode.TOKENS:  # the text has no words
                arrival = progress.arrival = InputMode.WHOLE
                progress.spans.clear()
        for one in near:
            progress.give(one)
        request = EngineRequest(tuple(one.request for one in near), self.policy, arrival, self.batch)
        with progress.changed:
            if progress.closed.is_set():
                raise RequestCancelled("request: was cancelled")
            self.handle = self._engine.submit(request)
        if arrival is not InputMode.WHOLE:
            # The thread gets no reference to the session or its handle: deleting the session must end the thread.
            start_thread(partial(_feed, self.handle.text, segments, progress), progress.close)

    def on_heard(self, segment: int, samples: int = 0) -> None:
        """Note that the listener took `samples` samples of this segment; the engine may then get the next segments."""
        progress = self._progress
        with progress.changed:
            progress.heard = max(progress.heard, segment)
            progress.samples += [0] * (segment + 1 - len(progress.samples))
            progress.samples[segment] += samples
            progress.changed.notify_all()

    def __next__(self) -> AudioChunk:
        if self._progress.closed.is_set():
            raise StopIteration
        try:
            if self._chunks is None:
                if self._later is not None:
                    self._start_late()
                self._chunks = iter(self.handle)
            chunk = next(self._chunks)
        except BaseException:
            self.close()
            raise
        self.on_heard(chunk.segment, len(chunk.samples))
        return self._progress.timed(chunk)

    async def __anext__(self) -> AudioChunk:
        if self._progress.closed.is_set():
            raise StopAsyncIteration
        try:
            if self._chunks_async is None:
                if self._later is not None:
                    self._progress.loop = asyncio.get_running_loop()
                    await in_thread(self._start_late, self.close)
                self._chunks_async = aiter(self.handle)
            chunk = await anext(self._chunks_async)
        except BaseException:
            self.close()
            raise
        self.on_heard(chunk.segment, len(chunk.samples))
        return self._progress.timed(chunk)

    def _start_late(self) -> None:
        start, self._later = self._later, None
        assert start is not None
        start(self)

    async def events(self) -> AsyncIterator[SpeechEvent]:
        """Yield a `SegmentText` for each segment, then its chunks with samples or words. Raises the request's error."""
        announced = self._progress.announced
        async for chunk in self.handle:
            while announced:
                yield announced.popleft()
            chunk = self._progress.timed(chunk)
            if len(chunk.samples) or chunk.words:
                yield chunk
        while announced:
            yield announced.popleft()

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Characters and times of the segments taken so far. The last `end_s` may grow; `cut` is set after the end."""
        progress, rate = self._progress, self._front_end.config.rates.sample_rate
        return marks_of(progress.text, progress.spans, progress.samples, rate, self.handle.outcome.cut)

    @property
    def words(self) -> tuple[Word, ...]:
        """The words in the chunks taken so far; empty without the option `word_times`."""
        timer = self._progress.timer
        return tuple(timer.words) if timer is not None and self._progress.word_times else ()

    def heard(self, seconds: float) -> HeardText:
        """Return the text heard in the first `seconds` of audio, in whole words with `word_times`, else estimated."""
        return heard_until(seconds, self.words, self.marks)

    def __repr__(self) -> str:
        state = "closed" if self._progress.closed.is_set() else "open"
        return f"ChunkStream({state}, {self._taken_s:.2f} s taken)"

    @property
    def _taken_s(self) -> float:
        return sum(self._progress.samples) / self._front_end.config.rates.sample_rate

    def verdict(self) -> Verdict:
        """Return the verdict on the whole stream; call this after the last chunk. A listener of `events` must report
        its samples to `on_heard`, because `audio_s` counts only these."""
        given, delivery = len(self._progress.spans), self._delivery()
        return Verdict(
            reason_of(any(self.handle.outcome.cut), delivery),
            audio_s=self._taken_s,
            segments_spoken=given,
            segments_given=given,
            text_tokens=self._progress.text_tokens,
            speech_tokens=sum(map(len, self.handle.outcome.tokens)),
            warnings=(
                *warnings_of(self._progress.text, self._language, self._front_end.card.languages),
                *warnings_about(delivery),
            ),
            delivery=delivery,
        )

    def _delivery(self) -> Delivery | None:
        progress, timer = self._progress, self._progress.timer
        if timer is None or not any(self.handle.outcome.attended):
            return None
        heads = self._engine.text_heads
        return delivery_of(progress.text, timer.segments, self.handle.outcome, heads.pace if heads else None)

    def close(self) -> None:
        """Cancel the request; does nothing if the request has ended."""
        self._progress.close()
        self.handle.cancel()

    __del__ = close

    async def aclose(self) -> None:
        """Cancel the request, as `close` does, for use with `contextlib.aclosing`."""
        self.close()


def _not_started() -> Handle:
    outbox = Outbox[AudioChunk]()
    outbox.end(RequestResult())
    return Handle(outbox, lambda: None, lambda _: None)


_NOT_STARTED = _not_started()
"""The handle of a session before `start`; it has no chunks."""


@dataclass(eq=False)
class _Progress:
    """The state of a session that the listener and the thread that reads the text share.

    text: the text read so far. spans: (first character, character after the last) of each segment that the engine got.
    samples: for each segment, the number of samples taken by the listener. announced: segments for `events` to yield.
    heard: index of the segment being heard. word_times: whether chunks contain their words. timer: finds the times of
    words; None if the speech is not tracked. loop: the event loop that reads a text that is an async iterable;
    end_source: a function that ends this reading."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    arrival: InputMode = InputMode.SEGMENTS
    text: str = ""
    spans: list[tuple[int, int]] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    text_tokens: int = 0
    announced: deque[SegmentText] = field(default_factory=deque)
    heard: int = 0
    word_times: bool = False
    timer: WordTimer | None = None
    closed: threading.Event = field(default_factory=threading.Event)
    loop: asyncio.AbstractEventLoop | None = None
    end_source: Callable[[], object] = lambda: None

    def reading(self, pieces: Iterable[str]) -> Iterator[str]:
        for piece in pieces:
            if isinstance(piece, str):  # the front end refuses pieces of other types
                self.text += piece
                if self.arrival is InputMode.TOKENS:
                    self.spans[:] = [(self.spans[0][0] if self.spans else 0, len(self.text))]
            yield piece

    def give(self, segment: PlannedSegment) -> None:
        """Note the next segment for the engine or, if text arrives by words, the next words of the only segment."""
        if self.arrival is not InputMode.TOKENS:
            self.spans.append((segment.start, segment.end))
        else:  # the span begins after a system prompt, which is not spoken
            self.spans[0] = segment.start, self.spans[0][1]
        self.announced.append(SegmentText(len(self.spans) - 1, segment.start, segment.end))
        self.text_tokens += len(segment.request.text)
        if self.timer is not None:
            self.timer.plan(len(self.spans) - 1, segment.words)

    def timed(self, chunk: AudioChunk) -> AudioChunk:
        """Return the chunk, with the words that end in it if `word_times` is on."""
        if self.timer is None:
            return chunk
        words = self.timer.add(self.text, chunk, chunk.ended)
        return replace(chunk, words=words) if self.word_times else chunk

    def close(self) -> None:
        with self.changed:
            self.closed.set()
            self.changed.notify_all()
        self.end_source()

    def wait_until_near(self) -> bool:
        """Wait until the listener is within `AHEAD` segments of the next segment; False if the session was closed."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed.is_set() or len(self.spans) <= self.heard + AHEAD)
            return not self.closed.is_set()


def _feed(text: ArrivingText, segments: Iterator[PlannedSegment], progress: _Progress) -> None:
    """Push the rest of a text to the engine: words when the engine waits for them, segments when they are near."""
    by_words = progress.arrival is InputMode.TOKENS
    try:
        while text.wait_until_wanted() if by_words else progress.wait_until_near():
            one = next(segments, None)
            if one is None:
                text.close()
                return
            progress.give(one)
            text.push(one.request.text if by_words else one.request)
    except BaseException as error:
        # After any error in this thread, the request must end: otherwise the listener waits for text that never comes.
        stopped = InvalidText(f"text: its source stopped with {type(error).__name__}; send the text again")
        text.fail(error if isinstance(error, Exception) else stopped)
