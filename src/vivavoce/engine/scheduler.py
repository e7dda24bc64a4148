"""What the loop does next. Pure decisions over plain numbers: no tensors, no clock of its own.

Two lanes are planned: the language model (prefill, decode) and synthesis (flow and vocoder). Where both share one
processor (`exclusive`, the CPU) only the more urgent of the two is planned, otherwise one of each.

Urgency decides everything, smallest first (`Urgency`):

0. streams about to run dry: their listener would hear a gap;
1. streams that have not sounded yet, the oldest first;
2. streams that are ahead, the one with the least slack first, and offline work that has waited too long; where flow and
   language model have lanes of their own, the flow takes the oldest first;
3. offline work, the oldest first: it fills what is left.

Slack is the time until the listener runs dry, less the time that the next chunk still needs (`CostModel`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from vivavoce.engine.cost_model import CostModel, Stage, Work
from vivavoce.engine.flow_batches import (
    AHEAD,
    DRY,
    FIRST,
    OFFLINE,
    BatchMaker,
    Choice,
    FlowItem,
    Urgency,
    item_of,
    oldest_first,
    ready,
)
from vivavoce.engine.stream import Phase, Segment, Stream

_PAST_STEP = 64
"""Frames of a chunk's past that are told apart when it is priced."""
_ROW_FRAMES = 100
"""Mel frames of a stream's usual chunk."""
_GUARD_BATCHES = 3
"""Urgent batches in the time of which a stream is saved from running dry: one that has begun, its own, and one for what
the device does beside them."""
_SHARED_SLOTS, _PAUSE_S, _LONGEST_PAUSE_S = 8, 0.002, 0.1
"""From so many decoding segments on, first tokens may wait for others to share their steps: so many seconds for each of
the segments, and at most."""
_UNRIVALLED = Urgency(OFFLINE, 0.0)
"""Of the only work that a lane of its own can do: nobody compares it."""
_STEPS = ((32, 4), (8, 2))
"""From so many decoding segments on, so many decode steps are launched at once: what the host does for a launch grows
with them, and soon takes longer than the device's step."""


@dataclass(frozen=True)
class Limits:
    """Bounds of single steps and of patience.

    prefill_rows: rows of one prefill, so that running streams do not stall (a longer prompt goes alone);
    batch_frames: mel frames of a flow batch, padding included; urgent_batch_frames: of one whose first item is urgent;
    offline_batch_frames: of one that no stream has a part in, if nothing is padded;
    spare_slots: share of the slots that offline work leaves to streams; guard_s: slack under which a stream counts as
    about to run dry, or less where batches take less; calm_s: slack with which all of them can wait for a prefill;
    patience_s: offline work older than this competes with streams that are ahead.
    """

    prefill_rows: int = 1024
    batch_frames: int = 8_192
    urgent_batch_frames: int = 4_096
    offline_batch_frames: int = 16_384
    spare_slots: float = 0.25
    guard_s: float = 0.4
    calm_s: float = 2.0
    patience_s: float = 60.0

    def within(self, frames: int | None) -> Limits:
        """These, with batches of at most so many mel frames; None: as they are."""
        if frames is None:
            return self
        return replace(
            self,
            batch_frames=min(self.batch_frames, frames),
            urgent_batch_frames=min(self.urgent_batch_frames, frames),
            offline_batch_frames=min(self.offline_batch_frames, frames),
        )


@dataclass(frozen=True)
class RunningBatch:
    """A flow batch that was begun and has steps left."""

    number: int
    items: tuple[FlowItem, ...]
    seconds_left: float


@dataclass(frozen=True)
class Plan:
    """What to do now; everything empty: wait.

    prefill: segments whose rows are read (those that have no slot take one); decode: so many steps of all decoding
    slots; start: a flow batch to begin; advance: the running batch to push by one step.
    """

    prefill: tuple[Segment, ...] = ()
    decode: int = 0
    start: tuple[FlowItem, ...] = ()
    advance: RunningBatch | None = None


@dataclass(frozen=True)
class Situation:
    """What the plan depends on, beside the streams.

    lm_open, synthesis_open: the lane takes more work now; slots_free, slots_total: language-model slots;
    steps_in_flight: decode steps whose tokens are still to come; running: flow batches; batches_open: another flow
    batch may be begun beside them.
    """

    now: float
    lm_open: bool
    synthesis_open: bool
    slots_free: int
    slots_total: int
    steps_in_flight: int
    running: tuple[RunningBatch, ...]
    batches_open: bool


