"""One request in the engine's process: its segments are given to the engine as its listener gets on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.handle import Handle
from vivavoce.engine.request import Arrival, SpeechRequest, SynthesisRequest
from vivavoce.errors import InvalidText
from vivavoce.service.host.arrivals import Arrivals
from vivavoce.service.host.order import SpeechOrder
from vivavoce.service.host.parts import Part, options_of, whole_parts
from vivavoce.service.host.speaker import SegmentText, SpeechEvent, SpeechPiece
from vivavoce.service.host.studio import Studio
from vivavoce.service.host.verdict import FinishReason, Verdict
from vivavoce.service.synthesizer import SpeakOptions
from vivavoce.service.voices.voice import Voice

AHEAD = 4
"""Segments that the engine has beyond the one that is heard: enough for no gap, and a bound on what waits unheard."""

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class Talk:
    """All of it in the process's event loop, which `begin` and `events` belong to one task of."""

    def __init__(self, studio: Studio, order: SpeechOrder) -> None:
        self._studio, self._order = studio, order
        self._policy = ChunkPolicy.low_latency()
        self._handle: Handle | None = None
        self._submitted = asyncio.Event()
        """The engine has it, or will not."""
        self._failure: Exception | None = None
        self._given = 0
        """Segments that the engine was given."""
        self._heard = 0
        """The segment that the listener is at."""
        self._later: deque[Part] = deque()
        """Segments that the engine gets when the listener has come closer."""
        self._all_there = True
        self._shortfall: Exception | None = None
        """Why no more of an arriving text can come, where that is not its end."""
        self._closed = False
        self._told: deque[SegmentText] = deque()
        """What the listener is to learn of segments before their audio."""
        self._text_tokens = 0
        self._arrivals: Arrivals | None = None

    async def begin(self, in_thread: InThread) -> None:
        """Submit it. What can be refused is refused here; of an arriving text, what is known before it comes."""
        studio, order = self._studio, self._order
        if order.policy is not None:
            self._policy = ChunkPolicy.parse(order.policy)
        studio.synthesizer.engine.check_load(streaming=True)
        if order.text is None:
            voice, options = await in_thread(self._prepare)
            self._all_there = False
            self._arrivals = Arrivals(studio.synthesizer, voice, options, self, asyncio.get_running_loop())
            return
        self._later.extend(await in_thread(self._parts))
        self._give()

    def _prepare(self) -> tuple[Voice, SpeakOptions]:
        # Those that were before it in the threads' queue may have taken the room meanwhile.
        self._studio.synthesizer.engine.check_load(streaming=True)
        return self._studio.voice(self._order.owner, self._order.voice), options_of(self._order)

    def _parts(self) -> list[Part]:
        assert self._order.text is not None
        voice, options = self._prepare()
        return whole_parts(self._studio.synthesizer, self._order.text, voice, options)

    def push(self, text: str | None) -> None:
        """More of an arriving text; None: all of it has come."""
        if self._arrivals is not None:
            self._arrivals.push(text)

    def heard(self, segment: int) -> None:
        """The listener has taken audio of this segment."""
        self._heard = max(self._heard, segment)
        self._guarded(self._give)

    async def events(self) -> AsyncIterator[SpeechEvent]:
        """What is said, in order; raises what it failed with."""
        await self._submitted.wait()
        if self._handle is None:
            assert self._failure is not None
            raise self._failure
        async for chunk in self._handle:
            while self._told:
                yield self._told.popleft()
            if len(chunk.samples):
                yield SpeechPiece(chunk.samples, chunk.segment)
        while self._told:
            yield self._told.popleft()

    def verdict(self) -> Verdict:
        """How it ended, once `events` has."""
        assert self._handle is not None
        tokens, cut = self._handle.tokens, self._handle.cut
        return Verdict(
            FinishReason.LENGTH if any(cut) else FinishReason.STOP,
            audio_s=0.0,
            segments_spoken=self._given,
            segments_given=self._given,
            text_tokens=self._text_tokens,
            speech_tokens=sum(map(len, tokens)),
        )

    def close(self) -> None:
        """Free what it holds; what has ended has nothing left."""
        self._closed = True
        if self._arrivals is not None:
            self._arrivals.close()
        if self._handle is not None:
            self._handle.cancel()

    def offer(self, part: Part) -> None:
        """A segment of an arriving text."""
        self._guarded(lambda: self._queue(part))

    def offer_words(self, request: SynthesisRequest, end: int) -> None:
        """More words of an arriving text that is one segment; end: its characters so far."""
        self._guarded(lambda: self._take_words(request, end))

    def complete(self) -> None:
        """All of an arriving text was offered."""
        self._all_there = True
        self._guarded(self._end_text)

    def fail(self, error: Exception) -> None:
        """No more of an arriving text can come; what came is spoken."""
        self._shortfall = error
        self.complete()

    def _queue(self, part: Part) -> None:
        self._later.append(part)
        self._give()

    def _give(self) -> None:
        """Give the engine what the listener is close enough to."""
        room = self._heard + 1 + AHEAD - self._given
        parts = [self._later.popleft() for _ in range(min(room, len(self._later)))]
        if not parts:
            return
        for part in parts:
            self._told.append(SegmentText(self._given, part.start, part.end))
            self._given += 1
            self._text_tokens += len(part.request.text)
        if self._handle is None:
            whole = self._all_there and not self._later
            arrival = Arrival.WHOLE if whole else Arrival.SEGMENTS
            self._submit(SpeechRequest(tuple(part.request for part in parts), self._policy, arrival))
            return
        for part in parts:
            self._handle.text.push(part.request)
        self._end_text()

    def _end_text(self) -> None:
        if not self._all_there or self._later:
            return
        if self._handle is None:
            raise self._shortfall or InvalidText("text: all pieces are empty; send some text")
        if self._shortfall is None:
            self._handle.text.close()
        else:
            self._handle.text.fail(self._shortfall)

    def _take_words(self, request: SynthesisRequest, end: int) -> None:
        self._told.append(SegmentText(0, 0, end))
        self._text_tokens += len(request.text)
        if self._handle is None:
            self._given = 1
            self._submit(SpeechRequest((request,), self._policy, Arrival.TOKENS))
        else:
            self._handle.text.push(request.text)

    def _submit(self, request: SpeechRequest) -> None:
        self._handle = self._studio.synthesizer.engine.submit(request)
        self._submitted.set()

    def _guarded(self, step: Callable[[], None]) -> None:
        """Run a step that no caller waits for: what it fails with the listener is told.

        Nothing is done for one who has left, or who is told of a failure already: what was on its way from the thread
        that reads would be spoken to nobody.
        """
        if self._closed or self._failure is not None:
            return
        try:
            step()
        except Exception as error:
            self._break_off(error)

    def _break_off(self, error: Exception) -> None:
        self._failure = error
        self._later.clear()
        if self._handle is None:
            self._submitted.set()
        else:
            self._handle.text.fail(error)
