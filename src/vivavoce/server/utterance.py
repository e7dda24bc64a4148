"""One utterance whose text arrives in pieces. It becomes one engine request, or several that are spoken in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from vivavoce.errors import InvalidRequest, InvalidText, Overloaded, StageFailed, VivavoceError
from vivavoce.frontend.audio.encode import OutputFormat, encode
from vivavoce.frontend.audio.encoders import Encoder
from vivavoce.frontend.audio.tag import AudioTag
from vivavoce.frontend.speech import FinishReason, SegmentText, Verdict, joined
from vivavoce.frontend.text.text_input import Reasoning, TextFilter
from vivavoce.server.dispatcher import ActiveRequest
from vivavoce.server.segment_clock import SegmentClock
from vivavoce_textnorm import MAX_TEXT_CHARS

log = logging.getLogger(__name__)

PIECES_PER_S = 5
"""Fewest audio messages per second of audio; a cancellation takes effect between two messages. Ten per second took a
third more time of the event loop."""
MAX_WAITING = 200
"""Largest number of flushed passages that wait to be spoken."""

Reply = dict[str, Any]
"""A message to the client with its "type"; audio as {"type": "audio", "audio": bytes}."""


@dataclass(eq=False)
class Passage:
    """A part of the text that is spoken as one request; it grows until it is flushed or the text ends."""

    first_character: int
    reasoning: TextFilter
    """A filter that gets the passage's pieces. It removes reasoning, and knows whether the text ends in reasoning."""
    repeated: int = 0
    """Number of characters at the start that repeat the code fence and tag that the passage before left open."""
    texts: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)
    """The passage's pieces; None at the end."""
    length: int = 0
    is_blank: bool = True
    is_open: bool = True
    flushes: int = 0
    """Number of flushes to confirm after the passage's audio was sent."""
    read: str = ""
    """The text so far without reasoning."""

    def push(self, text: str) -> None:
        if text:  # empty pieces are left out: the limit of length does not limit their number
            self.length += len(text)
            held = self.texts.get_nowait() if self.is_blank and not self.texts.empty() else None
            read = self.reasoning.add(text)
            self.read += read
            self.is_blank = not read.strip() and self.is_blank
            self.texts.put_nowait((held or "") + text)

    def next(self, first_character: int, reasoning: TextFilter) -> Passage:
        """Return the passage after a flush at this character. It begins with the code fence and tag that are open."""
        begun = self.reasoning.open_tag
        if "```" in self.read or "~~~" in self.read:
            from vivavoce_textnorm import open_fence

            begun = f"{fence}\n{begun}" if (fence := open_fence(self.read)) else begun
        passage = Passage(first_character - len(begun), reasoning, len(begun))
        passage.push(begun)
        passage.is_blank = True
        return passage

    def end(self) -> None:
        if self.is_open:
            self.is_open = False
            self.texts.put_nowait(None)


