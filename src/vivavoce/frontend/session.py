"""One streamed request, from its text to its audio, whichever entry point asked for it."""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from queue import Empty, SimpleQueue
from typing import TypeVar
from weakref import WeakKeyDictionary

from vivavoce.engine.chunk_policy import ChunkPolicy, policy_for
from vivavoce.engine.engine_group import EngineInterface
from vivavoce.engine.handle import ArrivingText, Handle
from vivavoce.engine.request import AudioChunk, EngineRequest, InputMode
from vivavoce.errors import InvalidText, RequestCancelled
from vivavoce.frontend.front_end import FrontEnd, PlannedSegment
from vivavoce.frontend.speech import FinishReason, Mark, SegmentText, SpeakOptions, SpeechEvent, Verdict, marks_of
from vivavoce.frontend.text.official import WHOLE_CHARS
from vivavoce.frontend.voices.voice import Voice

T = TypeVar("T")
_ENDING_S = 1.0
"""How long threads that bring texts may take to leave when the interpreter ends; a block takes a third of that."""
_IDLE_S = 5.0
"""How long a thread that reads whole texts stays without one."""
Call = Callable[[], object]
Text = str | Iterable[str] | AsyncIterable[str]
Later = tuple[Text, Callable[[], Voice], SpeakOptions]
AHEAD = 4
"""Segments that the engine has beyond the one that is heard: enough for no gap, and a bound on what waits unheard."""


class RequestSession(Iterator[AudioChunk], AsyncIterator[AudioChunk]):
    """A stream of speech over an engine and a front end.

    `start` takes the text and hands its beginning to the engine. Then the listener takes chunks, in one of three ways:
    `for chunk in session`, `async for chunk in session`, or `session.events()` where the listener is in another process
    and `session.on_heard(segment)` tells how far it is. The engine gets a segment when the listener is within `AHEAD`
    segments of it. `close` (or letting go of the session) cancels the request and frees what it holds.

        session = RequestSession(engine, front_end, ChunkPolicy.low_latency())
        session.start("Hello there.", voice, SpeakOptions(seed=1))  # blocks for the front end: in a thread, if need be
        async for chunk in session: ...
        session.marks  # which characters were heard when
        session.verdict()  # how it ended
    """

    handle: Handle
    """The engine's request, after `start`."""

    def __init__(
        self,
        engine: EngineInterface,
        front_end: FrontEnd,
        policy: ChunkPolicy | None = None,
        later: Later | None = None,
    ) -> None:
        """policy: how the audio is cut into chunks; None: as the model's generation does best, see `policy_for`, which
        says what it refuses. later: what `start` is to be given when the first chunk is asked for: `async for` does so
        in a thread, and takes async iterables, too.
        """
        self._engine, self._front_end = engine, front_end
        self._progress = _Progress()
        self.policy = policy_for(front_end.config.generation, policy)
        self._later = later
        self._chunks: Iterator[AudioChunk] | None = None
        self._chunks_async: AsyncIterator[AudioChunk] | None = None

    def start(self, text: Text, voice: Voice, options: SpeakOptions = SpeakOptions()) -> None:
        """Plan the text's beginning and hand it to the engine. What can be refused is refused here.

        text: a text, or an iterable of pieces of it (from a language model, say). This call reads a block of a long
        text, or pieces until the first sentence or words are complete, and a thread the rest while speech goes on;
        pieces are checked when they are read. Errors: Overloaded, RequestCancelled (the session was closed meanwhile),
        and those of `FrontEnd.plan`.
        """
        self._engine.check_load(streaming=True)
        progress = self._progress
        if isinstance(text, str):
            progress.text = text
            segments = self._front_end.plan_as_read(text, voice, options, progress.closed.is_set)
            # A short text is read at once: the engine gets what is near, and learns whether there is more.
            is_short = len(text) <= WHOLE_CHARS
            near = list(islice(segments, AHEAD + 2 if is_short else 1))
            arrival = InputMode.WHOLE if is_short and len(near) < AHEAD + 2 else InputMode.SEGMENTS
            near, segments = near[: AHEAD + 1], chain(near[AHEAD + 1 :], segments)
        elif not isinstance(text, Iterable) or isinstance(text, bytes):
            problem = f"text: {type(text).__name__} is no text"
            raise InvalidText(f"{problem}; give a string, an iterable of strings, or an async one to astream")
        else:
            arrival = progress.arrival = self._front_end.arrival
            segments = self._front_end.plan_arriving(progress.reading(text), voice, options, progress.closed.is_set)
            near = list(islice(segments, 1))
            if not near:
                raise InvalidText("text: all pieces are empty; send some text", nothing_to_say=True)
        for one in near:
            progress.give(one)
        request = EngineRequest(tuple(one.request for one in near), self.policy, arrival)
        with progress.changed:
            if progress.closed.is_set():
                raise RequestCancelled("request: was cancelled")
            self.handle = self._engine.submit(request)
        if arrival is not InputMode.WHOLE:
            # The thread holds neither session nor handle: letting go of them ends it.
            _start_thread(partial(_feed, self.handle.text, segments, progress), progress.close)

    def on_heard(self, segment: int, samples: int = 0) -> None:
        """The listener has taken audio of this segment: the engine gets those that are near it now."""
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
            self._start()
            self._chunks = self._chunks or iter(self.handle)
            chunk = next(self._chunks)
        except BaseException:
            self.close()
            raise
        self.on_heard(chunk.segment, len(chunk.samples))
        return chunk

    async def __anext__(self) -> AudioChunk:
        if self._progress.closed.is_set():
            raise StopAsyncIteration
        try:
            if self._later is not None:
                if isinstance(text := self._later[0], AsyncIterable):
                    self._later = (_read_in_loop(text, self._progress), *self._later[1:])
                await in_thread(self._start, self.close)
            self._chunks_async = self._chunks_async or aiter(self.handle)
            chunk = await anext(self._chunks_async)
        except BaseException:
            self.close()
            raise
        self.on_heard(chunk.segment, len(chunk.samples))
        return chunk

    def _start(self) -> None:
        if self._later is not None:
            (text, find_voice, options), self._later = self._later, None
            self.start(text, find_voice(), options)

    async def events(self) -> AsyncIterator[SpeechEvent]:
        """Chunks with samples, and each segment's text before its audio; raises what the request failed with."""
        announced = self._progress.announced
        async for chunk in self.handle:
            while announced:
                yield announced.popleft()
            if len(chunk.samples):
                yield chunk
        while announced:
            yield announced.popleft()

    @property
    def marks(self) -> tuple[Mark, ...]:
        """Of the segments heard so far: which characters of the text each speaks, and when.

        The last one's end moves with each chunk; whether a segment was cut for its length is known at the end.
        """
        progress, rate = self._progress, self._front_end.config.rates.sample_rate
        cut = self.handle.outcome.cut if hasattr(self, "handle") else ()
        return marks_of(progress.text, progress.spans, progress.samples, rate, cut)

    def verdict(self) -> Verdict:
        """How it ended, once its chunks have; what the listener took of it is the listener's to say."""
        given = len(self._progress.spans)
        return Verdict(
            FinishReason.LENGTH if any(self.handle.outcome.cut) else FinishReason.STOP,
            segments_spoken=given,
            segments_given=given,
            text_tokens=self._progress.text_tokens,
            speech_tokens=sum(map(len, self.handle.outcome.tokens)),
        )

    def close(self) -> None:
        """Give it up: nothing more is made. After the end: nothing happens."""
        self._progress.close()
        if hasattr(self, "handle"):
            self.handle.cancel()

    __del__ = close

    async def aclose(self) -> None:
        """`close` for an event loop."""
        self.close()


