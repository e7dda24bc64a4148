"""A request inside the engine: the progress of its sequences, and the time until which its listener has audio to play.

Decisions from these numbers need no tensors; the objects that stages keep for a sequence are opaque here. The loop and
its runners write this state, and the scheduler reads it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from vivavoce.engine.chunk_policy import AttentionMode, ChunkPolicy, CrossfadeMode, Schedule
from vivavoce.engine.handle import Outbox, RequestTimings
from vivavoce.engine.request import FlowSteps, InputMode, SpeechTokens
from vivavoce.engine.text_cursor import TextCursor
from vivavoce.errors import InvalidRequest
from vivavoce.rates import Rates

if TYPE_CHECKING:
    from vivavoce.engine.lm_stage import DecodeRun, StreamingPrompt
    from vivavoce.engine.request import SegmentRequest, TokenRequest


SURE_AFTER = 56
"""The guard (`engine/guard.py`) finds a fault at most this many speech tokens after its start; loops take longest."""


class Phase(Enum):
    """The progress of a sequence's language-model work."""

    WAITING = auto()
    """The sequence has no slot yet."""
    READING = auto()
    """The sequence has rows to prefill before its next token, and a slot."""
    DECODING = auto()
    STARVED = auto()
    """The next text, or the next speech tokens, have not arrived yet."""
    DECODED = auto()
    """All speech tokens exist."""


class ChunkPlan(NamedTuple):
    """Work that flow and vocoder can do now for a sequence: its next chunk, or (hop 0) the state of its voice's prompt.

    hop: speech tokens of the chunk, after the spoken tokens; seen: number of speech tokens, from the first one on, that
    the flow gets; frames: mel frames that the flow computes; past: mel frames before them that it attends to.
    """

    sequence: SequenceState
    hop: int
    final: bool
    attention: AttentionMode
    seen: int
    frames: int
    past: int

    def goes_with(self, other: ChunkPlan) -> bool:
        """Return whether one batch of the flow can compute both chunks."""
        return self.attention is other.attention and self.sequence.flow_steps is other.sequence.flow_steps

    @property
    def unsure(self) -> bool:
        """Whether the guard may still replace this chunk's tokens, or end the speech before them."""
        its = self.sequence
        guarded = its.first_run is not None and its.cursor is not None  # without heads the guard finds nothing
        return guarded and its.phase is not Phase.DECODED and its.produced < self.seen + SURE_AFTER