class Scheduler:
    """Plans the next steps from the streams' progress and the measured costs; each plan is made anew.

    `exclusive`: both lanes share one processor; `padded`: the rows of a flow batch cost as much as its longest one.
    """

    def __init__(self, costs: CostModel, limits: Limits, *, exclusive: bool, padded: bool = True) -> None:
        self._costs, self._limits, self._exclusive, self._padded = costs, limits, exclusive, padded
        self._batches = BatchMaker(costs, padded=padded)
        self._chunks_s: dict[tuple[int, int], float] = {}
        """Of the plan in hand: hundreds of streams have chunks of a few sizes."""
        self._guard_s = limits.guard_s

    def plan(self, streams: Collection[Stream], at: Situation) -> Plan:
        """The most urgent work of each open lane; of the more urgent lane only, where both share a processor."""
        self._chunks_s.clear()
        self._guard_s = min(self._limits.guard_s, _GUARD_BATCHES * self._urgent_batch_s())
        lm = self._language_model(streams, at) if at.lm_open else None
        synthesis = self._synthesis(streams, at) if at.synthesis_open else None
        if lm is None or synthesis is None:
            return (lm or synthesis or (None, Plan()))[1]
        if self._exclusive:
            return lm[1] if lm[0] < synthesis[0] else synthesis[1]
        return Plan(lm[1].prefill, lm[1].decode, synthesis[1].start, synthesis[1].advance)

    def urgency(self, segment: Segment, now: float, work_s: float) -> Urgency:
        """How urgent a segment's next chunk is, which still needs `work_s` of work."""
        stream = segment.stream
        if stream.policy is None:
            slack = stream.accepted_at + self._limits.patience_s - now
            return Urgency(OFFLINE if slack > 0 else AHEAD, slack)
        if stream.sounding_since is None:
            return Urgency(FIRST, stream.accepted_at - now)
        slack = stream.dry_at - now - work_s
        if segment.place > stream.current:  # decoded ahead: nobody waits for it yet
            return Urgency(AHEAD, slack + 1.0)
        return Urgency(DRY if slack < self._guard_s else AHEAD, slack)

    def _language_model(self, streams: Collection[Stream], at: Situation) -> tuple[Urgency, Plan] | None:
        waiting, decoding = self._decodable(streams, at)
        if not waiting and not self._exclusive:
            decodes = decoding and not self._gives_way(decoding, at)
            return (_UNRIVALLED, Plan(decode=self._steps(decoding, at))) if decodes else None
        past = sum(segment.positions for segment in (*waiting, *decoding))
        step_s = self._costs.predict(Stage.DECODE, Work(max(1, len(waiting) + len(decoding)), past=past))
        by_urgency = sorted(
            ((self._token_urgency(one, at.now, step_s), one) for one in waiting), key=lambda pair: pair[0]
        )
        prefill = self._prefill([segment for _, segment in by_urgency], at)
        gives_way = bool(decoding) and self._gives_way(decoding, at)
        least = min((self._decode_urgency(segment, at.now, step_s) for segment in decoding), default=None)
        if prefill:
            # The most urgent one may have found no slot.
            reading = next(urgency for urgency, segment in by_urgency if segment is prefill[0])
            # Whoever is read now shares all the steps to come: only a more urgent rank that cannot wait goes on first.
            calm = least is None or least > Urgency(AHEAD, self._limits.calm_s)
            if calm or gives_way or (least is not None and reading.rank <= least.rank):
                return reading, Plan(prefill=prefill)
        if least is None or gives_way:
            return None
        return least, Plan(decode=self._steps(decoding, at))

    def _decodable(self, streams: Collection[Stream], at: Situation) -> tuple[list[Segment], list[Segment]]:
        """Segments whose rows could be read now, and those that decode."""
        waiting: list[Segment] = []
        decoding: list[Segment] = []
        spared = self._spared(at)
        for stream in streams:
            if stream.closed or stream.decoded == len(stream.segments):
                continue
            segment = stream.segments[stream.decoded]
            if segment.phase is Phase.DECODING and stream.policy is not None:
                decoding.append(segment)  # as below, told in less time
                continue
            free = at.slots_free > (spared if stream.policy is None else 0)
            for segment in stream.decodable():
                phase = segment.phase
                if phase is Phase.DECODING:
                    decoding.append(segment)
                elif phase is Phase.READING or (phase is Phase.WAITING and free):
                    waiting.append(segment)
        return waiting, decoding

    def _spared(self, at: Situation) -> int:
        """Slots that offline work leaves to streams."""
        return int(at.slots_total * self._limits.spare_slots)

    def _gives_way(self, decoding: Sequence[Segment], at: Situation) -> bool:
        """Whether decode steps, of which none is urgent, wait for a stream's batch: on one device they slow it down.

        Of few segments they wait for urgent batches only. Of many they wait for any: the fewer steps it takes to bring
        everyone's tokens, because more segments share each, the more of the device is the flow's.
        """
        many = len(decoding) >= _SHARED_SLOTS
        batches = () if self._exclusive else (batch for batch in at.running if _has_stream(batch))
        if all(self._urgency_of(batch, at.now).rank > (AHEAD if many else FIRST) for batch in batches):
            return False
        past = sum(segment.positions for segment in decoding)
        step_s = self._costs.predict(Stage.DECODE, Work(max(1, len(decoding)), past=past))
        pause_s = min(_LONGEST_PAUSE_S, _PAUSE_S * len(decoding)) if many else 0.0
        return not any(self._presses(segment, at.now, step_s, pause_s) for segment in decoding)

    def _presses(self, segment: Segment, now: float, step_s: float, pause_s: float) -> bool:
        """Whether a listener will soon miss tokens of a segment, or its work has waited for too long.

        pause_s: how long first tokens may wait from when their segment was read; 0: few segments share a step.
        """
        stream = segment.stream
        if stream.policy is None:
            # Of many, the others' tokens bring its own along.
            return pause_s == 0 and now - stream.accepted_at > self._limits.patience_s
        lacking = segment.tokens_lacking(now)
        if not lacking:
            return False
        if stream.sounding_since is None:
            return now - segment.read_at >= pause_s
        chunk_s = self._seconds(stream.rates.tokens_per_second, 0)
        before = sum(one.produced - one.spoken for one in stream.segments[stream.current : segment.place])
        before_s = before / stream.rates.tokens_per_second
        # Twice the guard: whoever is about to run dry keeps newcomers from being read.
        return stream.dry_at + before_s - now - lacking * step_s - chunk_s < 2 * self._guard_s

    def _steps(self, decoding: Sequence[Segment], at: Situation) -> int:
        """Decode steps to launch at once: the fewer segments share them, the sooner each token is wanted."""
        if self._exclusive:
            return 1
        steps = next((steps for least, steps in _STEPS if len(decoding) >= least), 1)
        if steps > 1:
            streams = ((one, one.stream) for one in decoding)
            silent = (one for one, its in streams if its.sounding_since is None and its.policy is not None)
            lacking = (one.tokens_lacking(at.now) - at.steps_in_flight for one in silent)
            # A first chunk does not wait for tokens that it does not need; those on their way may be all that it lacks.
            steps = min((one for one in lacking if 0 < one < steps), default=steps)
        return steps

    def _token_urgency(self, segment: Segment, now: float, step_s: float) -> Urgency:
        """Of a segment whose next chunk still needs tokens."""
        chunk_s = self._seconds(segment.stream.rates.tokens_per_second, 0)
        work_s = segment.tokens_lacking(now) * step_s + chunk_s
        return self.urgency(segment, now, work_s)

    def _decode_urgency(self, segment: Segment, now: float, step_s: float) -> Urgency:
        urgency = self._token_urgency(segment, now, step_s)
        if segment.tokens_lacking(now):
            return urgency
        # Whose next chunk can be made already waits for the flow, not for tokens.
        return Urgency(max(AHEAD, urgency.rank), urgency.slack_s + 1.0)

    def _prefill(self, waiting: Sequence[Segment], at: Situation) -> tuple[Segment, ...]:
        chosen: list[Segment] = []
        rows, free, spared = 0, at.slots_free, self._spared(at)
        for segment in waiting:
            if segment.phase is Phase.WAITING:
                if free <= (0 if segment.stream.streaming else spared):
                    continue
                free -= 1
            if chosen and rows + segment.prompt_rows > self._limits.prefill_rows:
                break
            chosen.append(segment)
            rows += segment.prompt_rows
        return tuple(chosen)

    def _synthesis(self, streams: Collection[Stream], at: Situation) -> tuple[Urgency, Plan] | None:
        if not at.running:
            return self._start(streams, at.now)
        urgency, batch = min(((self._urgency_of(one, at.now), one) for one in at.running), key=lambda pair: pair[0])
        # A batch that has begun is finished first, unless what waits is of a more urgent kind.
        if at.batches_open and self._overtaken(streams, urgency.rank, at.now):
            return self._start(streams, at.now)
        if self._exclusive and not at.batches_open:
            # Whatever is more urgent waits for its end, and lends it its urgency.
            rivals = (item for item in ready(streams, at.now) if item.segment.stream.streaming)
            urgency = min([urgency, *(self._choice(item, at.now).urgency for item in rivals)])
        return urgency, Plan(advance=batch)

    def _overtaken(self, streams: Collection[Stream], rank: int, now: float) -> bool:
        """Whether a stream's chunk could be begun that is more urgent than a batch of this rank.

        Offline work waits for any batch. This is asked at every step: hardly any chunk has to be priced.
        """
        if rank == DRY:
            return False
        sounding: list[tuple[float, Segment]] = []
        longest = 0
        for stream in streams:
            if stream.policy is None or stream.closed or stream.current >= len(stream.segments):
                continue
            segment = stream.segments[stream.current]
            if segment.busy:
                continue
            if rank > (FIRST if stream.sounding_since is None else AHEAD):
                if segment.may_begin(now):
                    return True
            elif stream.sounding_since is not None:
                sounding.append((stream.dry_at, segment))
                longest = max(longest, segment.prompt_tokens + segment.produced)
        if not sounding:
            return False
        rates = sounding[0][1].stream.rates  # one model's streams have the same
        frames = max(rates.tokens_per_second, longest * rates.frames_per_token)
        until = now + self._guard_s + self._seconds(frames, frames)
        near = (segment for dry_at, segment in sounding if dry_at < until and segment.may_begin(now))
        return any(self._choice(item_of(segment, now), now).urgency.rank < rank for segment in near)

    def _start(self, streams: Collection[Stream], now: float) -> tuple[Urgency, Plan] | None:
        choices = [self._choice(item, now) for item in ready(streams, now)]
        choices.sort(key=itemgetter(0) if self._exclusive else oldest_first)
        if not choices:
            return None
        urgency = choices[0].urgency
        return urgency, Plan(start=self._batches.make(choices, self._most_frames(urgency.rank)))

    def _urgency_of(self, batch: RunningBatch, now: float) -> Urgency:
        """Of its most urgent item that somebody still waits for."""
        awaited = (item.segment for item in batch.items if not item.segment.stream.closed)
        return min((self.urgency(one, now, batch.seconds_left) for one in awaited), default=_UNRIVALLED)

    def _choice(self, item: FlowItem, now: float) -> Choice:
        segment, cut = item
        frames, past = segment.frames(cut), segment.past_frames(cut)
        priced = max(1, frames) if cut else segment.stream.rates.tokens_per_second
        return Choice(self.urgency(segment, now, self._seconds(priced, past)), item, frames, past)

    def _most_frames(self, rank: int) -> int:
        """Mel frames of a batch whose first item has this rank."""
        if rank == OFFLINE and not self._padded:
            return self._limits.offline_batch_frames
        return self._limits.batch_frames if rank >= AHEAD else self._limits.urgent_batch_frames

    def _urgent_batch_s(self) -> float:
        """Seconds of the largest urgent batch of streams."""
        frames = self._limits.urgent_batch_frames
        rows = -(-frames // _ROW_FRAMES)
        return self._costs.predict(Stage.FLOW, Work(rows, frames, rows * 2 * _ROW_FRAMES))

    def _seconds(self, frames: int, past: int) -> float:
        """Seconds of flow and vocoder for so many frames after so many others; no less for more of either."""
        past = past // _PAST_STEP * _PAST_STEP
        seconds = self._chunks_s.get((frames, past))
        if seconds is None:
            flow = self._costs.predict(Stage.FLOW, Work(1, frames, past))
            seconds = flow + self._costs.predict(Stage.VOCODER, Work(1, frames))
            self._chunks_s[frames, past] = seconds
        return seconds


def _has_stream(batch: RunningBatch) -> bool:
    """Whether a listener waits for something of the batch."""
    return any(item.segment.stream.streaming for item in batch.items)
