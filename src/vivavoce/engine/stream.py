"""A request inside the engine: how far each of its segments is, and until when its listener has something to hear.

Plain numbers without tensors. The loop writes them, the scheduler reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from vivavoce.engine.chunk_policy import ChunkPolicy, Joins, Progress
from vivavoce.rates import Rates


class Phase(Enum):
    """Where a segment's language-model work stands."""

    WAITING = auto()
    """It has no slot yet."""
    READING = auto()
    """It has a slot, and rows that must be prefilled before the next token."""
    DECODING = auto()
    """Each decode step brings a token."""
    STARVED = auto()
    """Its text has not arrived yet."""
    DECODED = auto()
    """All its tokens are there."""


class Kind(Enum):
    """What the flow is to do for a segment; only `PROMPT` and `CHUNK` may share a batch with one another."""

    PROMPT = auto()
    """Compute the state of its voice's prompt."""
    CHUNK = auto()
    """A streamed chunk that goes on from the state of its past."""
    GRID = auto()
    """An official chunk, which computes its past again."""
    WHOLE = auto()
    """A whole segment with full attention: offline work, or the last official chunk."""


class Cut(NamedTuple):
    """A chunk that can be made now: `hop` speech tokens after those already spoken."""

    hop: int
    final: bool
    kind: Kind


@dataclass(eq=False)
class Segment:
    """One sequence of the language model and the audio made of it; owned by the loop."""

    stream: Stream
    place: int
    prompt_rows: int
    """Rows to prefill before the first token."""
    prompt_tokens: int
    """Speech tokens of the voice's prompt that the flow sees."""
    phase: Phase = Phase.WAITING
    produced: int = 0
    """Speech tokens decoded."""
    spoken: int = 0
    """Of these, turned into mel; those of a chunk that is being made are not counted yet."""
    chunks: int = 0
    """Chunks cut so far."""
    lacks_prompt: bool = False
    """The flow has no state of the voice's prompt yet and wants it."""
    busy: bool = False
    """A chunk or the prompt is in the flow or the vocoder now."""
    finished: bool = False
    """Its last chunk was cut."""
    read_at: float = 0.0
    """When its rows were read and it began to decode, on the engine's clock."""
    ready_at: float | None = None
    """Since when its next chunk could have been begun."""
    _next: tuple[int, int, int, int] | None = None
    """`spoken` and `chunks`, and for these the next chunk's hop and margin."""

    @property
    def positions(self) -> int:
        """Positions that a decode step of it looks back on."""
        return self.prompt_rows + self.produced

    @property
    def empty(self) -> bool:
        """It was decoded, and there is nothing in it."""
        return self.phase is Phase.DECODED and not self.produced

    def next_cut(self, now: float) -> Cut | None:
        """The next chunk, if the tokens decoded so far allow one."""
        pending = self.produced - self.spoken
        if self.finished or self.empty:
            return None
        if self.stream.policy is not None:
            hop, margin = self._wanted(now)
            if pending >= hop + margin:
                return Cut(hop, False, self._kind(final=False))
        return Cut(pending, True, self._kind(final=True)) if self.phase is Phase.DECODED else None

    def may_cut(self, now: float) -> bool:
        """Whether `next_cut` gives something, told in less time."""
        if self.finished or self.phase is Phase.DECODED:
            return not (self.finished or self.empty)
        if self.stream.policy is None:
            return False
        hop, margin = self._wanted(now)
        return self.produced - self.spoken >= hop + margin

    def may_begin(self, now: float) -> bool:
        """Whether the flow can begin something for it."""
        return not self.busy and (self.lacks_prompt or self.may_cut(now))

    def frames(self, cut: Cut | None) -> int:
        """Mel frames that the flow computes for a cut, or for the prompt's state if there is none."""
        if cut is None:
            tokens = self.prompt_tokens
        elif cut.kind is Kind.CHUNK:
            tokens = cut.hop
        else:
            tokens = self.prompt_tokens + self.spoken + cut.hop
        return tokens * self.stream.rates.frames_per_token

    def past_frames(self, cut: Cut | None) -> int:
        """Mel frames whose state a cut looks back on."""
        if cut is None or cut.kind is not Kind.CHUNK:
            return 0
        return (self.prompt_tokens + self.spoken) * self.stream.rates.frames_per_token

    def tokens_lacking(self, now: float) -> int:
        """Speech tokens still to be decoded before the next chunk can be made; offline: a guess, at least 1."""
        if self.phase is Phase.DECODED:
            return 0
        if self.stream.policy is None:
            return 1
        hop, margin = self._wanted(now)
        return max(0, hop + margin - (self.produced - self.spoken))

    def _kind(self, final: bool) -> Kind:
        policy = self.stream.policy
        if policy is not None and policy.joins is Joins.SEAMLESS:
            return Kind.CHUNK
        return Kind.GRID if policy is not None and not final else Kind.WHOLE

    def _wanted(self, now: float) -> tuple[int, int]:
        """Hop and margin of the next chunk. They are asked for many times a second and change once a chunk."""
        known = self._next
        if known is not None and known[0] == self.spoken and known[1] == self.chunks:
            return known[2], known[3]
        policy = self.stream.policy
        assert policy is not None
        progress = Progress(
            index=self.chunks,
            spoken=self.spoken,
            pending=self.produced - self.spoken,
            prompt_tokens=self.prompt_tokens,
            elapsed_s=now - self.stream.accepted_at,
        )
        # One token at least stays for the last chunk, which carries the fade-out of the one before it.
        hop, margin = policy.next_hop(progress, self.stream.rates.tokens_per_second), max(1, policy.lookahead)
        if not policy.watches_clock:
            self._next = (self.spoken, self.chunks, hop, margin)
        return hop, margin


