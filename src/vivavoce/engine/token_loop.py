"""The token engine's one loop: newcomers are read between decode steps, in which all slots take part.

It runs in one thread, which owns every slot; other threads only post messages to it (`post`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Lock

import torch

from vivavoce.engine.faults import explained
from vivavoce.engine.lane import Lane
from vivavoce.engine.lm_stage import LMStage, Run, Sampled
from vivavoce.engine.loop_thread import stopped
from vivavoce.engine.messages import Cancelled, Prepare, Stop
from vivavoce.engine.token_handle import TokenOutbox
from vivavoce.engine.token_request import TokenRequest
from vivavoce.errors import Overloaded, RequestCancelled, VivavoceError

log = logging.getLogger(__name__)

PREFILL_ROWS = 1024
"""Rows of one prefill, so that those who decode do not stall; a longer prompt goes alone."""
LAUNCHES_AHEAD = 2
"""Launches that a CUDA device is given before the ids of the first are looked at: it never waits for the host."""


class Room:
    """How many requests are inside, and whether another may come in; shared by all threads that submit."""

    def __init__(self, most: int) -> None:
        self._most, self._inside = most, 0
        self._lock = Lock()

    def enter(self) -> None:
        """Count one in.

        Raises:
            Overloaded: so many are inside already.
        """
        with self._lock:
            if self._inside >= self._most:
                raise Overloaded(f"requests: {self._most} are decoded or wait, no more may; come again in a second")
            self._inside += 1

    def leave(self) -> None:
        """One is over."""
        with self._lock:
            self._inside -= 1


@dataclass(eq=False)
class Job:
    """One accepted request."""

    number: int
    request: TokenRequest
    run: Run
    outbox: TokenOutbox
    slot: int | None = None
    drawn: int = 0
    """Speech tokens handed out."""


@dataclass(frozen=True, eq=False)
class Asked:
    """A request was accepted."""

    job: Job


Message = Asked | Cancelled | Prepare | Stop


class TokenLoop:
    """All accepted requests, and the stage that works for them."""

    def __init__(self, stage: LMStage, device: torch.device, room: Room) -> None:
        self._stage, self._room = stage, room
        self._lane = Lane(device, urgent=True)
        self._ahead = LAUNCHES_AHEAD if device.type == "cuda" else 1
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self._jobs: dict[int, Job] = {}
        """All that were accepted, by number."""
        self._waiting: deque[Job] = deque()
        """Those that have no slot yet."""
        self._running: dict[int, Job] = {}
        """Those that have one, by slot."""
        self._has_read = False
        """The last launch was a prefill: if somebody decodes, a step is next."""
        self._stop: Stop | None = None
        self.ended = False
        """It was told to stop, or something failed that no request is to blame for: it takes nothing any more."""

    def post(self, message: Message) -> None:
        """Leave a message for the loop; from any thread."""
        self._inbox.put(message)
        if self.ended:  # it may have ended before it could see this
            self._refuse_messages()

    def run(self) -> None:
        """Work until told to stop; the body of the engine's thread."""
        with torch.inference_mode(), self._lane.entered():
            try:
                while self._stop is None or (self._stop.drain and self._jobs):
                    if not self.run_once():
                        self._wait()
            except Exception:
                log.exception("the token engine's loop has failed")
            finally:
                self.ended = True
                self._refuse_the_rest()

    def run_once(self) -> bool:
        """Take messages, hand out what has come, and begin one launch; False: there was nothing."""
        took = self._take_messages()
        came = self._collect()
        return self._begin() or took or came

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
        if isinstance(message, Asked):
            self._jobs[message.job.number] = message.job
            self._waiting.append(message.job)
        elif isinstance(message, Prepare):
            self._prepare(message)
        elif isinstance(message, Stop):
            # Who wants no more work done is not overruled by who would wait for it.
            if self._stop is None or self._stop.drain:
                self._stop = message
        elif (job := self._jobs.get(message.id)) is not None:
            self._end(job, RequestCancelled("request: was cancelled"))

    def _prepare(self, message: Prepare) -> None:
        try:
            self._stage.prepare(message.streams)
        except Exception as error:  # too little memory, say: whoever asked decides what to do without
            message.done.set_exception(error)
        else:
            message.done.set_result(None)

    def _begin(self) -> bool:
        if self._stage.in_flight >= self._ahead:
            return False
        # Whoever decodes is held up by one prefill at a time.
        if self._has_read:
            return self._decode() or self._read_newcomers()
        return self._read_newcomers() or self._decode()

    def _read_newcomers(self) -> bool:
        newcomers = self._newcomers()
        if newcomers:
            self._read(newcomers)
            self._has_read = True
        return bool(newcomers)

    def _newcomers(self) -> list[Job]:
        """Those whose rows are read next, in the order in which they came; each takes a slot."""
        chosen: list[Job] = []
        rows = 0
        while self._waiting and self._stage.free_slots:
            rows += len(self._waiting[0].run.rows)
            if chosen and rows > PREFILL_ROWS:
                break
            job = self._waiting.popleft()
            job.slot = self._stage.open(job.request.sampling, job.request.seed)
            self._running[job.slot] = job
            self._stage.feed(job.slot, job.run)
            chosen.append(job)
        return chosen

    def _read(self, jobs: Sequence[Job]) -> None:
        """Prefill. If it fails for several at once, each is tried alone: one of them may be to blame, or memory."""
        try:
            self._stage.prefill([job.slot for job in jobs if job.slot is not None])
        except Exception as error:
            untouched = [job for job in jobs if job.slot is not None and self._stage.waiting_rows(job.slot)]
            if len(jobs) == 1 or len(untouched) < len(jobs):
                self._fail(jobs, error)
                return
            for job in jobs:
                self._read([job])

    def _decode(self) -> bool:
        if not self._stage.decoding:
            return False
        self._has_read = False
        try:
            self._stage.decode()
        except Exception as error:
            # A step is everybody's: whose ids were drawn and whose were not is not known any more.
            self._fail(list(self._running.values()), error)
        return True

    def _collect(self) -> bool:
        try:
            arrived = self._stage.collect(wait=False)
        except Exception as error:
            # The device reports late: whose step it was is not known any more.
            self._fail(list(self._running.values()), error)
            return False
        for sampled in arrived:
            job = self._running.get(sampled.slot)
            if job is not None:
                self._hand_out(job, sampled)
        return bool(arrived)

    def _hand_out(self, job: Job, sampled: Sampled) -> None:
        tokens = sampled.ids[:-1] if sampled.ended else sampled.ids
        job.drawn += len(tokens)
        if tokens:
            job.outbox.put(tokens)
        # The id that a run is ended with by force need not be waited for.
        if sampled.ended or job.drawn >= job.request.max_tokens:
            self._end(job, None)

    def _fail(self, jobs: Sequence[Job], error: Exception) -> None:
        """End these requests; their neighbours go on."""
        if not isinstance(error, VivavoceError):
            log.error("the language model failed", exc_info=error)
        for job in jobs:
            self._end(job, explained(error))

    def _end(self, job: Job, error: Exception | None) -> None:
        del self._jobs[job.number]
        if job.slot is None:
            self._waiting.remove(job)
        else:
            self._stage.close(job.slot)
            del self._running[job.slot]
        self._tell(job, error)

    def _tell(self, job: Job, error: Exception | None) -> None:
        self._room.leave()
        job.outbox.end(error)

    def _wait(self) -> None:
        """Nothing can be begun: wait for the device, or for a message."""
        if self._stage.in_flight:
            self._stage.wait()
        else:
            self._take(self._inbox.get())

    def _refuse_the_rest(self) -> None:
        """Tell all who still listen. The stage is left as it is: it may be what has failed."""
        for job in self._jobs.values():
            self._tell(job, stopped())
        self._refuse_messages()

    def _refuse_messages(self) -> None:
        """End requests that came too late; in any thread, after the loop's end."""
        while True:
            try:
                message = self._inbox.get_nowait()
            except Empty:
                return
            if isinstance(message, Asked):
                self._tell(message.job, stopped())
            elif isinstance(message, Prepare):
                message.done.set_exception(stopped())
