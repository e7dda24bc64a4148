"""How a stream is cut into chunks, as an immutable value of the request.

A chunk of h speech tokens, its hop, is made once h + lookahead tokens exist beyond what was spoken.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from vivavoce.errors import InvalidRequest

LOOKAHEAD = 3
"""Speech tokens after a chunk that CosyVoice2's flow was trained to see."""
LEAST_HOP, GREATEST_HOP = 4, 1000
"""A hop of 4 tokens is 160 ms, one of 1000 is 40 s."""

_LATER_HOP = 25
_LAST_STEP = 10
"""Steps of growth that lead from any hop past any `max_hop`, if a step at least doubles."""


class Joins(str, Enum):
    """How neighbouring chunks are computed and joined."""

    OFFICIAL = "official"
    """As the official code does: the last chunk attends to everything, fades sum to 1.08, phases restart."""
    SEAMLESS = "seamless"
    """The last chunk is computed like the others, fades sum to 1, the source's phase runs on."""


class Schedule(str, Enum):
    """The rule that gives each chunk its hop."""

    OFFICIAL = "official"
    """The official code's: 25 and what makes prompt and hop whole hops, then 50, then 100."""
    LOW_LATENCY = "low_latency"
    """15, 15, 25, then 50: sound comes early, and no chunk takes much longer than the one before it is heard."""
    EQUAL = "equal"
    """25 each."""
    EXPONENTIAL = "exponential"
    """15, 25, 50, 100, … up to `max_hop`, as the official servers' documents have it."""
    TIME_BASED = "time_based"
    """Multiples of 15 that grow while the listener's buffer is full, as the official servers' documents have it.

    The only rule that looks at the clock: where it cuts, and so the last bits of the audio, may change from run to run.
    """


@dataclass(frozen=True)
class Progress:
    """Where a stream stands when its next chunk is to be cut; amounts in speech tokens."""

    index: int
    """Of the next chunk, from 0."""
    spoken: int
    pending: int
    """Decoded and not spoken."""
    prompt_tokens: int
    """What the voice brings to the flow."""
    elapsed_s: float
    """Since the request was accepted."""