class StreamedUtterance:
    """Speaks its passages one after another, each as a request; two requests at once would count as two streams.

    start_request: starts a request with `request_id`; `begins` is true for the first one. send: sends a reply; raises
    `disconnected` if the client has disconnected. refuse: gets the error of a refused piece of text; without it, the
    error ends the utterance. reasoning: see `TextFilter`.
    """

    def __init__(
        self,
        request_id: str,
        output: OutputFormat,
        sample_rate: int,
        start_request: Callable[..., Awaitable[ActiveRequest]],
        send: Callable[[Reply], Awaitable[None]],
        disconnected: type[Exception],
        refuse: Callable[[VivavoceError], Awaitable[None]] | None = None,
        tag: AudioTag | None = None,
        reasoning: Reasoning = "silent",
    ) -> None:
        self.request_id, self._output, self._sample_rate, self._tag = request_id, output, sample_rate, tag
        self._start_request, self._send = start_request, send
        self._refuse, self._disconnected, self._reasoning = refuse, disconnected, reasoning
        self._characters = 0
        self._waiting: asyncio.Queue[Passage | None] = asyncio.Queue()
        self._unspoken = 0
        """Number of passages whose audio is not sent yet."""
        self._active: ActiveRequest | None = None
        self._verdicts: list[Verdict] = []
        self._clock = SegmentClock(sample_rate, "segment", "segment_done", "words")
        self._is_stopped = self.has_ended = False
        self._passage = self._next = Passage(0, TextFilter(reasoning))
        """`_next`: the text since the last flush; it is the next passage as soon as there is something to speak."""
        self._begin_passage()  # now, so that a wrong voice is refused before the text comes
        self.delivery = asyncio.create_task(self._deliver())
        """Ends when all audio was sent; raises VivavoceError, or `disconnected`."""
        # If the connection closes, nothing else reads the task's exception, and asyncio would report it.
        self.delivery.add_done_callback(lambda delivery: delivery.cancelled() or delivery.exception())

    @property
    def waits_for_text(self) -> bool:
        return not self.has_ended and self._unspoken <= self._passage.is_open

    @property
    def is_flushed(self) -> bool:
        """Whether all words received so far have been flushed."""
        return not self._passage.is_open or (self._passage.is_blank and self._passage.length > 0)

    def push(self, text: str) -> None:
        """Add text. InvalidRequest: the text has ended or is too long; nothing is added."""
        if self.has_ended:
            raise InvalidRequest("text: it comes after the end; wait for done, then send start")
        if self._passage.is_open:
            since, advice = "without a flush", "send flush after a sentence, and the piece again"
        else:
            since, advice = "since the last flush", "leave white space and reasoning out"
        if (length := self._next.length + len(text)) > MAX_TEXT_CHARS:
            raise InvalidText(
                f"text: {length} characters {since} are more than the limit of {MAX_TEXT_CHARS}; {advice}"
            )
        self._next.push(text)
        if not (self._passage.is_open or self._next.is_blank):
            self._begin_passage()
        self._characters += len(text)

    async def flush(self) -> None:
        """Speak the text so far; confirm the flush when its audio was sent. InvalidRequest: too many passages wait."""
        passage = self._passage
        if passage.is_open and not passage.is_blank:
            if self._unspoken >= MAX_WAITING:
                raise InvalidRequest(f"flush: {MAX_WAITING} are waiting already; send more when some are confirmed")
            passage.end()
            passage.flushes += 1
            self._next = passage.next(self._characters, TextFilter(self._reasoning))
        elif not passage.is_open and self._unspoken:
            passage.flushes += 1
        else:
            await self._send({"type": "flushed"})

    def end(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            self._passage.end()
            self._waiting.put_nowait(None)

    def cancel(self) -> None:
        """Stop the speech; after the end of `delivery` nothing more is sent."""
        self._is_stopped = True
        if self._active is not None:
            self._active.cancel()
        self.delivery.cancel()

    def cancelled(self, played_s: float | None = None) -> Reply:
        """Return the reply to a cancellation. played_s: seconds of audio that the client has played; None: unknown."""
        at, until = self._clock.reached, self._clock.spoken_until(played_s)
        names = {"segment": "segment", "from_character": "start_character", "to_character": "end_character"}
        reached = None if at is None else {name: at[own] for name, own in names.items()}
        sent: Reply = {"type": "cancelled", "request_id": self.request_id, "audio_seconds": self._clock.seconds}
        return {**sent, "reached": reached, **({} if until is None else {"spoken_until": until})}

    def verdict(self, error: VivavoceError | None = None) -> Verdict:
        reasons = {verdict.reason for verdict in self._verdicts}
        worst = (FinishReason.LENGTH, FinishReason.INCOMPLETE)
        reason = next((one for one in worst if one in reasons), FinishReason.STOP)
        return Verdict(
            FinishReason.ERROR if error else reason,
            self._clock.seconds,
            sum(verdict.segments_spoken for verdict in self._verdicts),
            sum(verdict.segments_given for verdict in self._verdicts),
            str(error) if error else None,
            error.code if error else None,
            warnings=tuple(dict.fromkeys(one for verdict in self._verdicts for one in verdict.warnings)),
            delivery=joined([one.delivery for one in self._verdicts if one.delivery is not None]),
        )

    def _begin_passage(self) -> None:
        self._passage = self._next
        self._unspoken += 1
        self._waiting.put_nowait(self._passage)

    async def _deliver(self) -> None:
        try:
            with closing(self._output.open(self._sample_rate, self._tag)) as encoder:
                while (passage := await self._waiting.get()) is not None:
                    await self._speak(passage, encoder)
                    self._unspoken -= 1
                    for _ in range(passage.flushes):
                        await self._reply({"type": "flushed"})
                if rest := await encode(encoder, None):
                    await self._send({"type": "audio", "audio": rest})
        except Exception as error:
            raise self._failure_of(error) from None

    async def _speak(self, passage: Passage, encoder: Encoder) -> None:
        number = len(self._verdicts) + 1
        # Clients cannot choose an id with "~".
        identity = self.request_id if number == 1 else f"{self.request_id}~{number}"
        active = self._active = await self._start_request(request_id=identity, begins=number == 1)
        feeding = asyncio.create_task(self._feed(active, passage))
        try:
            self._check_stopped()
            if number == 1:
                rate = self._output.rate_of(self._sample_rate)
                started: Reply = {"sample_rate": rate, "response_format": self._output.codec.value}
                more = {"flow_steps": active.flow_steps, "warnings": list(active.request.notes)}
                started |= {name: value for name, value in more.items() if value}
                await self._reply({"type": "started", "request_id": self.request_id, **started})
            await self._send_speech(active, passage, encoder)
        except Exception as error:
            raise self._failure_of(error, active) from None
        finally:
            feeding.cancel()
            active.cancel()
            if active.verdict is not None:
                self._verdicts.append(active.verdict)

    async def _feed(self, active: ActiveRequest, passage: Passage) -> None:
        try:
            while (text := await passage.texts.get()) is not None:
                try:
                    await active.push(text)
                except (InvalidRequest, Overloaded) as error:
                    if self._refuse is None:
                        raise
                    await self._refuse(error)
            await active.end()
        except Exception as error:
            self._failure_of(error, active)

    def _failure_of(self, error: Exception, active: ActiveRequest | None = None) -> Exception:
        """End the request with this error. Returns the error for the client; an unexpected one is logged."""
        if isinstance(error, self._disconnected):
            if active is not None:
                active.cancel()
            return error
        if not isinstance(error, VivavoceError):
            log.error("request failed: %(request_id)s", {"request_id": self.request_id}, exc_info=error)
            error = StageFailed("server: an internal error, which was logged; tell its operator the request's id")
        if active is not None:
            active.fail(error)
        return error

    async def _send_speech(self, active: ActiveRequest, passage: Passage, encoder: Encoder) -> None:
        self._clock.begin_request(passage.first_character, passage.repeated)
        step = self._sample_rate // PIECES_PER_S
        async for event in active:
            if isinstance(event, SegmentText):
                self._clock.announce(event)
                continue
            await self._reply(*self._clock.begin_through(event.segment), *self._clock.words(event.words))
            for start in range(0, len(event.samples), step):
                samples = event.samples[start : start + step]
                if data := await encode(encoder, samples):
                    await self._send({"type": "audio", "audio": data})
                self._clock.add(len(samples))
                self._check_stopped()
        active.whole()
        await self._reply(*self._clock.end_request())

    async def _reply(self, *replies: Reply) -> None:
        for reply in replies:
            await self._send(reply)
            self._check_stopped()

    def _check_stopped(self) -> None:
        """Raise the cancellation again if it got lost while the task waited for the transport."""
        if self._is_stopped:
            raise asyncio.CancelledError
