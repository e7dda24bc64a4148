"""Plans the loop's next work. It decides from plain numbers only: it reads no tensors and no clock.

Two queues are planned: the language model (prefill, decode) and synthesis (flow and vocoder). If both share one
processor (`exclusive`, the CPU), only the more urgent of the two gets work, otherwise each may get work.

The most urgent work goes first. Its rank (`Urgency`) is:

0. for streams about to run dry: their listener would hear a gap;
1. for streams that have not sent any audio yet, the oldest first;
2. for streams that are ahead, the stream with the least slack first, and for offline work that has waited too long; if
   flow and language model have queues of their own, the flow takes the oldest of these first;
3. for offline work and batch requests, the oldest first, in the time that is left. Batch requests always keep rank 3.

Slack is the time until the listener has played all audio, less the time that the next chunk still needs (`CostModel`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import NamedTuple

from vivavoce.engine.chunk_policy import AttentionMode
from vivavoce.engine.cost_model import BatchSize, CostModel, ShortBatches, Stage
from vivavoce.engine.request_state import ChunkPlan, Phase, RequestState, SequenceState

_PAST_STEP = 64
"""To predict the cost of a chunk, its past is rounded down to a multiple of this many frames."""
_ROW_FRAMES = 100
"""Mel frames of a stream's usual chunk."""
_GUARD_BATCHES = 3
"""A stream is about to run dry if its listener's buffer lasts for at most this many batches: the running batch, the
stream's own batch, and one for other work of the device."""
_UNSURE_GUARDS = 2
"""A chunk in which the guard may still find a fault waits for more tokens while its slack is more than this many times
the limit for a stream about to run dry."""
_SHARED_SLOTS, _PAUSE_S, _LONGEST_PAUSE_S = 8, 0.002, 0.1
"""If at least `_SHARED_SLOTS` sequences decode, a new sequence may wait, so that several new sequences decode their
first tokens together: `_PAUSE_S` seconds for each decoding sequence, and at most `_LONGEST_PAUSE_S`."""
_CALM_SLOTS, _AMPLE_S = 32, 1.2
"""While at most `_CALM_SLOTS` sequences decode on a fast device, first tokens go before chunks with enough slack: new
sequences do not wait if the least slack in the flow's batch is `_SCARCE_S` or more, and the batch pauses for their
tokens if the least slack is above `_AMPLE_S` (`_decodes_first`). With less slack, listeners would hear gaps."""
_WORTH_JOINING = 0.8
"""A chunk joins a batch only if it lengthens the batch by at most this share of the chunk's time alone. Otherwise
joining saves next to nothing, and delays all other chunks."""
_SCARCE_S = 0.7
"""If a stream has less slack than this, first chunks join its batch instead of going ahead in their own batch. In
simulations 0.5 made gaps with 700 listeners, and 1.0 halved the gain with 300 listeners."""


class Urgency(NamedTuple):
    """The order of work: the smallest rank goes first, and within a rank the smallest slack."""

    rank: int
    slack_s: float


DRY, FIRST, AHEAD, OFFLINE = range(4)
_UNRIVALLED = Urgency(OFFLINE, 0.0)
"""The urgency of work that competes with no other work, so that its true urgency need not be computed."""


