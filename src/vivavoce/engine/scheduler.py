"""What the loop does next. Pure decisions over plain numbers: no tensors, no clock of its own.

Two lanes are planned: the language model (prefill, decode) and synthesis (flow and vocoder). Where both share one
processor (`exclusive`, the CPU) only the more urgent of the two is planned, otherwise one of each.

Urgency decides everything, smallest first (`Urgency`):

0. streams about to run dry: their listener would hear a gap;
1. streams that have not sounded yet, the oldest first;
2. streams that are ahead, the one with the least slack first, and offline work that has waited too long;
3. offline work, the oldest first: it fills what is left.

Slack is the time until the listener runs dry, less the time that the next chunk still needs (`CostModel`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from vivavoce.engine.cost_model import CostModel, Stage, Work
from vivavoce.engine.stream import Cut, Kind, Phase, Segment, Stream


class Urgency(NamedTuple):
    """Order of work; the smallest goes first."""

    rank: int
    slack_s: float


DRY, FIRST, AHEAD, OFFLINE = range(4)

_PAST_STEP = 64
"""Frames of a chunk's past that are told apart when it is priced."""
_UNRIVALLED = Urgency(OFFLINE, 0.0)
"""Of the only work that a lane of its own can do: nobody compares it."""


@dataclass(frozen=True)
class Limits:
    """Bounds of single steps and of patience.

    prefill_rows: rows of one prefill, so that running streams do not stall (a longer prompt goes alone);
    batch_frames: mel frames of a flow batch, padding included; urgent_batch_frames: of one whose first item is urgent;
    spare_slots: share of the slots that offline work leaves to streams; guard_s: slack under which a stream counts as
    about to run dry; calm_s: slack with which all of them can wait for a prefill; patience_s: offline work older than
    this competes with streams that are ahead.
    """

    prefill_rows: int = 1024
    batch_frames: int = 10_000
    urgent_batch_frames: int = 4_000
    spare_slots: float = 0.25
    guard_s: float = 0.4
    calm_s: float = 2.0
    patience_s: float = 60.0


@dataclass(frozen=True)
class FlowItem:
    """A segment's work for the flow: a cut, or None for its prompt's state."""

    segment: Segment
    cut: Cut | None

    @property
    def kind(self) -> Kind:
        """What it may share a batch with."""
        return Kind.PROMPT if self.cut is None else self.cut.kind

    @property
    def frames(self) -> int:
        """Mel frames that the flow computes."""
        return self.segment.frames(self.cut)


@dataclass(frozen=True)
class RunningBatch:
    """A flow batch that was begun and has steps left."""

    number: int
    items: tuple[FlowItem, ...]
    seconds_left: float


@dataclass(frozen=True)
class Plan:
    """What to do now; everything empty: wait.

    prefill: segments whose rows are read (those that have no slot take one); decode: one step of all decoding slots;
    start: a flow batch to begin; advance: the running batch to push by one step.
    """

    prefill: tuple[Segment, ...] = ()
    decode: bool = False
    start: tuple[FlowItem, ...] = ()
    advance: RunningBatch | None = None


@dataclass(frozen=True)
class Situation:
    """What the plan depends on, beside the streams.

    lm_open, synthesis_open: the lane takes more work now; slots_free, slots_total: language-model slots; running: flow
    batches; batches_open: another flow batch may be begun beside them.
    """

    now: float
    lm_open: bool
    synthesis_open: bool
    slots_free: int
    slots_total: int
    running: tuple[RunningBatch, ...]
    batches_open: bool


