"""Decides whether a request may start now, has to wait, or is refused at once.

A stream that starts late or has gaps is worse than a refused stream, because a refused client can go elsewhere. So a
stream is admitted only if, by the measured costs, all streams including the new one keep up with their listeners. The
first stream is always admitted, even on a slow machine, because it slows down no other stream. A machine that can serve
only a few streams mostly serves one person, who requests a sentence while the sentence before it is spoken. On such a
machine streams wait, unless the mode is REFUSE. More load never turns a refusal into an admission.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from dataclasses import dataclass, replace
from enum import Enum

from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.cost_model import BatchSize, CostModel, Stage
from vivavoce.engine.request_state import Phase, RequestState
from vivavoce.errors import InvalidRequest, Overloaded
from vivavoce.rates import Rates

FIRST_CHUNK_SLACK = 2.0
"""A stream is refused if its first chunk would take more than this many times the target (`first_chunk_s`)."""
MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0
DURATION_S, PROMPT_S, TEXT_ROWS = 10.0, 5.0, 60
"""Estimates assume streams of DURATION_S s of audio, PROMPT_S s of reference, TEXT_ROWS ids of text and transcript."""
MAX_ROWS = 32
"""The largest number of chunks in one flow batch."""
FEW_STREAMS, FEW_WAITING = 8, 8
"""A machine that keeps up with fewer than FEW_STREAMS streams is slow; FEW_WAITING streams may wait there (AUTO)."""
RAMP_S = 4.2
"""Seconds of audio before a stream's chunks have full length: each is computed while a shorter chunk is played."""


class AdmissionMode(str, Enum):
    """The rule for a stream that may not start now: REFUSE refuses it; QUEUE lets it wait while the queue has a place.

    AUTO: on a slow machine streams wait, in a queue with few places; on other machines they are refused. ALL: a stream
    starts as soon as a slot is free, even if listeners then hear gaps; for tests that overload the machine.
    """

    AUTO = "auto"
    REFUSE = "refuse"
    QUEUE = "queue"
    ALL = "all"


@dataclass(frozen=True)
class Load:
    """Counts of the engine's requests and slots at one moment.

    streams: started and unfinished streams with a listener; starting: streams among these that have not sent any audio
    yet; offline: unfinished sequences of offline and batch requests; waiting: accepted requests that have not started;
    slots_free: slots that a new stream could take now.
    """

    streams: int
    starting: int
    offline: int
    waiting: int
    slots_free: int
    slots_total: int


@dataclass(frozen=True)
class AdmissionLimits:
    """The operator's limits for admission.

    admission: the `AdmissionMode`; max_waiting: the largest number of waiting requests; max_wait_s: seconds that a
    server with AUTO lets a stream wait; first_chunk_s: the target in seconds for a stream's first chunk; headroom: the
    largest share of real time that all streams together may use.
    """

    admission: AdmissionMode = AdmissionMode.QUEUE
    max_waiting: int = 1_000
    max_wait_s: float = 30.0
    first_chunk_s: float = 1.0
    headroom: float = 0.85

    def __post_init__(self) -> None:
        if not isinstance(self.admission, AdmissionMode):
            known = " or ".join(mode.value for mode in AdmissionMode)
            raise InvalidRequest(f"admission: mode {self.admission!r} is unknown; use {known}")
        if self.max_waiting < 1:
            raise InvalidRequest(f"max_waiting: {self.max_waiting} is less than 1; choose 1 or more")
        if not 0 < self.headroom <= 1:
            raise InvalidRequest(f"headroom: {self.headroom} is outside of (0, 1]; choose a share of real time")
        for name in ("max_wait_s", "first_chunk_s"):
            if not getattr(self, name) > 0:
                raise InvalidRequest(f"{name}: {getattr(self, name)} is not above 0; choose a time in seconds")