@dataclass(eq=False)
class SequenceState:
    """One sequence of the language model, and the audio made from it; owned by the loop.

    prompt_rows: rows to prefill before the first token; prompt_tokens: speech tokens of the voice for the flow; tokens:
    speech tokens so far; pushed: if speech tokens are pushed, hop, final and seen (`ChunkPlan`) of each chunk that may
    begin; run: rows that wait for their prefill; text: makes the runs if text arrives token by token; flow, wave: the
    sequence's streams in flow and vocoder; flow_steps: the steps of its flow.
    """

    segment: SegmentRequest | TokenRequest
    prompt_rows: int = 0
    prompt_tokens: int = 0
    phase: Phase = Phase.WAITING
    produced: int = 0
    """Number of speech tokens so far."""
    sampled: int = 0
    """Number of speech tokens from the language model, with the tokens left out because a silence was too long."""
    silence: int = 0
    """Number of silent tokens in a row at the end of `sampled`."""
    tokens: list[int] = field(default_factory=list)
    pushed: deque[tuple[int, bool, int]] | None = None
    run: DecodeRun | None = None
    text: StreamingPrompt | None = None
    request: RequestState = field(init=False)
    place: int = 0
    """Index in the request's sequences."""
    spoken: int = 0
    """Number of tokens that the flow has turned into mel; in a `TokenRequest`, number of tokens handed out."""
    chunks: int = 0
    """Chunks cut so far."""
    asked: int = 0
    """The sum of all hops that were pushed so far, if speech tokens are pushed."""
    slot: int | None = None
    most_tokens: int = 0
    """The language model is stopped after this many tokens, even if it would go on."""
    limited: bool = True
    """False if the request asks for exactly `most_tokens`, gives its tokens, or gets its text token by token."""
    cut: bool = False
    """Whether the language model was stopped at `most_tokens`, and `limited` is true."""
    cursor: TextCursor | None = None
    """The position of the attention in the text; None until a decode step of a watched segment has read attention."""
    first_run: DecodeRun | None = None
    """The run of the whole text of a guarded segment; None in other segments."""
    tries: int = 0
    """Number of times that a part of the sequence was sampled again."""
    looked: int = 0
    """Number of speech tokens at the guard's last check."""
    seen: int = 0
    """Number of speech tokens that the flow has read; the listener may have heard them."""
    faults: dict[str, bool] = field(default_factory=dict)
    """Faults that the guard has found, and whether each was removed before the listener could hear it."""
    sent_s: float = 0.0
    """Seconds of audio that were handed out."""
    told: int = 0
    """Number of text tokens up to the last text token for which the listener was told a start time."""
    flow: Any = None
    wave: Any = None
    flow_steps: FlowSteps = FlowSteps.OFFICIAL
    lacks_prompt: bool = False
    """Whether the flow should compute the state of the voice's prompt."""
    busy: bool = False
    """Whether a chunk or the prompt of this sequence is in the flow or the vocoder now."""
    finished: bool = False
    read_at: float = 0.0
    """The time, on the engine's clock, at which the sequence's rows were prefilled and it began to decode."""
    ready_at: float | None = None
    """The time from which the sequence's next chunk could have begun; None if it cannot begin yet."""
    _known: tuple[int, int, int, int] = (-1, -1, 0, 0)
    """`spoken` and `chunks`, followed by the result of `_wanted` for them (hop, tokens), as a cache."""

    def lacking(self, now: float) -> int:
        """Return how many speech tokens the next chunk still needs; 1 if the number is not known."""
        if self.phase is Phase.DECODED or self.pushed:
            return 0
        policy, known = self.request.policy, self._known
        if policy is None or self.pushed is not None:
            return 1
        # This is called many times a second, and the answer changes only once per chunk.
        need = known[3] if known[:2] == (self.spoken, self.chunks) else self._wanted(now, policy)[1]
        return max(0, self.spoken + need - self.produced)

    @property
    def prompt_due(self) -> bool:
        return self.lacks_prompt and not self.finished

    def may_cut(self, now: float) -> bool:
        return not self.finished and self.produced > 0 and self.lacking(now) == 0

    def next_chunk(self, now: float) -> ChunkPlan | None:
        """Return the work that can be done now: the prompt's state if it is due, or the next chunk; None if neither."""
        frames_of, policy = self.request.rates.frames_of, self.request.policy
        if self.busy:
            return None
        if self.prompt_due:
            return ChunkPlan(self, 0, False, AttentionMode.BLOCKS, 0, frames_of(self.prompt_tokens), 0)
        if not self.may_cut(now):
            return None
        pending = self.produced - self.spoken
        hop, final, attention, seen = pending, True, AttentionMode.FULL, self.produced
        if self.pushed:
            (hop, final, seen), attention = self.pushed[0], AttentionMode.BLOCKS
        elif policy is not None:
            seamless = policy.joins is CrossfadeMode.SEAMLESS
            wanted, need = self._wanted(now, policy)
            if pending >= need:
                hop, final, seen = wanted, False, self.spoken + wanted + policy.lookahead
                attention = AttentionMode.FULL if policy.overlaps else AttentionMode.GRID
            attention = AttentionMode.BLOCKS if seamless else attention
        if attention is AttentionMode.BLOCKS:
            begin = end = self.prompt_tokens + self.spoken
            if not self.spoken and self.flow is not None:
                begin = self.flow.prompt_end if self.flow.known else 0
            frames, past = frames_of(end - begin + hop), frames_of(begin)
        else:
            computed = seen - self.spoken if policy is not None and policy.overlaps else self.spoken + hop
            frames, past = frames_of(self.prompt_tokens + computed), 0
        return ChunkPlan(self, hop, final, attention, seen, frames, past)

    def tell(self, duration_s: float, ended: bool, lag: float) -> tuple[tuple[int, float], ...] | None:
        """Return the text tokens that begin in the next audio, which lasts `duration_s`; see `AudioChunk.reached`.

        ended: whether this is the sequence's last audio; lag: see `TextHeads`.
        """
        self.sent_s += duration_s
        if self.cursor is None:
            return None
        found, per_second = [], self.request.rates.tokens_per_second * getattr(self.segment, "speed", 1.0)
        for text_token, token in self.cursor.reached():
            begin_s = max(0.0, token + lag) / per_second if token else 0.0
            if text_token < self.told:
                continue
            if begin_s >= self.sent_s and not ended:
                break
            found.append((text_token, min(begin_s, self.sent_s)))
            self.told = text_token + 1
        return tuple(found)

    def _wanted(self, now: float, policy: ChunkPolicy) -> tuple[int, int]:
        """Return the next chunk's hop, and how many unspoken tokens it needs unless all tokens exist."""
        pending, elapsed_s = self.produced - self.spoken, now - self.request.accepted_at
        rate = self.request.rates.tokens_per_second
        hop = policy.next_hop(self.chunks, self.spoken, pending, self.prompt_tokens, elapsed_s, rate)
        # At least one token stays for the last chunk, which carries the fade-out of the chunk before it.
        need = hop + max(1, policy.lookahead)
        if policy.schedule is not Schedule.TIME_BASED:  # time-based hops change with the clock
            self._known = (self.spoken, self.chunks, hop, need)
        return hop, need


