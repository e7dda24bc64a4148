"""The chunk policy: how a stream's speech tokens are cut into chunks. It is an immutable value of the request.

A chunk's hop is its number of speech tokens. A chunk is made once hop + lookahead tokens after the last chunk exist.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

from vivavoce.checkpoint.config import Generation
from vivavoce.errors import InvalidRequest, check_kind

LOOKAHEAD = 3
"""Number of speech tokens after a chunk's end that CosyVoice2's flow also reads, as in its training."""
OVERLAP = 20
"""The number of speech tokens at the end of a CosyVoice 1 chunk that the next chunk computes again."""
LEAST_HOP, GREATEST_HOP = 4, 1000
"""Limits of a hop, in speech tokens: 4 tokens are 160 ms of audio, 1000 are 40 s."""

_LATER_HOP = 25
_LAST_STEP = 10
"""Upper limit of the exponent of `growth`: a hop that doubles this often is above every `max_hop` already."""


class CrossfadeMode(str, Enum):
    """The rule by which neighbouring chunks are computed and joined.

    OFFICIAL: as in the official code. The last chunk attends to all frames, the two weights of a crossfade sum to 1.08,
    and the vocoder's source restarts its phase in each chunk. SEAMLESS: the last chunk is computed like the others, the
    weights sum to 1, and the phase continues. A vocoder with a `Reach` has no crossfades; both modes are the same.
    """

    OFFICIAL = "official"
    SEAMLESS = "seamless"


class AttentionMode(Enum):
    """The keys that a chunk's frames attend to. Positions are counted from the prompt's start. A batch has one mode."""

    FULL = "full"
    """Frames attend to the whole row: for whole utterances, and for the last chunk of an official stream."""
    GRID = "grid"
    """Frames attend to all keys up to the end of their chunk in a fixed grid; for other chunks of official streams."""
    BLOCKS = "blocks"
    """Frames attend to all keys up to the end of their block. Later chunks reuse all earlier results."""


class Schedule(str, Enum):
    """The rule that gives each chunk its hop, in speech tokens.

    OFFICIAL: 25, 50, then 100; the first hop is lengthened until prompt and hop together are a multiple of 25.
    LOW_LATENCY: 15, 15, 25, then 50: audio starts early, and no chunk takes much longer to make than the previous chunk
    plays. EQUAL: 25 each. EXPONENTIAL: 15, 25, 50, 100, … up to `max_hop`. TIME_BASED: multiples of 15 that grow while
    the listener's buffer is full; they depend on the clock, so the audio's last bits may differ from run to run.
    """

    OFFICIAL = "official"
    LOW_LATENCY = "low_latency"
    EQUAL = "equal"
    EXPONENTIAL = "exponential"
    TIME_BASED = "time_based"


_OVERLAPPING = (Schedule.OFFICIAL, 100, 1, 100, OVERLAP)


@dataclass(frozen=True)
class ChunkPolicy:
    """A schedule with its numbers. Make it with the class methods, which take the numbers that each schedule uses.

    growth: the factor from one hop to the next; lookahead: number of speech tokens that a chunk needs after its end."""

    schedule: Schedule
    first_hop: int
    growth: int
    max_hop: int
    lookahead: int = LOOKAHEAD

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, Schedule):
            raise InvalidRequest(f"chunk policy: schedule {self.schedule!r} is unknown; use one of Schedule's members")
        if (self.schedule, self.first_hop, self.growth, self.max_hop, self.lookahead) == _OVERLAPPING:
            return
        for field, least, greatest in (
            ("first_hop", LEAST_HOP, GREATEST_HOP),
            ("max_hop", self.first_hop, GREATEST_HOP),
            ("growth", 1, GREATEST_HOP),
            ("lookahead", 0, LOOKAHEAD),
        ):
            value = getattr(self, field)
            if type(value) is not int or not least <= value <= greatest:
                raise InvalidRequest(
                    f"chunk policy: {field} {value!r} is out of its limits; use a whole number in {least} … {greatest}"
                )
        equal = self.schedule is Schedule.EQUAL
        for field, has_use, only in (
            ("lookahead", self.schedule is not Schedule.OFFICIAL, LOOKAHEAD),
            ("max_hop", not equal, self.first_hop),
            ("growth", not equal and self.schedule is not Schedule.TIME_BASED, 1),
        ):
            value, name = getattr(self, field), self.schedule.value.replace("_", "-")
            if not has_use and value != only:
                raise InvalidRequest(f"chunk policy: {field} cannot be {value}; the schedule {name} needs {only}")

    @classmethod
    def official(cls, *, first_hop: int = 25, growth: int = 2, max_hop: int = 100) -> ChunkPolicy:
        """Make the official policy: the official schedule with official joins."""
        return cls(Schedule.OFFICIAL, first_hop, growth, max_hop)

    @classmethod
    def overlapping(cls) -> ChunkPolicy:
        """Make CosyVoice 1's official policy: chunks of 100 tokens, each made once the 20 tokens after it exist."""
        return cls(*_OVERLAPPING)

    @classmethod
    def low_latency(
        cls, *, first_hop: int = 15, growth: int = 2, max_hop: int = 50, lookahead: int = LOOKAHEAD
    ) -> ChunkPolicy:
        """Make the default policy of streams. Its hops depend on neither time nor load."""
        return cls(Schedule.LOW_LATENCY, first_hop, growth, max_hop, lookahead)

    @classmethod
    def equal(cls, *, hop: int = 25, lookahead: int = LOOKAHEAD) -> ChunkPolicy:
        """Make a policy with the same hop for every chunk."""
        return cls(Schedule.EQUAL, hop, 1, hop, lookahead)

    @classmethod
    def exponential(
        cls, *, first_hop: int = 15, growth: int = 2, max_hop: int = GREATEST_HOP, lookahead: int = LOOKAHEAD
    ) -> ChunkPolicy:
        """Make a policy with hops that grow by the factor `growth`, so that a stream has few chunks."""
        return cls(Schedule.EXPONENTIAL, first_hop, growth, max_hop, lookahead)

    @classmethod
    def time_based(cls, *, first_hop: int = 15, max_hop: int = GREATEST_HOP, lookahead: int = LOOKAHEAD) -> ChunkPolicy:
        """Make a policy with multiples of `first_hop`, chosen by the seconds of audio that the listener still has."""
        return cls(Schedule.TIME_BASED, first_hop, 1, max_hop, lookahead)

    @classmethod
    def parse(cls, name: str) -> ChunkPolicy:
        """Make the named policy with its default numbers; "-" and "_" in the name are equivalent."""
        try:
            schedule = Schedule(name.strip().lower().replace("-", "_"))
        except ValueError:
            known = ", ".join(schedule.value.replace("_", "-") for schedule in Schedule)
            raise InvalidRequest(f"chunk policy: {name!r} is unknown; use one of {known}") from None
        policy: ChunkPolicy = getattr(cls, schedule.value)()  # each schedule has a class method of the same name
        return policy

    @cached_property
    def joins(self) -> CrossfadeMode:
        """The join mode: OFFICIAL for the schedules of the official code, SEAMLESS for all others."""
        return CrossfadeMode.OFFICIAL if self.schedule is Schedule.OFFICIAL else CrossfadeMode.SEAMLESS

    @cached_property
    def overlaps(self) -> bool:
        """Whether the flow sees only the last tokens before a chunk, and computes them again (CosyVoice 1)."""
        return self.lookahead == OVERLAP

    def next_hop(
        self, chunks: int, spoken: int, pending: int, prompt_tokens: int, elapsed_s: float, tokens_per_second: int = 25
    ) -> int:
        """Return the number of speech tokens in the next chunk: 1 … `max_hop`. The official schedule makes the first
        chunk up to `first_hop` − 1 tokens longer, so that prompt and chunk together are a multiple of the hop.

        chunks: chunks cut so far; spoken: tokens in these chunks; pending: decoded tokens that are in no chunk yet;
        prompt_tokens: number of speech tokens in the flow's prompt; elapsed_s: seconds since the request was accepted.
        """
        if self.schedule is Schedule.TIME_BASED:
            # The seconds by which the audio is ahead of the clock are compared with 2 and 4 times a chunk's mean time,
            # which is elapsed_s / chunks. Both sides are multiplied by `chunks`, to avoid a division.
            ahead, whole = (spoken / tokens_per_second - elapsed_s) * chunks, pending // self.first_hop
            if chunks < 2 or ahead <= 2 * elapsed_s:
                whole = 1
            elif ahead > 4 * elapsed_s:
                whole += 1
            return min(self.max_hop, max(1, whole) * self.first_hop)
        hop, steps, alignment = self.first_hop, chunks, 0
        if self.schedule is Schedule.OFFICIAL:
            alignment = -prompt_tokens % hop if steps == 0 and not self.overlaps else 0
        else:
            # A low_latency stream's second chunk is as short as its first; a longer chunk would come too late.
            later = 2 if self.schedule is Schedule.LOW_LATENCY else 1
            if steps < later or self.schedule is Schedule.EQUAL:
                return hop
            hop, steps = max(hop, _LATER_HOP), steps - later
        return min(self.max_hop, hop * self.growth ** min(steps, _LAST_STEP)) + alignment


