"""The engine's one loop: takes in requests, plans work, runs the stages, and hands out audio.

It runs in one thread, which owns every request, slot and state; other threads only post messages to it (`post`).
`docs/engine.md` follows one request through it.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vivavoce.engine.admission import AdmissionController
from vivavoce.engine.device import GcFreeze
from vivavoce.engine.handle import RequestResult
from vivavoce.engine.lm_runner import LMRunner
from vivavoce.engine.request import AudioChunk, InputMode
from vivavoce.engine.request_state import Phase, RequestState, SequenceState, Taken
from vivavoce.engine.scheduler import Scheduler, SchedulerState
from vivavoce.engine.stages import explained
from vivavoce.engine.statistics import Statistics
from vivavoce.engine.synthesis_runner import SynthesisRunner
from vivavoce.errors import EngineStopped, RequestCancelled, VivavoceError
from vivavoce.models.lm.text_attention import TextHeads

log = logging.getLogger(__name__)

_STREAM_FRAMES, _LEAST_FRAMES = 160, 1_024
"""Mel frames of a low_latency stream's largest chunk, rounded up; and the fewest frames of a batch to prepare for."""

STUCK_S = 300.0
"""Seconds after which a turn of the loop counts as stuck at a device that does not answer; compiling takes less."""
LEAVE_S = 10.0
"""Seconds that the current turn has to end after the loop was told to stop at once."""
LOOK_S = 0.1
"""Interval in seconds at which `close` checks that the loop makes progress."""


Message = Callable[[], None]
"""Work that another thread posts to the loop: usually a method that only the loop's thread may call."""