@dataclass(frozen=True)
class Limits:
    """Limits of single steps and of waiting times.

    prefill_rows: rows of one prefill, so that running streams need not wait long (a longer prompt is prefilled alone);
    batch_frames: mel frames of a flow batch, padding included; urgent_batch_frames: the same for a batch with a first
    chunk of rank 0 or 1; offline_batch_frames: the same for offline work alone, if batches have no padding;
    spare_slots: share of the slots that offline work leaves to streams; guard_s: a stream with less slack is about to
    run dry (`_GUARD_BATCHES` makes it shorter on fast devices); calm_s: a prefill goes before decode steps if all their
    sequences have more slack than this; patience_s: offline work older than this competes with streams that are ahead;
    shared_steps: pairs (n, steps): if n or more sequences decode, `steps` decode steps are launched at once, because
    the host's time for a launch grows with the sequences, and soon exceeds the device's time.
    """

    prefill_rows: int = 1024
    batch_frames: int = 8_192
    urgent_batch_frames: int = 4_096
    offline_batch_frames: int = 16_384
    spare_slots: float = 0.25
    guard_s: float = 0.4
    calm_s: float = 2.0
    patience_s: float = 60.0
    shared_steps: tuple[tuple[int, int], ...] = ((32, 4), (8, 2))

    def within(self, frames: int | None) -> Limits:
        """Return these limits with batches of at most this many mel frames; unchanged if `frames` is None."""
        if frames is None:
            return self
        return replace(
            self,
            batch_frames=min(self.batch_frames, frames),
            urgent_batch_frames=min(self.urgent_batch_frames, frames),
            offline_batch_frames=min(self.offline_batch_frames, frames),
        )


@dataclass(eq=False)
class RunningBatch:
    """A batch with steps left: steps of the flow's solver, or the single step of the vocoder."""

    chunks: Sequence[ChunkPlan]
    seconds_left: float


class Plan(NamedTuple):
    """The work to launch now. If all fields are empty, the loop waits.

    prefill: sequences to prefill, each of which takes a slot if it has none; decode: number of decode steps of all
    decoding slots; start: the chunks of a flow batch to begin; advance: the running flow batch to advance by one step.
    """

    prefill: tuple[SequenceState, ...] = ()
    decode: int = 0
    start: tuple[ChunkPlan, ...] = ()
    advance: RunningBatch | None = None


class SchedulerState(NamedTuple):
    """The inputs of a plan besides the requests.

    lm_open, synthesis_open: whether the queue takes more work now; slots_free, slots_total: language-model slots;
    steps_in_flight: decode steps whose tokens have not arrived; running: flow batches; batches_open: whether another
    flow batch may begin beside them.
    """

    now: float
    lm_open: bool
    slots_free: int
    slots_total: int
    steps_in_flight: int
    synthesis_open: bool
    running: Sequence[RunningBatch]
    batches_open: bool


