"""What the flow could begin, and which of it goes together. Pure decisions over plain numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from vivavoce.engine.cost_model import CostModel, Stage, Work
from vivavoce.engine.stream import Cut, Kind, Segment, Stream


class Urgency(NamedTuple):
    """Order of work; the smallest goes first."""

    rank: int
    slack_s: float


DRY, FIRST, AHEAD, OFFLINE = range(4)


class FlowItem(NamedTuple):
    """A segment's work for the flow: a cut, or None for its prompt's state."""

    segment: Segment
    cut: Cut | None

    @property
    def kind(self) -> Kind:
        """What it may share a batch with."""
        return Kind.PROMPT if self.cut is None else self.cut.kind


class Choice(NamedTuple):
    """What could be begun: its urgency, and the mel frames that it computes and that it looks back on."""

    urgency: Urgency
    item: FlowItem
    frames: int
    past: int


def ready(streams: Collection[Stream], now: float) -> list[FlowItem]:
    """What the flow could begin."""
    return [
        item_of(segment, now)
        for stream in streams
        if not stream.closed
        for segment in stream.audible()
        if segment.may_begin(now)
    ]


def item_of(segment: Segment, now: float) -> FlowItem:
    """What the flow is to do next for a segment that may begin something."""
    return FlowItem(segment, None if segment.lacks_prompt else segment.next_cut(now))


def oldest_first(choice: Choice) -> tuple[int, float]:
    """Order of what could be begun: streams that are ahead are finished one after the other.

    Each that has begun holds the state of its past. By slack, all would go on side by side until memory is full, and
    then most of the work would be to compute pasts again.
    """
    rank, slack = choice.urgency
    return rank, choice.item.segment.stream.accepted_at if rank == AHEAD else slack


class BatchMaker:
    """Puts chunks together as long as it saves time, by the measured costs.

    padded: the rows of a batch cost as much as its longest one.
    """

    def __init__(self, costs: CostModel, *, padded: bool) -> None:
        self._costs, self._padded = costs, padded

    def make(self, choices: Sequence[Choice], most_frames: int) -> tuple[FlowItem, ...]:
        """The first item, and what may go with it without making it late.

        most_frames: mel frames, padding included, that a batch of several has at most.
        """
        _, top, frames, past = choices[0]
        batch, size, kind = [top], Work(1, frames, past), top.kind
        seconds = self._costs.predict(Stage.FLOW, size)
        least = min(choice.frames for choice in choices)
        alone: dict[tuple[int, int], float] = {}
        for _, item, frames, past in choices[1:]:
            if self._frames_with(size, least) > most_frames:
                break
            together = self._frames_with(size, frames)
            if together > most_frames or not _mix(kind, item.kind):
                continue
            wider = Work(size.rows + 1, together, size.past + past)
            with_item = self._costs.predict(Stage.FLOW, wider)
            if (frames, past) not in alone:
                alone[frames, past] = self._costs.predict(Stage.FLOW, Work(1, frames, past))
            # Worth it only if it costs less than it would alone: otherwise everyone in the batch just ends later.
            if with_item - seconds > 0.8 * alone[frames, past]:
                continue
            batch.append(item)
            size, seconds = wider, with_item
        return tuple(batch)

    def _frames_with(self, batch: Work, frames: int) -> int:
        """Mel frames of a batch that grows by a row, padding included."""
        if self._padded:
            return (batch.rows + 1) * max(batch.frames // batch.rows, frames)
        return batch.frames + frames


def _mix(one: Kind, other: Kind) -> bool:
    together = (Kind.PROMPT, Kind.CHUNK)
    return one is other or (one in together and other in together)