@dataclass(frozen=True)
class ChunkPolicy:
    """A schedule with its numbers. Use the class methods: they know what each schedule takes.

    Raises:
        InvalidRequest: a number is out of its limits, or the schedule has no use for it.
    """

    schedule: Schedule
    first_hop: int
    growth: int
    max_hop: int
    lookahead: int = LOOKAHEAD

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, Schedule):
            raise InvalidRequest(f"chunk policy: schedule {self.schedule!r} is unknown; use one of Schedule's members")
        _whole(self, "first_hop", LEAST_HOP, GREATEST_HOP)
        _whole(self, "max_hop", self.first_hop, GREATEST_HOP)
        _whole(self, "growth", 1, GREATEST_HOP)
        _whole(self, "lookahead", 0, LOOKAHEAD)
        name = _spoken_name(self.schedule)
        if self.schedule is Schedule.OFFICIAL and self.lookahead != LOOKAHEAD:
            raise InvalidRequest(
                f"chunk policy: lookahead {self.lookahead} of an {name} schedule; it is always {LOOKAHEAD} there"
            )
        if self.schedule is Schedule.EQUAL and self.max_hop != self.first_hop:
            raise InvalidRequest(
                f"chunk policy: max_hop {self.max_hop} of an {name} schedule; it must be first_hop, {self.first_hop}"
            )
        if self.schedule in (Schedule.EQUAL, Schedule.TIME_BASED) and self.growth != 1:
            raise InvalidRequest(f"chunk policy: growth {self.growth} of the schedule {name}; leave it at 1")

    @classmethod
    def official(cls, *, first_hop: int = 25, growth: int = 2, max_hop: int = 100) -> ChunkPolicy:
        """The official schedule with the official joins."""
        return cls(Schedule.OFFICIAL, first_hop, growth, max_hop)

    @classmethod
    def low_latency(
        cls, *, first_hop: int = 15, growth: int = 2, max_hop: int = 50, lookahead: int = LOOKAHEAD
    ) -> ChunkPolicy:
        """The default of streams; independent of time and load."""
        return cls(Schedule.LOW_LATENCY, first_hop, growth, max_hop, lookahead)

    @classmethod
    def equal(cls, *, hop: int = 25, lookahead: int = LOOKAHEAD) -> ChunkPolicy:
        """The same hop always."""
        return cls(Schedule.EQUAL, hop, 1, hop, lookahead)

    @classmethod
    def exponential(
        cls, *, first_hop: int = 15, growth: int = 2, max_hop: int = GREATEST_HOP, lookahead: int = LOOKAHEAD
    ) -> ChunkPolicy:
        """Fewest chunks: each takes as long as all before it."""
        return cls(Schedule.EXPONENTIAL, first_hop, growth, max_hop, lookahead)

    @classmethod
    def time_based(cls, *, first_hop: int = 15, max_hop: int = GREATEST_HOP, lookahead: int = LOOKAHEAD) -> ChunkPolicy:
        """Multiples of `first_hop`, by what the listener has left to play."""
        return cls(Schedule.TIME_BASED, first_hop, 1, max_hop, lookahead)

    @classmethod
    def parse(cls, name: str) -> ChunkPolicy:
        """The policy of a schedule's name, with its own numbers; dashes and underscores are the same.

        Raises:
            InvalidRequest: no schedule has this name.
        """
        makers: dict[Schedule, Callable[[], ChunkPolicy]] = {
            Schedule.OFFICIAL: cls.official,
            Schedule.LOW_LATENCY: cls.low_latency,
            Schedule.EQUAL: cls.equal,
            Schedule.EXPONENTIAL: cls.exponential,
            Schedule.TIME_BASED: cls.time_based,
        }
        try:
            schedule = Schedule(name.strip().lower().replace("-", "_"))
        except ValueError:
            known = ", ".join(_spoken_name(schedule) for schedule in Schedule)
            raise InvalidRequest(f"chunk policy: {name!r} is unknown; use one of {known}") from None
        return makers[schedule]()

    @property
    def watches_clock(self) -> bool:
        """The next hop depends on how much is left to play, beside what was spoken and how many chunks were cut."""
        return self.schedule is Schedule.TIME_BASED

    @property
    def joins(self) -> Joins:
        """The official schedule's chunks are joined officially, all others without seams."""
        return Joins.OFFICIAL if self.schedule is Schedule.OFFICIAL else Joins.SEAMLESS

    def next_hop(self, progress: Progress, tokens_per_second: int = 25) -> int:
        """Speech tokens of the next chunk: 1 … `max_hop`, and up to `first_hop` − 1 more in an official first chunk,
        which ends where prompt and chunk together are whole hops.
        """
        if self.watches_clock:
            return min(self.max_hop, self._buffered_hop(progress, tokens_per_second))
        if self.schedule is Schedule.OFFICIAL:
            alignment = -progress.prompt_tokens % self.first_hop if progress.index == 0 else 0
            return self._grown(self.first_hop, progress.index) + alignment
        if progress.index == 0 or self.schedule is Schedule.EQUAL:
            return self.first_hop
        if self.schedule is Schedule.LOW_LATENCY and progress.index == 1:
            return self.first_hop  # a longer one would not be there before the first was heard
        steps = progress.index - (2 if self.schedule is Schedule.LOW_LATENCY else 1)
        return self._grown(max(self.first_hop, _LATER_HOP), steps)

    def _grown(self, hop: int, steps: int) -> int:
        return min(self.max_hop, hop * self.growth ** min(steps, _LAST_STEP))

    def _buffered_hop(self, progress: Progress, tokens_per_second: int) -> int:
        """By how many chunks' mean cost the audio made is ahead of the clock, had it played from the request on."""
        unit = self.first_hop
        if progress.index < 2:
            return unit
        ahead_s = progress.spoken / tokens_per_second - progress.elapsed_s
        # ahead_s / (elapsed_s / index) > m, without a division by a clock that has not moved.
        ahead = ahead_s * progress.index
        if ahead > 4 * progress.elapsed_s:
            return (progress.pending // unit + 1) * unit
        if ahead > 2 * progress.elapsed_s:
            return max(unit, progress.pending // unit * unit)
        return unit


def _whole(policy: ChunkPolicy, field: str, least: int, greatest: int) -> None:
    value = getattr(policy, field)
    if type(value) is not int or not least <= value <= greatest:
        raise InvalidRequest(
            f"chunk policy: {field} {value!r} is out of its limits; use a whole number in {least} … {greatest}"
        )


def _spoken_name(schedule: Schedule) -> str:
    return schedule.value.replace("_", "-")