class Scheduler:
    """Plans the next steps from the requests' progress and the measured costs; keeps nothing from one plan to the next.

    exclusive: both queues share one processor; padded: each row of a flow batch costs as much as the longest row;
    self_paced: after a prefill the language model decodes by itself.
    """

    def __init__(
        self,
        costs: CostModel,
        limits: Limits,
        *,
        exclusive: bool,
        padded: bool = True,
        self_paced: bool = False,
        short: ShortBatches = ShortBatches(),
    ) -> None:
        self._costs, self._limits, self._exclusive, self._padded = costs, limits, exclusive, padded
        self._self_paced, self._short, self._least_long = self_paced, short, short.frames + 1
        self._chunks_s: dict[tuple[int, int], float] = {}
        """Seconds of a chunk by its frames and past, cached for one plan: many chunks have the same few sizes."""
        self._guard_s, self._calm_slots = limits.guard_s, 0

    def plan(self, requests: Collection[RequestState], at: SchedulerState) -> Plan:
        """Return the most urgent work of each open queue; if both share a processor, of the more urgent queue only."""
        self._chunks_s.clear()
        frames = self._limits.urgent_batch_frames
        rows = -(-frames // _ROW_FRAMES)
        batch_s = self._costs.predict(Stage.FLOW, BatchSize(rows, frames, rows * 2 * _ROW_FRAMES))
        self._guard_s = min(self._limits.guard_s, _GUARD_BATCHES * batch_s)
        self._calm_slots = 0 if self._exclusive or self._guard_s == self._limits.guard_s else _CALM_SLOTS
        lm = self._language_model(requests, at) if at.lm_open else None
        synthesis = self._synthesis(requests, at) if at.synthesis_open else None
        if lm is None or synthesis is None:
            return (lm or synthesis or (None, Plan()))[1]
        if self._exclusive:
            return lm[1] if lm[0] < synthesis[0] else synthesis[1]
        return Plan(lm[1].prefill, lm[1].decode, synthesis[1].start, synthesis[1].advance)

    def urgency(self, sequence: SequenceState, now: float, work_s: float) -> Urgency:
        """Return the urgency of a sequence; work_s: seconds that its next chunk still needs."""
        request = sequence.request
        if not request.live:
            slack = request.accepted_at + self._limits.patience_s - now
            return Urgency(OFFLINE if slack > 0 or request.batch else AHEAD, slack)
        if request.sounding_since is None:
            return Urgency(FIRST, request.accepted_at - now)
        slack = request.dry_at - now - work_s
        if sequence.place > request.current:  # decoded ahead: the listener does not wait for it yet
            return Urgency(AHEAD, slack + 1.0)
        return Urgency(DRY if slack < self._guard_s else AHEAD, slack)

    def _language_model(self, requests: Collection[RequestState], at: SchedulerState) -> tuple[Urgency, Plan] | None:
        """Return the language model's next work, a prefill or decode steps, and its urgency; None if it has no work."""
        waiting: list[SequenceState] = []
        decoding: list[SequenceState] = []
        spared = int(at.slots_total * self._limits.spare_slots)
        for request in requests:
            if request.closed or request.decoded == len(request.sequences):
                continue
            sequence = request.sequences[request.decoded]
            if sequence.phase is Phase.DECODING and request.policy is not None:
                decoding.append(sequence)  # a stream's usual case; the loop below would find the same
                continue
            free = at.slots_free > (0 if request.live else spared)
            for sequence in request.decodable():
                phase = sequence.phase
                if phase is Phase.DECODING:
                    decoding.append(sequence)
                elif phase is Phase.READING or (phase is Phase.WAITING and free):
                    waiting.append(sequence)
        if self._self_paced:
            decoding.clear()
        if not waiting and not self._exclusive:
            decodes = decoding and not self._gives_way(decoding, at)
            return (_UNRIVALLED, Plan(decode=self._steps(decoding, at))) if decodes else None
        past = sum(one.prompt_rows + one.produced for one in (*waiting, *decoding))
        size = BatchSize(max(1, len(waiting) + len(decoding)), 0, past)
        step_s = self._costs.predict(Stage.DECODE, size)
        making: dict[SequenceState, int] = {}
        if self._exclusive:  # a decode step must not delay a chunk that a listener awaits
            making = {chunk.sequence: chunk.hop for batch in at.running for chunk in batch.chunks}

        urgency = {one: self._token_urgency(one, at.now, step_s, making.get(one, 0)) for one in (*waiting, *decoding)}
        prefill = self._prefill(sorted(waiting, key=urgency.__getitem__), at) if waiting else ()
        gives_way = bool(decoding) and not self._exclusive and self._gives_way(decoding, at)
        least = min((urgency[one] for one in decoding), default=None)
        if prefill:
            # The most urgent sequence may have no slot, so the plan takes the urgency of the first sequence to prefill.
            reading = urgency[prefill[0]]
            # A sequence that is prefilled now takes part in all later steps, so the prefill goes first, unless decode
            # steps have a more urgent rank and cannot wait.
            calm = least is None or least > Urgency(AHEAD, self._limits.calm_s)
            if calm or gives_way or (least is not None and reading.rank <= least.rank):
                return reading, Plan(prefill=prefill)
        if least is None or gives_way:
            return None
        return least, Plan(decode=1 if self._exclusive else self._steps(decoding, at))

    def _gives_way(self, decoding: Sequence[SequenceState], at: SchedulerState) -> bool:
        """Return whether decode steps wait for a running flow batch of streams, which they would slow down.

        They never wait if a decoding sequence needs tokens now (`_presses`). If few sequences decode, steps wait only
        for urgent batches. If many decode, steps wait for any batch, but first tokens may go ahead (`_CALM_SLOTS`):
        waiting sequences then share steps, so that there are fewer steps, and more of the device is left to the flow.
        """
        many = len(decoding) >= _SHARED_SLOTS
        most = AHEAD if many else FIRST
        live = [batch for batch in at.running if any(chunk.sequence.request.live for chunk in batch.chunks)]
        least = min((self._batch_urgency(batch, at.now) for batch in live), default=_UNRIVALLED)
        if least.rank > most:
            return False
        past = sum(one.prompt_rows + one.produced for one in decoding)
        step_s = self._costs.predict(Stage.DECODE, BatchSize(len(decoding), 0, past))
        pauses = many and (least < Urgency(AHEAD, _SCARCE_S) or len(decoding) > self._calm_slots)
        pause_s = min(_LONGEST_PAUSE_S, _PAUSE_S * len(decoding)) if pauses else 0.0
        return not any(self._presses(one, at.now, step_s, pause_s) for one in decoding)

    def _presses(self, sequence: SequenceState, now: float, step_s: float, pause_s: float) -> bool:
        """Return whether the sequence needs tokens now: its listener would soon hear a gap, or it has waited too long.

        pause_s: the longest wait for first tokens after a sequence's prefill; 0 if few sequences share a step.
        """
        request = sequence.request
        if not request.live:
            # If many sequences decode, offline work gets its tokens in the steps that streams ask for.
            return pause_s == 0 and not request.batch and now - request.accepted_at > self._limits.patience_s
        lacking = sequence.lacking(now)
        if not lacking:
            return False
        if request.sounding_since is None:
            return now - sequence.read_at >= pause_s
        tokens_per_second = request.rates.tokens_per_second
        before = sum(one.produced - one.spoken for one in request.sequences[request.current : sequence.place])
        slack = request.dry_at + before / tokens_per_second - now - lacking * step_s
        # Twice `guard_s`, because a stream below `guard_s` would keep new prompts from being prefilled.
        return slack - self._chunk_s(max(tokens_per_second, self._least_long), 0) < 2 * self._guard_s

    def _steps(self, decoding: Sequence[SequenceState], at: SchedulerState) -> int:
        """Return how many decode steps to launch at once: one if few sequences share it, so that tokens come soon."""
        steps = next((steps for least, steps in self._limits.shared_steps if len(decoding) >= least), 1)
        if steps > 1:
            requests = ((one, one.request) for one in decoding)
            silent = (one for one, its in requests if its.sounding_since is None and its.live)
            lacking = (one.lacking(at.now) - at.steps_in_flight for one in silent)
            # Launch no more steps than a first chunk needs beyond the steps in flight.
            steps = min((one for one in lacking if 0 < one < steps), default=steps)
        return steps

    def _token_urgency(self, sequence: SequenceState, now: float, step_s: float, making: int = 0) -> Urgency:
        """Return the urgency of a sequence's tokens, which is lower if the next chunk already has its tokens.

        making: tokens of the sequence's chunk that is in flow or vocoder now; its audio is heard before the next chunk.
        """
        lacking, tokens_per_second = sequence.lacking(now), sequence.request.rates.tokens_per_second
        work_s = lacking * step_s + self._chunk_s(max(tokens_per_second, self._least_long), 0)
        urgency = self.urgency(sequence, now, work_s - making / tokens_per_second)
        if lacking or sequence.phase is not Phase.DECODING:
            return urgency
        return Urgency(max(AHEAD, urgency.rank), urgency.slack_s + 1.0)

    def _prefill(self, waiting: Sequence[SequenceState], at: SchedulerState) -> tuple[SequenceState, ...]:
        chosen: list[SequenceState] = []
        rows, free, spared = 0, at.slots_free, int(at.slots_total * self._limits.spare_slots)
        for sequence in waiting:
            if sequence.phase is Phase.WAITING:
                if free <= (0 if sequence.request.live else spared):
                    continue
                free -= 1
            if chosen and rows + sequence.prompt_rows > self._limits.prefill_rows:
                break
            chosen.append(sequence)
            rows += sequence.prompt_rows
        return tuple(chosen)

    def _synthesis(self, requests: Collection[RequestState], at: SchedulerState) -> tuple[Urgency, Plan] | None:
        """Return the next work of flow and vocoder, a batch to begin or to advance, and its urgency, or None."""
        if not at.running:
            return self._start(requests, at.now)
        urgency, batch = min(((self._batch_urgency(one, at.now), one) for one in at.running), key=itemgetter(0))
        # A running batch is finished first, unless a waiting chunk has a more urgent rank.
        if at.batches_open and urgency.rank > DRY and self._overtaken(requests, urgency.rank, at.now):
            return self._start(requests, at.now)
        if self._exclusive and not at.batches_open:
            # Chunks that are more urgent wait until this batch ends, so it takes over their urgency.
            ready = self._ready(requests, at.now)
            urgency = min([urgency, *(its for its, chunk in ready if chunk.sequence.request.live)])
        calm = self._calm_slots and urgency.rank == AHEAD and urgency.slack_s > _AMPLE_S
        if calm and self._decodes_first(requests, at.now):
            return None
        return urgency, Plan(advance=batch)

    def _decodes_first(self, requests: Collection[RequestState], now: float) -> bool:
        """Return whether few sequences decode, a stream lacks tokens for its first audio, and ready chunks can wait."""
        able = (one for request in requests if not request.closed for one in request.decodable())
        decoding = [one for one in able if one.phase is Phase.DECODING]
        silent = (one for one in decoding if one.request.live and one.request.sounding_since is None)
        few = len(decoding) <= self._calm_slots and any(one.lacking(now) for one in silent)
        # This runs at every step, so listeners with `_AMPLE_S` of audio are left out: they can wait for any chunk.
        near = (one for one in requests if one.sounding_since is None or one.dry_at < now + _AMPLE_S)
        return few and all(its > Urgency(AHEAD, _SCARCE_S) for its, _ in self._ready(near, now))

    def _overtaken(self, requests: Collection[RequestState], rank: int, now: float) -> bool:
        """Return whether a stream has a chunk that could begin and is more urgent than this rank.

        Offline work waits for any batch. This runs at every step, so costs are predicted for few chunks only.
        """
        sounding: list[tuple[float, SequenceState]] = []
        longest = 0
        for request in requests:
            if not request.live or request.closed or request.current >= len(request.sequences):
                continue
            sequence = request.sequences[request.current]
            if sequence.busy:
                continue
            if rank > (FIRST if request.sounding_since is None else AHEAD):
                if sequence.prompt_due or sequence.may_cut(now):
                    return True
            elif request.sounding_since is not None:
                sounding.append((request.dry_at, sequence))
                longest = max(longest, sequence.prompt_tokens + sequence.produced)
        if not sounding:
            return False
        rates = sounding[0][1].request.rates  # all requests of a model have the same rates
        frames = max(rates.tokens_per_second, rates.frames_of(longest))
        until = now + self._guard_s + self._chunk_s(frames, frames)
        near = (one.next_chunk(now) for dry_at, one in sounding if dry_at < until)
        return any(self._urgency_of(chunk, now).rank < rank for chunk in near if chunk is not None)

    def _start(self, requests: Collection[RequestState], now: float) -> tuple[Urgency, Plan] | None:
        """Return a new batch, the most urgent chunk and chunks that may join it, and its urgency, or None."""
        ready = self._ready(requests, now)
        if not ready:
            return None
        ready.sort(key=itemgetter(0) if self._exclusive else _oldest_first)
        urgency, first = ready[0]
        limits = self._limits
        if urgency.rank == OFFLINE and not self._padded:
            most_frames = limits.offline_batch_frames
        else:
            most_frames = limits.batch_frames if urgency.rank >= AHEAD else limits.urgent_batch_frames
        batch, size = [first], BatchSize(1, first.frames, first.past)
        stage = self._stage(first)
        long = (one for one, chunk in ready if chunk.goes_with(first) and self._stage(chunk) is Stage.FLOW)
        if stage is Stage.SHORT_FLOW and any(_joins(urgency, one) for one in long):
            stage = Stage.FLOW
        if stage is Stage.SHORT_FLOW:
            most_frames = min(most_frames, self._short.frames * self._short.chunks)
        seconds = self._costs.predict(stage, size)
        least = min(chunk.frames for _, chunk in ready)
        alone: dict[tuple[int, int], float] = {}
        for _, chunk in ready[1:]:
            rows, together, frames = size.rows + 1, size.frames, chunk.frames
            longest = together // size.rows
            if (rows * max(longest, least) if self._padded else together + least) > most_frames:
                break
            together = rows * max(longest, frames) if self._padded else together + frames
            if together > most_frames or not chunk.goes_with(first):
                continue
            own = self._stage(chunk)
            if stage is Stage.SHORT_FLOW and (own is not stage or rows > self._short.chunks):
                continue  # with it the batch would not be short
            wider = BatchSize(rows, together, size.past + chunk.past)
            with_chunk = self._costs.predict(stage, wider)
            if (frames, chunk.past) not in alone:
                alone[frames, chunk.past] = self._costs.predict(own, BatchSize(1, frames, chunk.past))
            if with_chunk - seconds <= _WORTH_JOINING * alone[frames, chunk.past]:
                batch.append(chunk)
                size, seconds = wider, with_chunk
        return urgency, Plan(start=tuple(batch))

    def _stage(self, chunk: ChunkPlan) -> Stage:
        return self._short.stage([chunk.frames]) if chunk.attention is AttentionMode.BLOCKS else Stage.FLOW

    def _ready(self, requests: Iterable[RequestState], now: float) -> list[tuple[Urgency, ChunkPlan]]:
        """Return chunks that the flow could begin; for a stream only the next chunk of its current sequence."""
        ready: list[tuple[Urgency, ChunkPlan]] = []
        for request in requests:
            if request.closed:
                continue
            for sequence in request.sequences[request.current :][: None if request.policy is None else 1]:
                chunk = sequence.next_chunk(now)
                if chunk is None:
                    continue
                urgency = self._urgency_of(chunk, now)
                if urgency.rank == AHEAD and urgency.slack_s > _UNSURE_GUARDS * self._guard_s and chunk.unsure:
                    continue  # the listener has audio, and the guard may still find a fault in this chunk
                ready.append((urgency, chunk))
        return ready

    def _urgency_of(self, chunk: ChunkPlan, now: float) -> Urgency:
        priced = max(1, chunk.frames) if chunk.hop else chunk.sequence.request.rates.tokens_per_second
        return self.urgency(chunk.sequence, now, self._chunk_s(priced, chunk.past))

    def _batch_urgency(self, batch: RunningBatch, now: float) -> Urgency:
        awaited = (chunk.sequence for chunk in batch.chunks if not chunk.sequence.request.closed)
        return min((self.urgency(one, now, batch.seconds_left) for one in awaited), default=_UNRIVALLED)

    def _chunk_s(self, frames: int, past: int) -> float:
        """Return the seconds of flow and vocoder for frames that attend to past frames; more frames never take less."""
        past = past // _PAST_STEP * _PAST_STEP
        seconds = self._chunks_s.get((frames, past))
        if seconds is None:
            flow = self._costs.predict(self._short.stage([frames]), BatchSize(1, frames, past))
            seconds = flow + self._costs.predict(Stage.VOCODER, BatchSize(1, frames))
            self._chunks_s[frames, past] = seconds
        return seconds


def _oldest_first(ready: tuple[Urgency, ChunkPlan]) -> tuple[int, float]:
    """Return the sorting key of a ready chunk. Streams that are ahead go by age, and so finish one after another.

    Each started stream holds the state of its past. In the order of slack, all streams would progress together until
    the memory is full. Most work would then be to compute missing pasts again.
    """
    (rank, slack), chunk = ready
    return rank, chunk.sequence.request.accepted_at if rank == AHEAD else slack


def _joins(short: Urgency, long: Urgency) -> bool:
    """Return whether a short chunk joins a long chunk instead of going ahead of it. A first chunk joins only if the
    long chunk's listener has little audio left: behind many small batches, long chunks would come too late.
    """
    if short.rank == FIRST:
        return long.rank != FIRST and long < Urgency(AHEAD, _SCARCE_S)
    return long.rank <= max(FIRST, short.rank)