class Loop:
    """All accepted requests, and the runners that do the work for them; either runner may be missing."""

    def __init__(
        self,
        lm: LMRunner | None,
        synthesis: SynthesisRunner | None,
        scheduler: Scheduler,
        admission: AdmissionController,
        statistics: Statistics,
        threads: AbstractContextManager[object] = nullcontext(),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._lm, self._synthesis, self._threads = lm, synthesis, threads
        self._runners: list[LMRunner | SynthesisRunner] = [one for one in (lm, synthesis) if one is not None]
        for runner in self._runners:
            runner.fail = self.fail
        self._scheduler, self._admission, self._statistics = scheduler, admission, statistics
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self._waiting: tuple[deque[RequestState], deque[RequestState]] = (deque(), deque())
        """Accepted requests that have not started: first streams with a listener, then all other work."""
        self._requests: dict[int, RequestState] = {}
        self._drain: bool | None = None
        """None while the loop goes on; True if it stops once all accepted work is done; False if it stops now."""
        self._closing = False
        self._starting = threading.Lock()
        self._lag = 0.0
        """The lag of the voice behind the heads' attention, in speech tokens."""
        self.gc_freeze = GcFreeze()
        self.thread: threading.Thread | None = None
        self._process = os.getpid()
        self.ended = False
        """Whether the loop was stopped or has failed; it then takes no more requests."""
        self.busy_since = inf
        """Start of the current turn, on the engine's clock; ∞ while it waits for messages."""

    @property
    def healthy(self) -> bool:
        return not (self._closing or self.ended)

    @property
    def idle(self) -> bool:
        busy = any(runner.busy for runner in self._runners)
        return not (busy or self._requests or self._waiting[0] or self._waiting[1])

    def start(self) -> None:
        """Run the loop in a thread, unless it runs already.

        Raises:
            EngineStopped: the loop was closed or has failed, or this process is a fork of the loop's process.
        """
        if os.getpid() != self._process:
            raise forked()
        if self._closing or self.ended:
            raise stopped()
        with self._starting:
            if self.thread is None:
                self.thread = threading.Thread(target=self.run, name="vivavoce-engine", daemon=True)
                self.thread.start()
                atexit.register(_stop_at_exit, weakref.ref(self))

    def close(self, *, drain: bool, timeout_s: float | None) -> None:
        """Stop the loop. Accepted requests are finished (`drain`) or end with EngineStopped.

        A drain may last `timeout_s`, or if that is None, until a turn takes STUCK_S. Then the current turn has LEAVE_S
        to end; without a drain it has `timeout_s`, or LEAVE_S if None. After that, all requests end at once.
        """
        self._closing = True
        self.post(partial(self.stop, drain))
        if self.thread is not None and self.thread is not threading.current_thread():
            if drain and not self.leaves_within(timeout_s):
                self.post(partial(self.stop, drain=False))
            patience_s = LEAVE_S if drain or timeout_s is None else timeout_s
            if not self.leaves_within(patience_s):
                log.error("engine failed: it was told to stop, and its device did not answer within %g s", patience_s)
                self._give_up()
        self.gc_freeze.end()

    def leaves_within(self, timeout_s: float | None) -> bool:
        """Return whether the loop's thread ends within `timeout_s`, or if that is None, before a turn takes STUCK_S."""
        assert self.thread is not None
        if timeout_s is not None:
            self.thread.join(timeout_s)
        while timeout_s is None and self.thread.is_alive() and self._clock() - self.busy_since < STUCK_S:
            self.thread.join(LOOK_S)
        return not self.thread.is_alive()

    def abandon(self) -> None:
        """Stop the loop of an engine that is not used any more but was not closed."""
        self.post(partial(self.stop, drain=False))
        self.gc_freeze.end()

    def post(self, message: Message) -> None:
        """Post a message to the loop, from any thread. After the loop's end the calling thread runs it."""
        self._inbox.put(message)
        if self.ended:  # the loop may have ended before it could read the message
            self._refuse_messages()

    def leave(self, number: int) -> None:
        self._admission.left(number)
        self.post(partial(self.cancel, number))

    def run(self) -> None:
        with torch.inference_mode():
            try:
                with self._threads:
                    while self._drain is None or (self._drain and (self._requests or any(self._waiting))):
                        if self.run_once() or self.wait_for_device():
                            continue
                        self.busy_since = inf
                        message = self._inbox.get()
                        self.busy_since = self._clock()
                        message()
                        del message  # it may hold an adapter
            except Exception:
                log.exception("engine failed: the engine's loop has failed")
            finally:
                self._end_all()

    def run_once(self) -> bool:
        """Run one turn: take messages, hand out results, launch the most urgent work; False: nothing to do."""
        self.busy_since = self._clock()
        moved = not self._inbox.empty()
        while not self._inbox.empty():
            self._inbox.get()()
        for queue in self._waiting:
            while queue and self._admission.may_start(queue[0], self._clock()):
                request = queue.popleft()
                self._requests[request.id] = request
                request.outbox.begin()
                self._go_on(request)
        moved = self._hand_out() or moved
        lm, synthesis = self._lm, self._synthesis
        if synthesis is not None and synthesis.failed and synthesis.queue.open:
            synthesis.retry()
            return True
        slots = (
            (lm.queue.open, lm.stage.free_slots, lm.stage.slots, lm.stage.steps_in_flight) if lm else (False, 0, 0, 0)
        )
        batches = (synthesis.queue.open, *synthesis.running()) if synthesis else (False, (), False)
        plan = self._scheduler.plan(self._requests.values(), SchedulerState(self._clock(), *slots, *batches))
        if lm is not None:
            if plan.prefill:
                lm.prefill(plan.prefill)
            if plan.decode:
                moved = lm.decode(plan.decode) or moved
        if synthesis is not None:
            if plan.advance:
                synthesis.advance(plan.advance)
            if plan.start:
                synthesis.begin(plan.start)
        return moved or bool(plan.prefill or plan.advance or plan.start)

    def accept(self, request: RequestState) -> None:
        """In the loop's thread: queue a request that was admitted."""
        if self.ended:
            self._announce_end(request, stopped())
        else:
            self._waiting[not request.live].append(request)

    def cancel(self, number: int) -> None:
        """In the loop's thread: end the request that has this number, because its listener has left."""
        request = self._find(number)
        if request is not None:
            self._end(request, RequestCancelled("request: was cancelled"))

    def stop(self, drain: bool) -> None:
        """In the loop's thread: stop after pending work (`drain`) or now; stopping now overrides any drain."""
        self._drain = drain and self._drain is not False
        for request in list(self._requests.values()) if drain else ():
            self._go_on(request)

    def fail(self, sequences: Sequence[SequenceState], error: Exception) -> None:
        self._fail({sequence.request.id: sequence.request for sequence in sequences}.values(), error)

    def take(self, number: int, more: Taken) -> None:
        """In the loop's thread: pass more input for the request with this number to `RequestState.take`."""
        request = self._find(number)
        if request is None:
            return  # it has ended meanwhile
        try:
            request.take(more, self._clock())
        except Exception as error:
            self._end(request, explained(request.error or error))
        if request.id in self._requests:
            self._go_on(request)
        request.outbox.text_sent(-1)

    def call(self, work: Callable[[], object], done: Future[Any]) -> None:
        """In the loop's thread: run `work`; `done` gets its result or error."""
        try:
            if self.ended:
                raise stopped()
            done.set_result(work())
        except Exception as error:  # such as too little memory: the caller decides whether to go on
            done.set_exception(error)

    def watch(self, heads: TextHeads | None) -> None:
        """In the loop's thread: from now on, use these attention heads to follow watched segments."""
        if self._lm is not None:
            self._lm.heads, self._lag = heads, 0.0 if heads is None else heads.lag

    def in_lm_queue(self, work: Callable[[], Any]) -> Any:
        """Run `work` on the language model's queue, after the launches made so far, and return its result.

        Call it in the loop's thread, or before the loop was started.
        """
        assert self._lm is not None
        with torch.inference_mode(), self._lm.queue.entered():
            return work()

    def prepare(self, streams: int | None) -> None:
        """In the loop's thread: record the graphs that this many streams need; if None, all graphs."""
        if self._lm is not None:
            self._lm.prepare(streams)
        if self._synthesis is not None:
            self._synthesis.prepare(streams and max(_LEAST_FRAMES, streams * _STREAM_FRAMES))

    def _give_up(self) -> None:
        """End all requests from another thread, because the loop's thread is blocked by the device."""
        self._drain = False
        self._end_all()
        self._inbox.put(partial(self.stop, drain=False))  # wakes the loop if it waits for a message by now

    def _end_all(self) -> None:
        """Refuse messages from now on, and end all requests. The stages are not called: they may have failed."""
        left = (*self._requests.values(), *self._waiting[0], *self._waiting[1])
        self._requests, self._waiting = {}, (deque(), deque())
        self.ended = True
        for request in left:
            if request.closed:  # this request was about to end when the device blocked the thread
                request.outbox.end(RequestResult(stopped()))
            else:
                request.closed = True
                self._announce_end(request, stopped())
        self._refuse_messages()

    def _find(self, number: int) -> RequestState | None:
        waiting = (one for queue in self._waiting for one in queue if one.id == number)
        return self._requests.get(number) or next(waiting, None)

    def _refuse_messages(self) -> None:
        with suppress(Empty):
            while True:
                self._inbox.get_nowait()()

    def _fail(self, requests: Iterable[RequestState], error: Exception) -> None:
        if not isinstance(error, VivavoceError):
            log.error("stage failed", exc_info=error)
        for request in requests:
            self._end(request, explained(error))

    def _go_on(self, request: RequestState) -> None:
        try:
            ended = request.arrival is InputMode.SPEECH and request.complete
            if self._drain is not None and request.arrival is not InputMode.WHOLE and not ended:
                # A drain does not wait for text that may never come: the text so far is spoken.
                request.take(None, self._clock())
            while request.arrived:
                sequence = request.arrived.popleft()
                request.add(sequence)
                if not sequence.finished and self._synthesis is not None:
                    self._synthesis.open(sequence)
        except Exception as error:  # such as malformed tensors of a voice: other requests go on
            self._fail((request,), error)  # it may have no sequence yet
            return
        for sequence in request.sequences:
            if sequence.phase is Phase.STARVED and sequence.text is not None and self._lm is not None:
                self._lm.ask_for_text(sequence)
        self._settle(request)

    def _hand_out(self) -> bool:
        """Hand out the tokens and samples that have arrived; return False if none have arrived."""
        decoded = self._lm.collect() if self._lm is not None else []
        now = self._clock()
        for sequence in decoded:
            request = sequence.request
            if request.closed:
                continue
            if request.tokens_only:
                fresh, sequence.spoken = sequence.tokens[sequence.spoken :], sequence.produced
                if fresh:
                    request.outbox.put(fresh)
                if sequence.phase is Phase.DECODED:
                    self._end(request, request.error)
                continue
            if sequence.ready_at is None and sequence.may_cut(now):
                sequence.ready_at = now
            if sequence.phase in (Phase.DECODED, Phase.STARVED):
                self._settle(request)
        voiced = self._synthesis.collect() if self._synthesis is not None else []
        for chunk, samples in voiced:
            request = chunk.sequence.request
            if not request.closed:
                request.held[chunk.sequence.place] = (chunk.final, samples)
                self._settle(request)
        return bool(decoded or voiced)

    def _settle(self, request: RequestState) -> None:
        """Send the available samples in the order of the sequences; then end the request, or ask for more text."""
        sequences = request.sequences
        while request.current < len(sequences):
            sequence = sequences[request.current]
            ready = request.held.pop(request.current, None)
            if ready is None and sequence.phase is Phase.DECODED and not sequence.produced:
                pause_s = getattr(sequence.segment, "pause_s", 0.0)  # a prompt for tokens has no pause
                ready = True, np.zeros(round(pause_s * request.rates.sample_rate), np.float32)
            if ready is None:
                break
            final, samples = ready
            last = final and request.complete and sequence is sequences[-1]
            # A sequence without tokens has nothing to send, unless it is a pause.
            if len(samples) or (last and sequence.produced) or request.arrival is InputMode.SPEECH:
                self._send(request, sequence, samples, last, final)
            if not final:
                break
            request.current += 1
        if request.complete and request.current == len(sequences):
            if request.error is None and not request.final_sent:
                # The last chunk was not sent as final, because more text or tokens could still come.
                empty = np.zeros(0, np.float32)
                place = max(0, len(sequences) - 1)
                reached = sequences[-1].tell(0.0, True, self._lag) if sequences else None
                rate = request.rates.sample_rate
                request.outbox.put(AudioChunk(empty, rate, request.chunks, True, place, reached, True))
            self._end(request, request.error)
        elif request.arrival is not InputMode.WHOLE:
            request.outbox.want_text(request.starved)

    def _send(
        self, request: RequestState, sequence: SequenceState, samples: NDArray[np.float32], last: bool, ended: bool
    ) -> None:
        """Hand out samples; last, ended: whether they are the last samples of the request, and of the sequence."""
        now, rate, first = self._clock(), request.rates.sample_rate, request.sounding_since is None
        duration_s = len(samples) / rate
        late_s = request.hand_out(duration_s, now)
        if request.asked:
            with self._statistics.lock:
                counted, streaming = self._statistics.now, request.live
                counted.audio_s += duration_s
                counted.streams.chunks += streaming
                if streaming and first:
                    counted.streams.first_chunk_s.observe(now - request.accepted_at)
                elif late_s > 0:
                    counted.streams.lateness_s.observe(late_s)
        request.final_sent = last and request.error is None
        reached = sequence.tell(duration_s, ended, self._lag)
        told = request.final_sent, sequence.place, reached, ended
        request.outbox.put(AudioChunk(samples, rate, request.chunks, *told))
        request.chunks += 1

    def _end(self, request: RequestState, error: Exception | None) -> None:
        if request.closed:
            return
        request.closed = True
        for sequence in request.sequences:
            for runner in self._runners:
                runner.release(sequence)
        if self._requests.pop(request.id, None) is None:
            self._waiting[not request.live].remove(request)
        self._announce_end(request, error)
        # Sequences hold tensors and refer to their request; clearing breaks the cycle, so that memory is freed at once.
        request.sequences.clear()
        request.held.clear()
        request.adapters.clear()

    def _announce_end(self, request: RequestState, error: Exception | None) -> None:
        """Report the end of the request to admission and statistics, then end its outbox."""
        self._admission.ended(request)
        if request.asked:
            cancelled = isinstance(error, RequestCancelled)
            with self._statistics.lock:
                counts = self._statistics.now.requests
                counts.cancelled += cancelled
                counts.failed += error is not None and not cancelled
                counts.finished += error is None
        request.timings.finished_s = self._clock() - request.accepted_at
        tokens = tuple(tuple(sequence.tokens) for sequence in request.sequences)
        cut = tuple(sequence.cut for sequence in request.sequences)
        faults = tuple(fault for sequence in request.sequences for fault in sequence.faults.items())
        attended = tuple(
            None if one.cursor is None else tuple(one.cursor.attended(one.cursor.known).tolist())
            for one in request.sequences
        )
        result = RequestResult(error, tokens, request.timings, cut, attended=attended, faults=faults)
        request.outbox.end(result)

    def wait_for_device(self) -> bool:
        """Block until a piece of launched work is done; return False if no work is running."""
        busy = [runner for runner in self._runners if runner.busy]
        if busy:
            # Wait for the queue that will be done first: it would be idle while the host waits for the other queue.
            min(busy, key=lambda runner: runner.queue.due_at).wait()
        return bool(busy)


def stopped() -> EngineStopped:
    return EngineStopped("engine: it has stopped; start it again")


def forked() -> EngineStopped:
    return EngineStopped(
        "engine: the model was loaded before this process was forked, and its threads stayed behind; load it in each "
        "worker"
    )


def _stop_at_exit(loop: weakref.ref[Loop]) -> None:
    """Stop the loop when the interpreter exits: a thread that still computes would crash the interpreter."""
    running = loop()
    if running is not None and running.thread is not None and running.thread.is_alive():
        running.post(partial(running.stop, drain=False))
        if not running.leaves_within(None):
            log.error("engine failed: the process ends, and its device did not answer within %g s", STUCK_S)
