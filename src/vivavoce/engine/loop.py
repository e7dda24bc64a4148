"""The engine's one loop: takes requests in, plans, has the stages work, hands audio out.

It runs in one thread, which owns every stream, slot and state; other threads only post messages to it (`post`).
`docs/engine.md` walks one request through it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from queue import Empty, SimpleQueue

import numpy as np
import torch
from numpy.typing import NDArray

from vivavoce.engine.books import Books
from vivavoce.engine.faults import explained
from vivavoce.engine.language_lane import LanguageLane
from vivavoce.engine.loop_thread import stopped
from vivavoce.engine.messages import Cancelled, Message, Prepare, Stop, Submitted
from vivavoce.engine.request import Arrival, AudioChunk
from vivavoce.engine.scheduler import Plan, Scheduler, Situation
from vivavoce.engine.statistics import RequestEvent, Statistics
from vivavoce.engine.stream import Phase, Segment
from vivavoce.engine.synthesis_lane import Part, SynthesisLane
from vivavoce.engine.ticket import Arrived, Made, Ticket, Track
from vivavoce.errors import RequestCancelled, VivavoceError

log = logging.getLogger(__name__)

_STREAM_FRAMES, _LEAST_FRAMES = 160, 1_024
"""Mel frames of a low_latency stream's largest chunk, with room; those of a batch that even one listener may need."""