class AdmissionController:
    """Counts requests, and decides whether another request is accepted and may start; all threads share it.

    policy: every estimate assumes that streams use this chunk policy.
    """

    def __init__(
        self,
        costs: CostModel,
        limits: AdmissionLimits,
        rates: Rates,
        slots: int,
        policy: ChunkPolicy = ChunkPolicy.low_latency(),
    ) -> None:
        self._costs, self._limits, self._rates, self._slots = costs, limits, rates, slots
        self._overlaps, self._hop = policy.overlaps, policy.max_hop
        self._first_tokens = policy.first_hop + policy.lookahead
        self._lock = threading.RLock()
        self._waiting: set[RequestState] = set()
        self._running: set[RequestState] = set()

    def check(self, streaming: bool, request: RequestState | None = None) -> None:
        """Raise Overloaded if one more request cannot be accepted. Otherwise count `request`, if given, as waiting."""
        with self._lock:
            if request is None or request.asked:
                load = self.load()
                if streaming and not self.may_wait:
                    # Admitted streams that the loop has not started yet count as running.
                    coming = sum(other.live for other in self._waiting)
                    streams, starting = load.streams + coming, load.starting + coming
                    load = replace(load, streams=streams, starting=starting, slots_free=load.slots_free - coming)
                error = self.refusal(load, streaming)
                if error is not None:
                    raise error
            if request is not None:
                self._waiting.add(request)

    def may_start(self, request: RequestState, now: float) -> bool:
        """Return whether a waiting request may start at `now`, on the engine's clock; if so, count it as running."""
        with self._lock:
            load = self.load()
            if not request.live:
                # More offline sequences than slots would not end sooner, but would slow each plan down.
                allowed = load.offline < self._slots
            else:
                allowed = not request.asked or (
                    self.admission_blocker(load) is None and self._can_spare_time(request, now)
                )
            if allowed:
                self._waiting.discard(request)
                self._running.add(request)
            return allowed

    def left(self, number: int) -> None:
        """Stop counting the request with this id, because its listener has left.

        The loop takes messages in order, so it frees the slots of this request before it starts any later request.
        """
        with self._lock:
            for counted in (self._waiting, self._running):
                counted -= {request for request in counted if request.id == number}

    def ended(self, request: RequestState) -> None:
        with self._lock:
            self._waiting.discard(request)
            self._running.discard(request)

    def load(self) -> Load:
        with self._lock:
            streams = [request for request in self._running if request.live]
            offline = [one for request in self._running if not request.live for one in request.sequences]
            return Load(
                streams=len(streams),
                starting=sum(request.sounding_since is None for request in streams),
                offline=sum(one.phase is not Phase.DECODED or not one.finished for one in offline),
                waiting=len(self._waiting),
                slots_free=self._slots - len(streams),  # offline work never takes the last slots
                slots_total=self._slots,
            )

    def refusal(self, load: Load, streaming: bool) -> Overloaded | None:
        """Return the error that refuses one more request; None if it is accepted, though its start may have to wait.

        `retry_after_s` estimates when a running sequence ends, or when the starting streams have their first chunks.
        """
        hindered = self.admission_blocker(load) if streaming else None
        if streaming and not self.may_wait:
            return hindered
        most = self.places if streaming else self._limits.max_waiting
        has_to_wait = load.waiting > 0 or hindered is not None or (not streaming and load.slots_free <= 0)
        if not has_to_wait or load.waiting < most:
            return None
        reason = f"queue: {load.waiting} requests wait, the limit is {most}"
        return _overloaded(reason, DURATION_S / (load.streams + load.offline + 1))

    @property
    def places(self) -> int:
        """The number of streams that may wait for their start."""
        few = self._limits.admission is AdmissionMode.AUTO and self._slow
        return min(FEW_WAITING, self._limits.max_waiting) if few else self._limits.max_waiting

    @property
    def may_wait(self) -> bool:
        """Whether a stream that may not start now waits; otherwise it is refused."""
        mode = self._limits.admission
        return self._slow if mode is AdmissionMode.AUTO else mode is not AdmissionMode.REFUSE

    @property
    def _slow(self) -> bool:
        return self.share_of_real_time(FEW_STREAMS) > self._limits.headroom

    def _can_spare_time(self, request: RequestState, now: float) -> bool:
        """Return whether all listeners have enough audio to play while the first chunks of this stream are computed.

        `share_of_real_time` tells only whether streams keep up once all of them run. A slow machine computes only the
        new stream until its listener has a buffer; meanwhile the other listeners play the audio that they have.
        """
        others = [one for one in self._running if one.live]
        if not others or self._limits.admission in (AdmissionMode.ALL, AdmissionMode.REFUSE) or not self._slow:
            return True
        running = [one for one in others if not one.awaits_more(now)]
        chunks_s = self.share_of_real_time(len(running)) * self._hop / self._rates.tokens_per_second
        ramp_s = RAMP_S
        if request.complete:  # a short text has less audio than RAMP_S
            most = sum(max(one.most_tokens, one.produced) for one in request.arrived)
            ramp_s = min(ramp_s, most / self._rates.tokens_per_second)
        until = now + self.first_chunk_s(1, 1) + self.share_of_real_time(1) * ramp_s + chunks_s
        return all(one.sounding_since is not None and one.dry_at >= until for one in running)

    def admission_blocker(self, load: Load) -> Overloaded | None:
        """Return the error that says why one more stream may not start now, whatever the mode; None if it may."""
        streams, headroom = load.streams + 1, self._limits.headroom
        if load.slots_free <= 0:
            return _overloaded(f"slots: all {load.slots_total} are taken", DURATION_S / (streams + load.offline))
        if load.streams == 0 or self._limits.admission is AdmissionMode.ALL:
            return None
        share = self.share_of_real_time(streams)
        if share > headroom:
            reason = f"streams: {streams} would use {share:.0%} of real time, headroom is {headroom:.0%}"
            return _overloaded(reason, DURATION_S / streams * max(1.0, share))
        expected = self.first_chunk_s(streams, load.starting + 1)
        limit = FIRST_CHUNK_SLACK * max(self._limits.first_chunk_s, self.first_chunk_s(1, 1))
        if expected > limit:
            reason = f"first chunk: it would come after {expected:.2f} s, the limit is {limit:.2f} s"
            return _overloaded(reason, self.first_chunk_s(load.streams, load.starting))
        return None

    def capacity(self) -> int:
        """Return how many equal streams fit headroom and slots; at least 1, as one stream is always admitted."""
        fitting = range(2, self._slots + 1)  # the share of real time never falls with more streams
        return 1 + bisect_right(fitting, self._limits.headroom, key=self.share_of_real_time)

    def share_of_real_time(self, streams: int) -> float:
        """Return the seconds of work per second of audio for `streams` equal streams that are batched together.

        The times of language model, flow and vocoder are added, although a GPU works on two queues (language model;
        flow and vocoder) at the same time: one thread launches the work of both queues, and is the bottleneck.
        """
        if streams == 0:
            return 0.0
        prefill_s, step_s = self._prefill_and_step_s(streams)
        tokens_s = step_s + self._chunks_s(streams, self._first_tokens if self._overlaps else self._hop) / self._hop
        return streams / DURATION_S * prefill_s + self._rates.tokens_per_second * tokens_s

    def first_chunk_s(self, streams: int, starting: int) -> float:
        """Return the seconds until all `starting` new streams have their first chunk; streams: old and new streams.

        It assumes that prefills run one by one, that all streams then share decode steps, and that flow and vocoder run
        once. Chunks of streams that have sent audio are left out, because their listeners still have audio to play.
        """
        if starting == 0:
            return 0.0
        prefill_s, step_s = self._prefill_and_step_s(max(streams, starting))
        return starting * prefill_s + self._first_tokens * step_s + self._chunks_s(starting, self._first_tokens)

    def _prefill_and_step_s(self, slots: int) -> tuple[float, float]:
        rows = TEXT_ROWS + int(PROMPT_S * self._rates.tokens_per_second)
        past = rows + round(DURATION_S * self._rates.tokens_per_second / 2)  # on average a stream is half done
        prefill_s = self._costs.predict(Stage.PREFILL, BatchSize(1, rows))
        return prefill_s, self._costs.predict(Stage.DECODE, BatchSize(slots, 0, slots * past))

    def _chunks_s(self, chunks: int, tokens: int) -> float:
        frames, past = self._rates.frames_of(tokens), (PROMPT_S + DURATION_S / 2) * self._rates.frames_per_second
        if self._overlaps:  # the flow of CosyVoice 1 computes a chunk with the prompt, but without earlier chunks
            frames, past = frames + int(PROMPT_S * self._rates.frames_per_second), 0.0
        full, rest = divmod(chunks, MAX_ROWS)
        seconds = 0.0
        for batches, rows in ((full, MAX_ROWS), (1, rest)):
            if batches and rows:
                flow_s = self._costs.predict(Stage.FLOW, BatchSize(rows, rows * frames, rows * int(past)))
                seconds += batches * (flow_s + self._costs.predict(Stage.VOCODER, BatchSize(rows, rows * frames)))
        return seconds


def _overloaded(figures: str, retry_after_s: float) -> Overloaded:
    """Make the error of a refusal. Its message tells the client when to try again; `figures` goes only to the log."""
    seconds = min(max(retry_after_s, MIN_RETRY_S), MAX_RETRY_S)
    return Overloaded(f"server: it is busy with other requests; try again in {seconds:.0f} s", seconds, figures)
