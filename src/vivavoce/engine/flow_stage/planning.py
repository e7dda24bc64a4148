"""From chunks to rows: what each row computes, what it sees, and which pages it reads and writes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.checkpoint.config import FlowConfig
from vivavoce.engine.chunk_policy import AttentionMode
from vivavoce.engine.flow_stage.state_pool import PagePool, PromptCache, RowState
from vivavoce.engine.request import Conditioning
from vivavoce.errors import InvalidRequest
from vivavoce.models.flow.model import MAX_FRAMES

Ends = NDArray[np.int64]


class Block(NamedTuple):
    """Positions of a row that are computed once, together, up to `end`.

    lookahead_end: of the tokens that there were then: past it the lookahead of its last tokens heard nothing.
    """

    end: int
    lookahead_end: int


@dataclass(frozen=True, eq=False)
class AttentionSpan:
    """How far each new position of a row sees: a query sees the keys before its end, counted from the row's start.

    tokens: [new tokens]; up_frames and frames: [new frames], of the encoder's upper half and of the estimator;
    lookahead_ends: [new tokens], where the tokens ended that each could hear when it was computed first.
    """

    tokens: Ends
    up_frames: Ends
    frames: Ends
    lookahead_ends: Ends


@dataclass(frozen=True, eq=False)
class VoiceFeatures:
    """A voice on the device. speaker: [bins], projected; mel: [frames, bins] float32, the prompt's."""

    speaker: Tensor
    mel: Tensor


class FlowStream:
    """What the stage knows of one sequence; only the stage changes it."""

    def __init__(self, conditioning: Conditioning, prompts: PromptCache, config: FlowConfig) -> None:
        encoder = config.encoder
        self.conditioning, self.upsampling = conditioning, encoder.upsampling
        self.prompt = conditioning.flow_prompt
        # Tokens that need the text's as their lookahead are left out.
        bounds = near_equal(0, max(0, len(conditioning.flow_tokens) - encoder.lookahead), encoder.chunk)
        self.prompt_blocks = tuple(Block(end, len(self.prompt)) for end in bounds)
        self.blocks = self.prompt_blocks
        """The prompt's and those of all chunks so far: when computed again, they are cut as they were."""
        self.voice = conditioning.flow_key if bounds else None
        """Key of the prompt's state; None: the prompt is too short to have one."""
        self.prompt_end = bounds[-1] if bounds else 0
        """Tokens of the prompt that have a state."""
        self.spoken = 0
        """Speech tokens whose mel was given out."""
        self.state: RowState | None = None
        self.features: VoiceFeatures | None = None
        self.busy = self.closed = False
        self._prompts = prompts

    def frames_of(self, chunk: FlowChunk) -> int:
        """Mel frames from the prompt's first one to a chunk's end."""
        return (len(self.prompt) + self.spoken + chunk.hop) * self.upsampling

    @property
    def known(self) -> RowState | None:
        """The state that its next chunk of blocks continues: its own, or its voice's."""
        return self.state or (None if self.voice is None else self._prompts.states.get(self.voice))


@dataclass(frozen=True, eq=False)
class FlowChunk:
    """The next mel of a stream.

    tokens: all speech tokens of the sequence that may be used, the lookahead included, without the prompt's;
    hop: how many after those already spoken are to become mel, at least 1.
    """

    stream: FlowStream
    tokens: Sequence[int]
    hop: int
    attention: AttentionMode

    @property
    def past_frames(self) -> int:
        """Frames that were computed before and are read as state, as things stand."""
        known = self.stream.known if self.attention is AttentionMode.BLOCKS else None
        return known.tokens * self.stream.upsampling if known else 0

    @property
    def frames(self) -> int:
        """Frames that are computed anew, as things stand."""
        return self.stream.frames_of(self) - self.past_frames


class PromptPrefill:
    """The state of the prompt of a stream's voice, to be kept for all streams of the voice."""

    attention = AttentionMode.BLOCKS
    past_frames = 0

    def __init__(self, stream: FlowStream) -> None:
        self.stream = stream
        self.frames = stream.prompt_end * stream.upsampling
        """Frames of the prompt that the text does not change."""