@dataclass(eq=False)
class Stream:
    """One accepted request; owned by the loop."""

    id: int
    policy: ChunkPolicy | None
    accepted_at: float
    rates: Rates
    segments: list[Segment] = field(default_factory=list)
    sounding_since: float | None = None
    """When the first chunk was handed out, on the engine's clock in seconds: from then on its listener plays."""
    handed_out_s: float = 0.0
    """Audio handed out, in seconds."""
    pauses_s: float = 0.0
    """Silence between chunks, which moved all that was heard after it."""
    excused: bool = False
    current: int = 0
    """Place of the segment whose audio comes next."""
    decoded: int = 0
    """Segments at its front that are known to be decoded."""
    complete: bool = True
    """No more segments will come."""
    closed: bool = False
    """Cancelled, failed or done: nothing more is to be made for it."""

    @property
    def streaming(self) -> bool:
        """Its chunks have deadlines; otherwise it is offline work."""
        return self.policy is not None

    @property
    def sounding(self) -> bool:
        """Its listener has begun to play."""
        return self.sounding_since is not None

    @property
    def starved(self) -> bool:
        """Nothing can be decoded until more of its text arrives."""
        undecoded = [segment for segment in self.segments if segment.phase is not Phase.DECODED]
        return not self.complete if not undecoded else undecoded[0].phase is Phase.STARVED

    @property
    def dry_at(self) -> float:
        """When the listener will have played all that was handed out; only of a stream that sounds."""
        assert self.sounding_since is not None
        return self.sounding_since + self.handed_out_s + self.pauses_s

    def hand_out(self, duration_s: float, now: float) -> float:
        """A chunk goes to the listener; returns the seconds that it came too late, through the engine's fault."""
        late_s = 0.0
        if self.sounding_since is None:
            self.sounding_since = now
        elif self.streaming and now > self.dry_at:
            late_s = 0.0 if self.excused else now - self.dry_at
            self.pauses_s += now - self.dry_at
        self.excused = False
        self.handed_out_s += duration_s
        return late_s

    def excuse(self, now: float) -> None:
        """Its text has come too late: if the listener has run dry meanwhile, the next chunk is none of ours."""
        self.excused = self.sounding and now > self.dry_at

    def audible(self) -> Sequence[Segment]:
        """Segments whose audio may be made now: all of offline work, the current one of a stream."""
        if not self.streaming:
            return [segment for segment in self.segments if not segment.finished]
        return self.segments[self.current : self.current + 1]

    def decodable(self) -> Sequence[Segment]:
        """Segments whose language-model work may go on now.

        A stream's next segment starts when the one before it is decoded: its tokens are there by the time they are
        heard, and one slot is enough.
        """
        segments = self.segments
        while self.decoded < len(segments) and segments[self.decoded].phase is Phase.DECODED:
            self.decoded += 1
        if self.streaming:
            return segments[self.decoded : self.decoded + 1]
        return [segment for segment in segments[self.decoded :] if segment.phase is not Phase.DECODED]