class Scheduler:
    """Plans the next steps from the streams' progress and the measured costs; each plan is made anew.

    `exclusive`: both lanes share one processor; `padded`: the rows of a flow batch cost as much as its longest one.
    """

    def __init__(self, costs: CostModel, limits: Limits, *, exclusive: bool, padded: bool = True) -> None:
        self._costs, self._limits, self._exclusive, self._padded = costs, limits, exclusive, padded
        self._chunks_s: dict[tuple[int, int], float] = {}
        """Of the plan in hand: hundreds of streams have chunks of a few sizes."""

    def plan(self, streams: Iterable[Stream], at: Situation) -> Plan:
        """The most urgent work of each open lane; of the more urgent lane only, where both share a processor."""
        self._chunks_s.clear()
        alive = [stream for stream in streams if not stream.closed]
        lm = self._language_model(alive, at) if at.lm_open else None
        synthesis = self._synthesis(alive, at) if at.synthesis_open else None
        if lm is None or synthesis is None:
            return (lm or synthesis or (None, Plan()))[1]
        if self._exclusive:
            return lm[1] if lm[0] < synthesis[0] else synthesis[1]
        return Plan(lm[1].prefill, lm[1].decode, synthesis[1].start, synthesis[1].advance)

    def urgency(self, segment: Segment, now: float, work_s: float) -> Urgency:
        """How urgent a segment's next chunk is, which still needs `work_s` of work."""
        stream = segment.stream
        if not stream.streaming:
            slack = stream.accepted_at + self._limits.patience_s - now
            return Urgency(OFFLINE if slack > 0 else AHEAD, slack)
        if not stream.sounding:
            return Urgency(FIRST, stream.accepted_at - now)
        slack = stream.dry_at - now - work_s
        if segment.place > stream.current:  # decoded ahead: nobody waits for it yet
            return Urgency(AHEAD, slack + 1.0)
        return Urgency(DRY if slack < self._limits.guard_s else AHEAD, slack)

    def _language_model(self, streams: Sequence[Stream], at: Situation) -> tuple[Urgency, Plan] | None:
        waiting: list[Segment] = []
        decoding: list[Segment] = []
        for stream in streams:
            for segment in stream.decodable():
                if segment.phase is Phase.DECODING:
                    decoding.append(segment)
                elif segment.phase is Phase.READING or (segment.phase is Phase.WAITING and at.slots_free):
                    waiting.append(segment)
        if not waiting and not self._exclusive:
            return (_UNRIVALLED, Plan(decode=True)) if decoding else None
        past = sum(segment.positions for segment in (*waiting, *decoding))
        step_s = self._costs.predict(Stage.DECODE, Work(max(1, len(waiting) + len(decoding)), past=past))
        by_urgency = sorted(
            ((self._token_urgency(one, at.now, step_s), one) for one in waiting), key=lambda pair: pair[0]
        )
        prefill = self._prefill([segment for _, segment in by_urgency], at)
        least = min((self._decode_urgency(segment, at.now, step_s) for segment in decoding), default=None)
        if prefill:
            # The most urgent one may have found no slot.
            reading = next(urgency for urgency, segment in by_urgency if segment is prefill[0])
            # Whoever is read now shares all the steps to come: only a more urgent rank that cannot wait goes on first.
            if least is None or least > Urgency(AHEAD, self._limits.calm_s) or reading.rank <= least.rank:
                return reading, Plan(prefill=prefill)
        return None if least is None else (least, Plan(decode=True))

    def _token_urgency(self, segment: Segment, now: float, step_s: float) -> Urgency:
        """Of a segment whose next chunk still needs tokens."""
        work_s = segment.tokens_lacking(now) * step_s + self._chunk_s(segment, None)
        return self.urgency(segment, now, work_s)

    def _decode_urgency(self, segment: Segment, now: float, step_s: float) -> Urgency:
        urgency = self._token_urgency(segment, now, step_s)
        if segment.tokens_lacking(now):
            return urgency
        # Whose next chunk can be made already waits for the flow, not for tokens.
        return Urgency(max(AHEAD, urgency.rank), urgency.slack_s + 1.0)

    def _prefill(self, waiting: Sequence[Segment], at: Situation) -> tuple[Segment, ...]:
        chosen: list[Segment] = []
        rows, free = 0, at.slots_free
        for segment in waiting:
            if segment.phase is Phase.WAITING:
                spared = 0 if segment.stream.streaming else int(at.slots_total * self._limits.spare_slots)
                if free <= spared:
                    continue
                free -= 1
            if chosen and rows + segment.prompt_rows > self._limits.prefill_rows:
                break
            chosen.append(segment)
            rows += segment.prompt_rows
        return tuple(chosen)

    def _synthesis(self, streams: Sequence[Stream], at: Situation) -> tuple[Urgency, Plan] | None:
        ready = [
            segment
            for stream in streams
            for segment in stream.audible()
            if not segment.busy and (segment.lacks_prompt or segment.may_cut(at.now))
        ]
        if not ready and len(at.running) == 1 and not self._exclusive:
            return _UNRIVALLED, Plan(advance=at.running[0])
        first = min(
            ((self._urgency_of(batch, at.now), batch) for batch in at.running), default=None, key=lambda p: p[0]
        )
        if first is None:
            return self._start(ready, at.now)
        # Offline work waits for any batch; all streams' chunks are looked at.
        rivals = (segment for segment in ready if segment.stream.streaming)
        best = min((self._item(segment, at.now)[0] for segment in rivals), default=first[0])
        if not at.batches_open:
            # Whatever is more urgent waits for its end, and lends it its urgency.
            return min(first[0], best), Plan(advance=first[1])
        # A batch that has begun is finished first, unless what waits is of a more urgent kind.
        return (first[0], Plan(advance=first[1])) if best.rank >= first[0].rank else self._start(ready, at.now)

    def _start(self, ready: Sequence[Segment], now: float) -> tuple[Urgency, Plan] | None:
        items = sorted((self._item(segment, now) for segment in ready), key=lambda pair: pair[0])
        return (items[0][0], Plan(start=self._batch(items))) if items else None

    def _urgency_of(self, batch: RunningBatch, now: float) -> Urgency:
        """Of its most urgent item."""
        return min(self.urgency(item.segment, now, batch.seconds_left) for item in batch.items)

    def _item(self, segment: Segment, now: float) -> tuple[Urgency, FlowItem]:
        cut = None if segment.lacks_prompt else segment.next_cut(now)
        return self.urgency(segment, now, self._chunk_s(segment, cut)), FlowItem(segment, cut)

    def _batch(self, ready: Sequence[tuple[Urgency, FlowItem]]) -> tuple[FlowItem, ...]:
        """The most urgent item, and what may go with it without making it late."""
        urgency, top = ready[0]
        batch, size = [top], _size(top)
        seconds = self._costs.predict(Stage.FLOW, size)
        cap = self._limits.batch_frames if urgency.rank >= AHEAD else self._limits.urgent_batch_frames
        for _, item in ready[1:]:
            if not _mix(top.kind, item.kind):
                continue
            alone = _size(item)
            wider = self._with(size, alone)
            if wider.frames > cap:
                continue
            with_item = self._costs.predict(Stage.FLOW, wider)
            # Worth it only if it costs less than it would alone: otherwise everyone in the batch just ends later.
            if with_item - seconds > 0.8 * self._costs.predict(Stage.FLOW, alone):
                continue
            batch.append(item)
            size, seconds = wider, with_item
        return tuple(batch)

    def _with(self, batch: Work, one: Work) -> Work:
        rows, frames = batch.rows + 1, batch.frames + one.frames
        if self._padded:
            frames = rows * max(batch.frames // batch.rows, one.frames)
        return Work(rows, frames, batch.past + one.past)

    def _chunk_s(self, segment: Segment, cut: Cut | None) -> float:
        """Seconds of flow and vocoder for a segment's next chunk."""
        frames = max(1, segment.frames(cut)) if cut else segment.stream.rates.tokens_per_second
        past = segment.past_frames(cut) // _PAST_STEP * _PAST_STEP
        seconds = self._chunks_s.get((frames, past))
        if seconds is None:
            flow = self._costs.predict(Stage.FLOW, Work(1, frames, past))
            seconds = flow + self._costs.predict(Stage.VOCODER, Work(1, frames))
            self._chunks_s[frames, past] = seconds
        return seconds


def _size(item: FlowItem) -> Work:
    return Work(1, item.frames, item.segment.past_frames(item.cut))


def _mix(one: Kind, other: Kind) -> bool:
    together = (Kind.PROMPT, Kind.CHUNK)
    return one is other or (one in together and other in together)