@dataclass(eq=False)
class _Progress:
    """How far a session is: what the thread that brings its text shares with the listener.

    text: as far as it was read; spans: the characters that each segment speaks which the engine was given; samples: of
    the segments that were heard; heard: the segment that the listener is at; end_source: ends what brings pieces.
    """

    changed: threading.Condition = field(default_factory=threading.Condition)
    arrival: InputMode = InputMode.SEGMENTS
    text: str = ""
    spans: list[tuple[int, int]] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    text_tokens: int = 0
    announced: deque[SegmentText] = field(default_factory=deque)
    heard: int = 0
    closed: threading.Event = field(default_factory=threading.Event)
    end_source: Callable[[], object] = lambda: None

    def reading(self, pieces: Iterable[str]) -> Iterator[str]:
        """The same pieces, which are remembered."""
        for piece in pieces:
            if isinstance(piece, str):  # the front end refuses what is not text
                self.text += piece
                if self.arrival is InputMode.TOKENS:
                    self.spans[:] = [(self.spans[0][0] if self.spans else 0, len(self.text))]
            yield piece

    def give(self, segment: PlannedSegment) -> None:
        """The engine gets this segment, or, of a text that comes word by word, the next words of the only one."""
        if self.arrival is not InputMode.TOKENS:
            self.spans.append((segment.start, segment.end))
        else:  # what may stand before it is not spoken
            self.spans[0] = segment.start, self.spans[0][1]
        self.announced.append(SegmentText(len(self.spans) - 1, segment.start, segment.end))
        self.text_tokens += len(segment.request.text)

    def close(self) -> None:
        """The listener has left."""
        with self.changed:
            self.closed.set()
            self.changed.notify_all()
        self.end_source()

    def wait_until_near(self) -> bool:
        """Block until the listener is near enough for the engine to have the next segment; False: it has left."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed.is_set() or len(self.spans) <= self.heard + AHEAD)
            return not self.closed.is_set()


def _read_in_loop(text: AsyncIterable[str], progress: _Progress) -> Iterator[str]:
    """What an async iterable gives, for a thread: one task of this event loop reads it, a piece ahead of the thread."""
    loop, taken, arrived = asyncio.get_running_loop(), asyncio.Semaphore(1), SimpleQueue[str | Exception]()

    async def read() -> None:
        try:
            async for piece in text:
                arrived.put(piece)
                await taken.acquire()
            arrived.put(StopIteration())
        except Exception as error:
            arrived.put(error)
        finally:
            arrived.put(RequestCancelled("request: was cancelled"))

    def close() -> None:
        arrived.put(RequestCancelled("request: was cancelled"))
        with suppress(RuntimeError):  # the event loop was closed
            loop.call_soon_threadsafe(task.cancel)

    def given() -> Iterator[str]:
        while not isinstance(piece := arrived.get(), Exception):
            loop.call_soon_threadsafe(taken.release)
            yield piece
        if not isinstance(piece, StopIteration):
            raise piece

    task, progress.end_source = loop.create_task(read()), close
    return given()


_feeding: WeakKeyDictionary[threading.Thread, Callable[[], object]] = WeakKeyDictionary()


def _start_thread(call: Callable[[], object], leave: Callable[[], object]) -> None:
    thread = threading.Thread(target=call, name="vivavoce-text", daemon=True)
    _feeding[thread] = leave
    thread.start()


async def in_thread(call: Callable[[], T], leave: Callable[[], object]) -> T:
    """What `call` returns, in a daemon thread of its own, as it may wait for a text; leave: tells it to end early."""
    return await _started(call, leave, lambda run: _start_thread(run, leave))


async def in_turn(call: Callable[[], T], leave: Callable[[], object]) -> T:
    """What `call` returns, in one of a few daemon threads, when those that came before have theirs: hundreds at once
    would take the interpreter from the engine's thread. leave: tells it to end early.
    """
    return await _started(call, leave, lambda run: _few.start(run, leave))


async def _started(call: Callable[[], T], leave: Callable[[], object], start: Callable[[Call], None]) -> T:
    future: Future[T] = Future()

    def run() -> None:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)

    start(run)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        leave()
        raise


class _FewThreads:
    """Daemon threads that run what they are given, in its order; each ends when it was idle for a while."""

    def __init__(self, most: int) -> None:
        self._most, self._running, self._idle = most, 0, 0
        self._state, self._given = threading.Lock(), SimpleQueue[tuple[Call, Call] | None]()

    def start(self, run: Call, leave: Call) -> None:
        """Run it when its turn comes; leave: tells it to end early."""
        with self._state:
            self._given.put((run, leave))
            if self._running < self._most and self._given.qsize() > self._idle:
                self._running += 1
                _start_thread(self._run, self.end_one)

    def end_one(self) -> None:
        """Let a thread end that has nothing to do."""
        self._given.put(None)

    def _end(self, leave: Call) -> None:
        leave()
        self.end_one()

    def _run(self) -> None:
        thread = threading.current_thread()
        while given := self._next():
            run, leave = given
            _feeding[thread] = partial(self._end, leave)
            run()
            _feeding[thread] = self.end_one

    def _next(self) -> tuple[Call, Call] | None:
        """What comes next for a thread; None: it is to end."""
        with self._state:
            self._idle += 1
        given: tuple[Call, Call] | None = None
        came = False
        with suppress(Empty):
            given, came = self._given.get(timeout=_IDLE_S), True
        with self._state:
            self._idle -= 1
            if not came:
                with suppress(Empty):  # what was given since then, when this thread still counted as idle
                    given = self._given.get_nowait()
            if given is None:
                self._running -= 1
        return given


_few = _FewThreads(4)


@atexit.register
def end_feeding() -> None:
    """Let no thread bring texts when the interpreter ends: one that is cut off in wetext's C++ aborts the process."""
    until = time.monotonic() + _ENDING_S
    for leave in list(_feeding.values()):
        leave()
    for thread in list(_feeding):
        thread.join(max(0.0, until - time.monotonic()))


def _feed(text: ArrivingText, segments: Iterator[PlannedSegment], progress: _Progress) -> None:
    """Bring the rest of a text to the engine: words when speech waits for them, segments when the listener is near."""
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
        # Whatever ends this thread, the listener must not wait for text that does not come.
        stopped = InvalidText(f"text: its source stopped with {type(error).__name__}; send the text again")
        text.fail(error if isinstance(error, Exception) else stopped)
