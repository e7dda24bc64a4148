"""Whether a request may start now, has to wait, or is refused at once.

A stream that starts late or runs dry is worse than one that is refused: its client could have gone elsewhere. So a
stream is taken only if the measured costs say that all streams, it included, keep up with their listeners.

Modes. REFUSE: a stream that may not start now is refused, with the seconds after which to try again; only offline
work queues. QUEUE: it waits in the queue, and is refused when that is full. Where no stream runs, the first one is
always let in, on however slow a machine: nobody else suffers, and its listener is served at the machine's pace.

All decisions are monotone: more load never turns a refusal into acceptance, nor does a machine that is slower
throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from vivavoce.engine.cost_model import CostModel, Stage, Work
from vivavoce.errors import InvalidRequest, Overloaded

FIRST_CHUNK_SLACK = 2.0
"""A stream is refused if its first chunk would take this many times what is aimed at."""
MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0
TYPICAL_DURATION_S = 10.0
"""Seconds of audio in a sequence, and of work for one without a listener, where nothing better is known."""


class AdmissionMode(str, Enum):
    """What becomes of a stream that may not start now."""

    REFUSE = "refuse"
    QUEUE = "queue"
    ALL = "all"
    """It starts as long as there is a slot, and listeners may hear gaps: for tests that ask for more than real time."""


@dataclass(frozen=True)
class Load:
    """What the engine has to do at one moment, in sequences.

    streams: admitted and unfinished; starting: those of them that do not sound yet; offline: running offline work;
    waiting: accepted, but without a slot; slots_free: slots that a stream could take at once.
    """

    streams: int
    starting: int
    offline: int
    waiting: int
    slots_free: int
    slots_total: int


@dataclass(frozen=True)
class Limits:
    """What the operator allows.

    max_waiting: places in the queue; headroom: share of real time that streams may use, in (0, 1]; first_chunk_s:
    seconds from acceptance to the first chunk that are aimed at.
    """

    mode: AdmissionMode
    max_waiting: int
    first_chunk_s: float
    headroom: float = 0.85

    def __post_init__(self) -> None:
        if not isinstance(self.mode, AdmissionMode):
            raise InvalidRequest(
                f"admission: mode {self.mode!r} is unknown; use {' or '.join(m.value for m in AdmissionMode)}"
            )
        if self.max_waiting < 0:
            raise InvalidRequest(f"max_waiting: {self.max_waiting} is below 0; choose a number of places")
        if not 0 < self.headroom <= 1:
            raise InvalidRequest(f"headroom: {self.headroom} is outside of (0, 1]; choose a share of real time")
        if not self.first_chunk_s > 0:
            raise InvalidRequest(f"first_chunk_s: {self.first_chunk_s} is not above 0; choose a time in seconds")


@dataclass(frozen=True)
class StreamShape:
    """An average stream, and how the scheduler batches its work.

    tokens_per_second, frames_per_token: of the model; first_hop: speech tokens that the first chunk needs, lookahead
    included; hop: tokens of a later chunk; past_frames: mel frames of the past that a chunk attends on average, its
    prompt included; prompt_rows: positions of the LM's prefill; duration_s: seconds of audio, > 0; max_rows: chunks
    that the flow takes at once; exclusive: all stages take turns on one device (a CPU), otherwise the LM runs beside
    flow and vocoder.
    """

    tokens_per_second: int
    frames_per_token: int
    first_hop: int
    hop: int
    past_frames: int
    prompt_rows: int
    exclusive: bool
    duration_s: float = TYPICAL_DURATION_S
    max_rows: int = 32


@dataclass(frozen=True)
class Verdict:
    """What admission decided.

    A refusal brings its reason and the seconds, 1 … 60, after which to try again: an estimate of when the first of
    the running sequences ends, or of when the starting ones sound.
    """

    accepted: bool
    reason: str = ""
    retry_after_s: float = 0.0

    def raise_if_refused(self) -> None:
        """Raise Overloaded unless the request was accepted."""
        if not self.accepted:
            raise Overloaded(self.reason, self.retry_after_s)


def share_of_real_time(costs: CostModel, streams: int, shape: StreamShape) -> float:
    """Seconds of work per second of audio for `streams` equal streams that are batched together.

    One decode step serves all; chunks of all are computed together, `max_rows` at a time; prefills come one by one,
    as often as streams end. Where the LM runs beside flow and vocoder the busier of the two sides counts: batches
    are measured while the other side works, so what they cost one another is in the costs.
    """
    if streams == 0:
        return 0.0
    steps = shape.tokens_per_second * _decode_step_s(costs, streams, shape)
    prefills = streams / shape.duration_s * costs.predict(Stage.PREFILL, Work.batch(1, shape.prompt_rows))
    chunks = shape.tokens_per_second / shape.hop * _chunks_s(costs, streams, shape.hop, shape.past_frames, shape)
    return steps + prefills + chunks if shape.exclusive else max(steps + prefills, chunks)


def first_chunk_s(costs: CostModel, streams: int, starting: int, shape: StreamShape) -> float:
    """Seconds until `starting` of `streams` streams, accepted together, have their first chunk.

    Prefills one by one, then decode steps that all streams share, then one pass of flow and vocoder. Chunks of
    streams that sound already are left out: they can wait, their listeners have something to play.
    """
    if starting == 0:
        return 0.0
    prefills = starting * costs.predict(Stage.PREFILL, Work.batch(1, shape.prompt_rows))
    steps = shape.first_hop * _decode_step_s(costs, max(streams, starting), shape)
    return prefills + steps + _chunks_s(costs, starting, shape.first_hop, shape.past_frames, shape)


def admit(costs: CostModel, load: Load, shape: StreamShape, limits: Limits) -> Verdict:
    """Whether one more stream is taken. In mode QUEUE an accepted one may have to wait: see `may_start`."""
    hindrance = _hindrance(costs, load, shape, limits)
    if limits.mode is AdmissionMode.REFUSE:
        return hindrance or Verdict(True)
    return _queue(load, limits, shape.duration_s) if hindrance or load.waiting > 0 else Verdict(True)


def may_start(costs: CostModel, load: Load, shape: StreamShape, limits: Limits) -> bool:
    """Whether one more stream may start at once, whatever the mode: what the head of the queue waits for."""
    return _hindrance(costs, load, shape, limits) is None


def admit_offline(load: Load, limits: Limits) -> Verdict:
    """Whether a request without a listener is taken: it waits for a slot, and is refused when the queue is full."""
    has_to_wait = load.slots_free <= 0 or load.waiting > 0
    return _queue(load, limits, TYPICAL_DURATION_S) if has_to_wait else Verdict(True)


def _hindrance(costs: CostModel, load: Load, shape: StreamShape, limits: Limits) -> Verdict | None:
    """Why one more stream may not start now; None: it may."""
    if load.slots_free <= 0:
        reason = f"slots: all {load.slots_total} are taken"
        return _refusal(reason, _until_one_ends(load.streams + load.offline, shape.duration_s))
    if load.streams == 0 or limits.mode is AdmissionMode.ALL:
        return None
    share = share_of_real_time(costs, load.streams + 1, shape)
    if share > limits.headroom:
        reason = f"streams: {load.streams + 1} would use {share:.0%} of real time, headroom is {limits.headroom:.0%}"
        return _refusal(reason, _until_one_ends(load.streams, shape.duration_s) * max(1.0, share))
    expected = first_chunk_s(costs, load.streams + 1, load.starting + 1, shape)
    limit = FIRST_CHUNK_SLACK * max(limits.first_chunk_s, first_chunk_s(costs, 1, 1, shape))
    if expected > limit:
        reason = f"first chunk: it would come after {expected:.2f} s, the limit is {limit:.2f} s"
        return _refusal(reason, first_chunk_s(costs, load.streams, load.starting, shape))
    return None


def _queue(load: Load, limits: Limits, duration_s: float) -> Verdict:
    """Whether a request that has to wait finds a place."""
    if load.waiting < limits.max_waiting:
        return Verdict(True)
    reason = f"queue: {load.waiting} requests wait, max_waiting is {limits.max_waiting}"
    return _refusal(reason, _until_one_ends(load.streams + load.offline, duration_s))


def _refusal(reason: str, retry_after_s: float) -> Verdict:
    seconds = min(max(retry_after_s, MIN_RETRY_S), MAX_RETRY_S)
    return Verdict(False, f"{reason}; try again in {seconds:.0f} s", seconds)


def _until_one_ends(running: int, duration_s: float) -> float:
    """Seconds until the first of `running` sequences ends, each being anywhere in its course of `duration_s`."""
    return duration_s / (running + 1)


def _decode_step_s(costs: CostModel, slots: int, shape: StreamShape) -> float:
    spoken = round(shape.duration_s * shape.tokens_per_second / 2)  # on average a stream is half done
    return costs.predict(Stage.DECODE, Work.batch(slots, 0, shape.prompt_rows + spoken))


def _chunks_s(costs: CostModel, chunks: int, tokens: int, past_frames: int, shape: StreamShape) -> float:
    """Seconds of flow and vocoder for one chunk of each of `chunks` streams."""
    frames = tokens * shape.frames_per_token
    full, rest = divmod(chunks, shape.max_rows)
    seconds = 0.0
    for batches, rows in ((full, shape.max_rows), (1, rest)):
        if batches and rows:
            flow = costs.predict(Stage.FLOW, Work.batch(rows, frames, past_frames))
            seconds += batches * (flow + costs.predict(Stage.VOCODER, Work.batch(rows, frames)))
    return seconds