@dataclass(eq=False)
class RequestState:
    """One accepted request; owned by the loop.

    policy: the chunk policy, None: offline work; outbox: holds results for the listener; tokens_only: the request asks
    for speech tokens, not for audio; arrived: sequences that are not opened yet; complete: no more sequences or speech
    tokens will be pushed; asked: whether a client sent the request, and not the engine's own warm-up; batch: as in
    `EngineRequest`; adapters: the adapters that the request uses until its end, by name.
    """

    id: int
    policy: ChunkPolicy | None
    accepted_at: float
    rates: Rates
    outbox: Outbox[Any]
    arrived: deque[SequenceState] = field(default_factory=deque)
    tokens_only: bool = False
    arrival: InputMode = InputMode.WHOLE
    complete: bool = True
    asked: bool = True
    batch: bool = False
    adapters: dict[str, Any] = field(default_factory=dict)
    sequences: list[SequenceState] = field(default_factory=list)
    held: dict[int, tuple[bool, Any]] = field(default_factory=dict)
    """Samples that are not sent yet, by the index of their sequence, and whether they are its last samples."""
    current: int = 0
    """Index of the sequence whose audio is handed out next."""
    decoded: int = 0
    """Number of sequences at the front that are known to be decoded."""
    closed: bool = False
    """The request was cancelled, failed or is done: no more work is done for it."""
    chunks: int = 0
    final_sent: bool = False
    """Whether the last handed-out chunk was marked as final."""
    error: Exception | None = None
    """The error with which the request ends, after the audio that could be made is handed out."""
    sounding_since: float | None = None
    """The time at which the first chunk was handed out, on the engine's clock: the listener plays from then on."""
    dry_at: float = 0.0
    """The time at which the listener will have played all chunks so far; only valid once a chunk was handed out."""
    excused: bool = False
    """Whether the listener has played all audio because text came too late."""
    timings: RequestTimings = field(default_factory=RequestTimings)

    @property
    def live(self) -> bool:
        """Whether a listener plays the audio while it is made, so that its chunks have deadlines."""
        return self.policy is not None and not self.batch

    @property
    def starved(self) -> bool:
        """Whether no more tokens can be made until more text, or more speech tokens, arrive."""
        for sequence in self.sequences:
            if sequence.phase is not Phase.DECODED:
                return sequence.phase is Phase.STARVED and not sequence.pushed
        return not self.complete

    def awaits_more(self, now: float) -> bool:
        """Whether the request is starved, and its tokens so far are not enough for another chunk."""
        return self.starved and not any(one.busy or one.may_cut(now) for one in self.sequences)

    def add(self, sequence: SequenceState) -> None:
        sequence.request, sequence.place = self, len(self.sequences)
        self.sequences.append(sequence)

    def take(self, more: Taken, now: float) -> None:
        """Take more input of the request. None ends the input; an error ends it because no more can come.

        Raises:
            InvalidRequest: more speech tokens are to be spoken than have arrived.
        """
        # If the listener's buffer ran out while text was awaited, the engine is not at fault.
        self.excused = self.excused or (self.starved and self.sounding_since is not None and now > self.dry_at)
        if isinstance(more, Exception):
            self.error, more = more, None
        known = (*self.arrived, *self.sequences)
        text = next((one.text for one in known if one.text is not None), None)
        if isinstance(more, SequenceState):
            self.arrived.append(more)
        elif self.arrival is InputMode.SPEECH:
            self._take_speech(known[0], more, now)  # type: ignore[arg-type]
        elif text is None:
            self.complete = True
        elif more is None:
            text.close()
        else:
            text.push(more)  # type: ignore[arg-type]

    def _take_speech(self, sequence: SequenceState, more: SpeechTokens | None, now: float) -> None:
        if more is None:
            raise InvalidRequest("speech tokens: they ended without a final push; set final in the last push")
        sequence.tokens.extend(more.tokens)
        sequence.produced, sequence.asked = len(sequence.tokens), sequence.asked + more.hop
        if more.hop < 1 or sequence.asked > sequence.produced or self.complete:
            raise InvalidRequest(
                f"speech tokens: hop {more.hop} makes {sequence.asked} in all, {sequence.produced} have come; push "
                "enough tokens, a hop of 1 or more, and nothing after the final push"
            )
        assert sequence.pushed is not None
        sequence.pushed.append((more.hop, more.final, sequence.produced))
        sequence.ready_at = sequence.ready_at or now
        if more.final:
            self.complete, sequence.phase = True, Phase.DECODED

    def hand_out(self, duration_s: float, now: float) -> float:
        """Count a chunk that goes to the listener, and return the seconds by which the engine made it too late."""
        late_s = 0.0
        if self.sounding_since is None:
            self.sounding_since = self.dry_at = now
            self.timings.first_chunk_s = now - self.accepted_at
        elif self.live and now > self.dry_at:
            late_s = 0.0 if self.excused else now - self.dry_at
            self.timings.underruns += late_s > 0
            self.dry_at = now  # the silence delays all later audio
        self.excused = False
        self.dry_at += duration_s
        return late_s

    def decodable(self) -> Sequence[SequenceState]:
        """Return the sequences that the language model may work on now.

        A stream's next sequence starts when the sequence before it is decoded: its tokens then still come in time, and
        the stream needs only one slot.
        """
        sequences = self.sequences
        while self.decoded < len(sequences) and sequences[self.decoded].phase is Phase.DECODED:
            self.decoded += 1
        if self.policy is not None:
            return sequences[self.decoded : self.decoded + 1]
        return [sequence for sequence in sequences[self.decoded :] if sequence.phase is not Phase.DECODED]


Taken = tuple[int, ...] | SequenceState | SpeechTokens | Exception | None
"""Checked input that was pushed to a request: text ids, a sequence, or speech tokens; None at the end of the input; an
error if no more can come."""