class Loop:
    """All accepted requests, and the two lanes that work for them.

    `open_track` gives a segment its places in the stages; `books` say whether it may begin, and are told how it goes
    on.
    """

    def __init__(
        self,
        language: LanguageLane,
        synthesis: SynthesisLane,
        scheduler: Scheduler,
        statistics: Statistics,
        sample_rate: int,
        books: Books,
        open_track: Callable[[Ticket, Arrived], Track],
    ) -> None:
        self._language, self._synthesis, self._scheduler = language, synthesis, scheduler
        self._statistics, self._sample_rate = statistics, sample_rate
        self._books, self._open_track = books, open_track
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self._waiting_streams: deque[Ticket] = deque()
        """Accepted, and not begun: with them the streams that run would run dry."""
        self._waiting_offline: deque[Ticket] = deque()
        """Accepted, and not begun: there is offline work enough."""
        self._tickets: dict[int, Ticket] = {}
        self._tracks: dict[Segment, Track] = {}
        self._stop: Stop | None = None
        self.ended = False
        """It was told to stop, or something failed that no request is to blame for: it takes nothing any more."""
        self.busy_since = inf
        """Since when it is at one turn, on the engine's clock; ∞: it waits for messages."""

    def post(self, message: Message) -> None:
        """Leave a message for the loop; from any thread."""
        self._inbox.put(message)
        if self.ended:  # it may have ended before it could see this
            self._refuse_messages()

    def run(self) -> None:
        """Work until told to stop; the body of the engine's thread."""
        with torch.inference_mode():
            try:
                while self._stop is None or (self._stop.drain and (self._tickets or self._waiting)):
                    if not self.run_once():
                        self._wait()
            except Exception:
                log.exception("the engine's loop has failed")
            finally:
                self.ended = True
                self._refuse_the_rest()

    def run_once(self) -> bool:
        """Take messages, hand out what is done, and have the most urgent work begun; False: there was nothing."""
        self.busy_since = time.perf_counter()
        took = self._take_messages()
        self._let_in()
        moved = self._hand_out()
        if self._synthesis.open and self._synthesis.retry():
            return True
        now = time.perf_counter()
        at = Situation(
            now=now,
            lm_open=self._language.open,
            synthesis_open=self._synthesis.open,
            slots_free=self._language.slots_free,
            slots_total=self._language.slots_total,
            steps_in_flight=self._language.steps_in_flight,
            running=self._synthesis.running(),
            batches_open=self._synthesis.batches_open,
        )
        plan = self._scheduler.plan([ticket.stream for ticket in self._tickets.values()], at)
        began = self._execute(plan, now)
        return took or moved or began

    def fail(self, tracks: Sequence[Track], error: Exception) -> None:
        """End the requests of these tracks; their neighbours go on."""
        self._fail_tickets(list({track.ticket.stream.id: track.ticket for track in tracks}.values()), error)

    def _fail_tickets(self, tickets: Sequence[Ticket], error: Exception) -> None:
        if not isinstance(error, VivavoceError):
            log.error("a stage failed", exc_info=error)
        for ticket in tickets:
            self._end(ticket, explained(error))

    def _take_messages(self) -> bool:
        took = False
        while True:
            try:
                message = self._inbox.get_nowait()
            except Empty:
                return took
            self._take(message)
            took = True

    def _take(self, message: Message) -> None:
        if isinstance(message, Submitted):
            self._queue_of(message.ticket).append(message.ticket)
        elif isinstance(message, Prepare):
            self._prepare(message)
        elif isinstance(message, Stop):
            # Who wants no more work done is not overruled by who would wait for it.
            if self._stop is None or self._stop.drain:
                self._stop = message
            for running in list(self._tickets.values()) if message.drain else []:
                self._end_arrival(running)
                self._go_on(running)
        else:
            ticket = self._tickets.get(message.id) or next(
                (t for t in self._waiting if t.stream.id == message.id), None
            )
            if ticket is None:
                return  # it has ended meanwhile
            if isinstance(message, Cancelled):
                self._end(ticket, RequestCancelled("request: was cancelled"))
            else:
                if ticket.stream.starved:
                    ticket.stream.excuse(time.perf_counter())
                ticket.take(message.more)
                if ticket.stream.id in self._tickets:
                    self._go_on(ticket)
                ticket.outbox.text_read()

    def _prepare(self, message: Prepare) -> None:
        try:
            self._language.prepare(message.streams)
            self._synthesis.prepare(message.streams and max(_LEAST_FRAMES, message.streams * _STREAM_FRAMES))
        except Exception as error:  # too little memory, say: whoever asked decides what to do without
            message.done.set_exception(error)
        else:
            message.done.set_result(None)

    def _let_in(self) -> None:
        """Begin what may begin, in the order in which it came."""
        for queue in (self._waiting_streams, self._waiting_offline):
            while queue and self._books.may_start(queue[0]):
                ticket = queue.popleft()
                self._tickets[ticket.stream.id] = ticket
                if self._stop is not None:
                    self._end_arrival(ticket)
                self._go_on(ticket)

    def _end_arrival(self, ticket: Ticket) -> None:
        """Who drains does not wait for text that may never come: what has come is spoken."""
        if ticket.request.arrival is not Arrival.WHOLE:
            ticket.take(None)

    @property
    def _waiting(self) -> list[Ticket]:
        return [*self._waiting_streams, *self._waiting_offline]

    def _queue_of(self, ticket: Ticket) -> deque[Ticket]:
        return self._waiting_streams if ticket.stream.streaming else self._waiting_offline

    def _go_on(self, ticket: Ticket) -> None:
        """Open the segments that have arrived, and read the text that has."""
        while ticket.arrived:
            arrived = ticket.arrived.popleft()
            try:
                track = self._open_track(ticket, arrived)
            except Exception as error:  # a voice's tensors, say, are not what they should be: nobody else's business
                self._fail_tickets([ticket], error)
                return
            ticket.tracks.append(track)
            ticket.stream.segments.append(track.segment)
            self._tracks[track.segment] = track
            if ticket.asked and track.shares_prompt:
                self._statistics.prompt_cache(hit=track.flow.known is not None)
        for track in ticket.tracks:
            if track.segment.phase is Phase.STARVED:
                self._language.ask_for_text(track)
        self._settle(ticket)

    def _hand_out(self) -> bool:
        changed = self._language.collect()
        now = time.perf_counter()
        for track in changed:
            if track.ticket.stream.closed:
                continue
            if track.segment.ready_at is None and track.segment.may_cut(now):
                track.segment.ready_at = now
            if track.segment.phase in (Phase.DECODED, Phase.STARVED):
                self._settle(track.ticket)
                self._send_held(track.ticket)
        made = self._synthesis.collect()
        for one in made:
            self._deliver(one)
        return bool(changed or made)

    def _execute(self, plan: Plan, now: float) -> bool:
        """Have the lanes do it; False: there was nothing to begin."""
        began = bool(plan.prefill or plan.advance or plan.start)
        if plan.prefill:
            self._language.prefill([self._tracks[segment] for segment in plan.prefill])
        if plan.decode:
            began = self._language.decode(plan.decode) or began
        if plan.advance is not None:
            self._synthesis.advance(plan.advance)
        if plan.start:
            parts = []
            for item in plan.start:
                track = self._tracks.get(item.segment)
                if track is None:
                    continue  # the language model failed it a moment ago
                parts.append(Part(track, item, item.segment.ready_at or now))
                item.segment.ready_at = None
            self._synthesis.begin(parts)
        return began

    def _deliver(self, made: Made) -> None:
        ticket, segment = made.track.ticket, made.track.segment
        stream = ticket.stream
        if stream.closed:
            return
        if not stream.streaming:
            ticket.held[segment.place] = made
            self._send_held(ticket)
        else:
            self._send(ticket, made)

    def _send_held(self, ticket: Ticket) -> None:
        """Send what waited for segments in front of it, which are sent, or turned out to be empty."""
        while ticket.stream.current in ticket.held and not ticket.stream.closed:
            self._send(ticket, ticket.held.pop(ticket.stream.current))

    def _send(self, ticket: Ticket, made: Made) -> None:
        stream, now = ticket.stream, time.perf_counter()
        duration_s = len(made.samples) / self._sample_rate
        last = made.cut.final and stream.complete and stream.current == len(stream.segments) - 1
        if duration_s or last:
            late_s = stream.hand_out(duration_s, now)
            if late_s:
                ticket.underruns += 1
            self._record(ticket, duration_s, late_s, now)
            self._put(ticket, made.samples, final=last and ticket.error is None, segment=made.track.segment.place)
        if made.cut.final:
            stream.current += 1
            self._settle(ticket)

    def _put(self, ticket: Ticket, samples: NDArray[np.float32], final: bool, segment: int) -> None:
        ticket.outbox.put(AudioChunk(samples, self._sample_rate, ticket.num_chunks, final, segment))
        ticket.num_chunks += 1
        ticket.told_final = final

    def _record(self, ticket: Ticket, duration_s: float, late_s: float, now: float) -> None:
        """Write down a chunk that is about to be sent."""
        stream = ticket.stream
        if stream.streaming and ticket.num_chunks == 0:
            self._books.sounds(ticket)
        if not ticket.asked:
            return
        self._statistics.audio(duration_s)
        if not stream.streaming:
            return
        if ticket.num_chunks == 0:
            self._statistics.first_chunk(now - stream.accepted_at)
        else:
            self._statistics.chunk(late_s)

    def _settle(self, ticket: Ticket) -> None:
        """Pass over segments that brought no tokens at all; end the request after its last one; ask for its text."""
        stream = ticket.stream
        while stream.current < len(stream.segments) and stream.segments[stream.current].empty:
            stream.current += 1
        if stream.complete and stream.current == len(stream.segments):
            if ticket.error is None and not ticket.told_final:
                # The chunk before was sent when more could still come: more text, or a segment that had no tokens.
                self._put(ticket, np.zeros(0, np.float32), final=True, segment=max(0, len(stream.segments) - 1))
            self._end(ticket, ticket.error)
        else:
            ticket.outbox.want_text(stream.starved)

    def _end(self, ticket: Ticket, error: Exception | None) -> None:
        stream = ticket.stream
        if stream.closed:
            return
        stream.closed = True
        for track in ticket.tracks:
            self._language.release(track)
            self._synthesis.release(track)
            del self._tracks[track.segment]
        if self._tickets.pop(stream.id, None) is None:
            self._queue_of(ticket).remove(ticket)
        self._tell(ticket, error)
        # Tracks hold tensors, and know their ticket: without this they would wait for the garbage collector.
        ticket.tracks.clear()
        ticket.held.clear()

    def _tell(self, ticket: Ticket, error: Exception | None) -> None:
        """Say that a request is over, to all who count it, its listener last."""
        self._books.ended(ticket)
        if ticket.asked:
            self._statistics.request(_event(error))
        ticket.outbox.end(ticket.outcome(error, time.perf_counter()))

    def _wait(self) -> None:
        """Nothing can be begun: wait for the device, or for a message."""
        lanes: tuple[LanguageLane | SynthesisLane, ...] = (self._language, self._synthesis)
        busy = [lane for lane in lanes if lane.busy]
        if busy:
            # The lane that is done first must not run dry while the host waits for the other.
            min(busy, key=lambda lane: lane.due_at).wait()
        else:
            self.busy_since = inf
            message = self._inbox.get()
            self.busy_since = time.perf_counter()
            self._take(message)

    def _refuse_the_rest(self) -> None:
        """Tell all who still listen. The stages are left as they are: they may be what has failed."""
        for ticket in (*self._tickets.values(), *self._waiting):
            self._tell(ticket, stopped())
        self._refuse_messages()

    def _refuse_messages(self) -> None:
        """End requests that came too late; in any thread, after the loop's end."""
        while True:
            try:
                message = self._inbox.get_nowait()
            except Empty:
                return
            if isinstance(message, Submitted):
                self._tell(message.ticket, stopped())
            elif isinstance(message, Prepare):
                message.done.set_exception(stopped())


def _event(error: Exception | None) -> RequestEvent:
    if isinstance(error, RequestCancelled):
        return RequestEvent.CANCELLED
    return RequestEvent.FINISHED if error is None else RequestEvent.FAILED