@dataclass(frozen=True, eq=False)
class FlowRow:
    """One row of a batch.

    tokens: [tokens] int64, from the first new one on, the lookahead included; past: tokens before them, whose state
    is read; end: position after the last new token; blocks: all up to `end`, none where attention has none;
    before: the state that is read; after: the state that is left, its pages held for the row; None: none is kept.
    """

    chunk: FlowChunk | PromptPrefill
    tokens: Ends
    past: int
    end: int
    blocks: tuple[Block, ...]
    span: AttentionSpan
    before: RowState | None = None
    after: RowState | None = None

    @property
    def new(self) -> int:
        """Tokens that are computed."""
        return self.end - self.past

    def first_frame(self, upsampling: int) -> int | None:
        """Where the new frames of the chunk begin in the row; None: it is a prompt's."""
        if isinstance(self.chunk, PromptPrefill):
            return None
        if self.blocks:
            return (self.new - self.chunk.hop) * upsampling
        # As in the official code a prompt ends where its mel does, which may be a frame before its tokens' end.
        stream = self.chunk.stream
        return len(stream.conditioning.flow_mel) + stream.spoken * upsampling


class Planner:
    """Plans rows, and counts how it went.

    prompt_hits: rows that began with the state of their voice's prompt; prompt_misses: prompts that were computed;
    recomputed: chunks whose past was computed again for want of state.
    """

    def __init__(self, config: FlowConfig, pool: PagePool, prompts: PromptCache) -> None:
        self._config, self._pool, self._prompts = config, pool, prompts
        self.prompt_hits = self.prompt_misses = self.recomputed = 0

    def check(self, chunk: FlowChunk | PromptPrefill) -> None:
        """Refuse, with InvalidRequest, a row that has more frames than the flow has noise for."""
        stream = chunk.stream
        if isinstance(chunk, PromptPrefill):
            tokens, hop = 0, stream.prompt_end
        else:
            tokens, hop = len(stream.prompt), stream.spoken + chunk.hop
            if chunk.hop < 1 or len(chunk.tokens) < hop:
                raise ValueError(f"hop {chunk.hop} after {stream.spoken} of {len(chunk.tokens)} tokens")
        room = MAX_FRAMES // self._config.encoder.upsampling
        if tokens + hop > room:
            raise InvalidRequest(
                f"text: {hop} speech tokens with the voice's {tokens} are more than the {room} that the flow takes; "
                "split the text or use a shorter recording"
            )

    def prompt(self, chunk: PromptPrefill) -> FlowRow | None:
        """The row of a prompt's state; None: it is known, there is nothing to keep, or no room to be made."""
        stream = chunk.stream
        if stream.voice is None or stream.voice in self._prompts.states:
            return None
        count = self._pool.pages_for(stream.prompt_end)
        if not self._prompts.make_room(count):
            return None
        self.prompt_misses += 1
        pages = self._pool.acquire(count)
        return self._row(chunk, stream.prompt, stream.prompt_blocks, None, RowState(stream.prompt_end, pages, pages[0]))

    def chunk(self, chunk: FlowChunk) -> FlowRow:
        """The row of a chunk, with state if there is, or can be, any."""
        stream = chunk.stream
        row, end = (*stream.prompt, *chunk.tokens), len(stream.prompt) + stream.spoken + chunk.hop
        if chunk.attention is not AttentionMode.BLOCKS:
            return self._whole_row(chunk, row, end)
        start = stream.blocks[-1].end if stream.blocks else 0
        new = (Block(bound, len(row)) for bound in near_equal(start, end, self._config.encoder.chunk))
        before = stream.known
        after = self._extended(stream, before, end)
        if after is None:
            before = None
        if stream.spoken and (after is None or not stream.state):
            self.recomputed += 1
        if before and not stream.state and stream.voice is not None:
            self.prompt_hits += 1
            self._prompts.states.move_to_end(stream.voice)
        return self._row(chunk, row, (*stream.blocks, *new), before, after)

    def _row(
        self,
        chunk: FlowChunk | PromptPrefill,
        row: Sequence[int],
        blocks: tuple[Block, ...],
        before: RowState | None,
        after: RowState | None,
    ) -> FlowRow:
        past, end = before.tokens if before else 0, blocks[-1].end
        ends, lookahead_ends = block_ends(blocks, past, end)
        up = self._config.encoder.upsampling
        frames = np.repeat(ends * up, up)
        span = AttentionSpan(ends, frames, frames, lookahead_ends)
        return FlowRow(chunk, self._tokens(row, past, end), past, end, blocks, span, before, after)

    def _whole_row(self, chunk: FlowChunk, row: Sequence[int], end: int) -> FlowRow:
        encoder, tokens = self._config.encoder, self._tokens(row, 0, end)
        frames, lookahead_ends = end * encoder.upsampling, np.full(end, len(tokens))
        # One chunk of the grid that holds the whole row is full attention.
        of_tokens, of_up_frames, of_frames = (
            (end, frames, frames)
            if chunk.attention is AttentionMode.FULL
            else (encoder.chunk, encoder.chunk * encoder.upsampling, self._config.estimator.chunk)
        )
        span = AttentionSpan(
            grid_ends(0, end, of_tokens),
            grid_ends(0, frames, of_up_frames),
            grid_ends(0, frames, of_frames),
            lookahead_ends,
        )
        return FlowRow(chunk, tokens, 0, end, (), span)

    def _tokens(self, row: Sequence[int], past: int, end: int) -> Ends:
        # The official code takes ids below zero for the first one, too.
        return np.maximum(np.asarray(row[past : end + self._config.encoder.lookahead], dtype=np.int64), 0)

    def _extended(self, stream: FlowStream, before: RowState | None, end: int) -> RowState | None:
        """The state that goes on from `before` up to token `end`, its pages held; None: there is no room."""
        pool, old = self._pool, before.pages if before else ()
        own = before is not None and before is stream.state
        # The last page of a voice's prompt goes on differently in every stream.
        split = before.tokens % pool.page_tokens if before and not own else 0
        kept = old[:-1] if split else old
        pool.hold(old)
        try:
            count = pool.pages_for(end) - len(kept)
            if not self._prompts.make_room(count):
                return None
            fresh = pool.acquire(count)
            pool.hold(kept)
            try:
                if split:
                    pool.copy(old[-1], fresh[0], split)
            except BaseException:
                pool.release((*kept, *fresh))
                raise
        finally:
            pool.release(old)
        return RowState(end, (*kept, *fresh), before.slot if before and own else fresh[0])


def near_equal(start: int, end: int, most: int) -> tuple[int, ...]:
    """Ends of the fewest blocks of at most `most` positions that make up [start, end); their sizes differ by one.

    A short last block would cost as many steps as a long one, and hear less of what is around it.
    """
    count = -(-(end - start) // most)
    return tuple(start + (end - start) * (place + 1) // count for place in range(count))


def block_ends(blocks: Sequence[Block], start: int, end: int) -> tuple[Ends, Ends]:
    """Ends of its block and of its lookahead, for each position in [start, end) of a row that is cut into `blocks`."""
    # Of a long row only the last blocks are asked for, at every chunk.
    reached = blocks[bisect_right(blocks, start, key=itemgetter(0)) : bisect_left(blocks, end, key=itemgetter(0)) + 1]
    starts = [start, *(block.end for block in reached[:-1]), end]
    ends, lookahead_ends = np.array(reached, dtype=np.int64).T.repeat(np.diff(starts), axis=1)
    return ends, lookahead_ends


def grid_ends(start: int, end: int, chunk: int) -> Ends:
    """The end of each position's chunk in [start, end), chunks being counted from the row's start."""
    return np.minimum((np.arange(start, end) // chunk + 1) * chunk, end)