_OF_STREAMS = ChunkPolicy.low_latency()


def with_short_chunks(policy: ChunkPolicy, frames: int, frames_per_token: int) -> ChunkPolicy:
    """Shorten the default policy's first chunks to `frames` mel frames, for which the flow has a faster kernel (0: no
    kernel). The first chunk also computes the prompt's last tokens, which look ahead at the stream's first tokens.
    """
    if policy != _OF_STREAMS or not frames:
        return policy
    return replace(policy, first_hop=min(policy.first_hop, frames // frames_per_token - LOOKAHEAD))


def policy_for(generation: Generation, policy: ChunkPolicy | None) -> ChunkPolicy:
    """Return the policy for streams of a generation: its default if `policy` is None. CosyVoice 1's flow works only
    with its own official chunks, which differ from the official chunks of later generations.

    Raises:
        InvalidRequest: this generation cannot follow the policy.
    """
    if policy is not None:
        check_kind("policy", policy, ChunkPolicy, "such as ChunkPolicy.low_latency()")
    if generation is Generation.V1:
        if policy in (None, ChunkPolicy.official(), ChunkPolicy.overlapping()):
            return ChunkPolicy.overlapping()
    elif policy is None or not policy.overlaps:
        return policy or _OF_STREAMS
    name = "overlapping" if policy.overlaps else policy.schedule.value.replace("_", "-")
    raise InvalidRequest(f"chunk policy: CosyVoice {generation.value[1:]} has no {name}; use official, or leave it out")
