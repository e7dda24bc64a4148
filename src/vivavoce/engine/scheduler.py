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


@dataclass(frozen=True)
class Limits:
    """Bounds of single steps and of patience.

    prefill_rows: rows of one prefill, so that running streams do not stall (a longer prompt goes alone);
    batch_frames: padded mel frames of one flow batch; urgent_batch_frames: of one whose first item is urgent;
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
    """Plans the next steps from the streams' progress and the measured costs; keeps no state."""

    def __init__(self, costs: CostModel, limits: Limits, *, exclusive: bool) -> None:
        self._costs, self._limits, self._exclusive = costs, limits, exclusive

    def plan(self, streams: Iterable[Stream], at: Situation) -> Plan:
        """The most urgent work of each open lane; of the more urgent lane only, where both share a processor."""
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
        waiting: list[tuple[Urgency, Segment]] = []
        decoding: list[Urgency] = []
        active = [segment for stream in streams for segment in stream.decodable()]
        past = sum(segment.positions for segment in active)
        step_s = self._costs.predict(Stage.DECODE, Work(max(1, len(active)), past=past))
        for segment in active:
            lacking = segment.tokens_lacking(at.now)
            urgency = self.urgency(segment, at.now, lacking * step_s + self._chunk_s(segment, None))
            if segment.phase in (Phase.WAITING, Phase.READING):
                waiting.append((urgency, segment))
            elif segment.phase is Phase.DECODING:
                # Whose next chunk can be made already waits for the flow, not for tokens.
                decoding.append(urgency if lacking else Urgency(max(AHEAD, urgency.rank), urgency.slack_s + 1.0))
        waiting.sort(key=lambda pair: pair[0])
        prefill = self._prefill([segment for _, segment in waiting], at)
        # The most urgent one may have found no slot.
        reading = next((urgency for urgency, segment in waiting if prefill and segment is prefill[0]), None)
        # Whoever is read now shares all the steps to come: only a more urgent rank that cannot wait decodes on first.
        calm = not decoding or min(decoding) > Urgency(AHEAD, self._limits.calm_s)
        if reading is not None and (calm or reading.rank <= min(decoding).rank):
            return reading, Plan(prefill=prefill)
        if decoding:
            return min(decoding), Plan(decode=True)
        return None

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
        ready = sorted(self._ready(streams, at.now), key=lambda pair: pair[0])
        running = [
            (min(self.urgency(item.segment, at.now, batch.seconds_left) for item in batch.items), batch)
            for batch in at.running
        ]
        first = min(running, key=lambda pair: pair[0]) if running else None
        if first and not at.batches_open:
            # Whatever is more urgent waits for its end, and lends it its urgency.
            return min([first[0], *(urgency for urgency, _ in ready[:1])]), Plan(advance=first[1])
        # A batch that has begun is finished first, unless what waits is of a more urgent kind.
        if first and (not ready or ready[0][0].rank >= first[0].rank):
            return first[0], Plan(advance=first[1])
        return (ready[0][0], Plan(start=self._batch(ready))) if ready else None

    def _ready(self, streams: Iterable[Stream], now: float) -> Iterable[tuple[Urgency, FlowItem]]:
        for stream in streams:
            for segment in stream.audible():
                if segment.busy:
                    continue
                cut = None if segment.lacks_prompt else segment.next_cut(now)
                if cut is not None or segment.lacks_prompt:
                    yield self.urgency(segment, now, self._chunk_s(segment, cut)), FlowItem(segment, cut)

    def _batch(self, ready: Sequence[tuple[Urgency, FlowItem]]) -> tuple[FlowItem, ...]:
        """The most urgent item, and what may go with it without making it late."""
        urgency, top = ready[0]
        batch, seconds = [top], self._batch_s([top])
        cap = self._limits.batch_frames if urgency.rank >= AHEAD else self._limits.urgent_batch_frames
        for _, item in ready[1:]:
            if not _mix(top.kind, item.kind):
                continue
            wider = [*batch, item]
            if len(wider) * max(one.frames for one in wider) > cap:
                continue
            with_item = self._batch_s(wider)
            extra = with_item - seconds
            # Worth it only if it costs less than it would alone: otherwise everyone in the batch just ends later.
            if extra > 0.8 * self._batch_s([item]):
                continue
            batch, seconds = wider, with_item
        return tuple(batch)

    def _batch_s(self, items: Sequence[FlowItem]) -> float:
        longest = max(item.frames for item in items)
        past = sum(item.segment.past_frames(item.cut) for item in items)
        return self._costs.predict(Stage.FLOW, Work(len(items), longest * len(items), past))

    def _chunk_s(self, segment: Segment, cut: Cut | None) -> float:
        """Seconds of flow and vocoder for a segment's next chunk."""
        frames = max(1, segment.frames(cut)) if cut else segment.stream.rates.tokens_per_second
        flow = self._costs.predict(Stage.FLOW, Work(1, frames, segment.past_frames(cut)))
        return flow + self._costs.predict(Stage.VOCODER, Work(1, frames))


def _mix(one: Kind, other: Kind) -> bool:
    together = (Kind.PROMPT, Kind.CHUNK)
    return one is other or (one in together and other in together)
