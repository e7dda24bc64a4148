"""From work to rows: what each row computes, what it sees, and which pages it reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vivavoce.checkpoint.config import FlowConfig
from vivavoce.engine.flow_stage.blocks import Block, at_rate, grid_ends, near_equal, of_blocks, whole_ends
from vivavoce.engine.flow_stage.pool import PagePool
from vivavoce.engine.flow_stage.prompts import PromptCache
from vivavoce.engine.flow_stage.state import RowState
from vivavoce.engine.flow_stage.stream import FlowStream
from vivavoce.engine.flow_stage.work import Attention, FlowChunk, PromptWork
from vivavoce.errors import InvalidRequest
from vivavoce.models.flow.matching import MAX_FRAMES

Ends = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Sight:
    """How far each new position of a row sees, in absolute positions.

    tokens: [new tokens]; up_frames and frames: [new frames], of the encoder's upper half and of the estimator;
    lookahead_ends: [new tokens], where the tokens ended that each could hear when it was computed first.
    """

    tokens: Ends
    up_frames: Ends
    frames: Ends
    lookahead_ends: Ends


@dataclass(frozen=True, eq=False)
class Row:
    """One row of a batch.

    tokens: [tokens] int64, from the first new one on, the lookahead included; past: tokens before them, whose state
    is read; end: position after the last new token; blocks: all up to `end`, none where attention has none;
    before: the state that is read; after: the state that is left, its pages held for the row; None: none is kept.
    """

    work: FlowChunk | PromptWork
    tokens: NDArray[np.int64]
    past: int
    end: int
    blocks: tuple[Block, ...]
    sight: Sight
    before: RowState | None = None
    after: RowState | None = None

    @property
    def stream(self) -> FlowStream:
        """Whose row it is."""
        return self.work.stream

    @property
    def new(self) -> int:
        """Tokens that are computed."""
        return self.end - self.past

    def cuts_lookahead(self, lookahead: int) -> bool:
        """Whether some token may hear less than the `lookahead` tokens after it, though the row has them."""
        wanted = np.minimum(np.arange(self.past, self.end) + 1 + lookahead, self.past + len(self.tokens))
        return bool((self.sight.lookahead_ends < wanted).any())


class Planner:
    """Plans rows, and counts how it went."""

    def __init__(self, config: FlowConfig, pool: PagePool, prompts: PromptCache) -> None:
        self._config, self._pool, self._prompts = config, pool, prompts
        self.prompt_hits = self.prompt_misses = self.recomputed = 0

    def check(self, work: FlowChunk | PromptWork) -> None:
        """Refuse what cannot be computed.

        Raises:
            InvalidRequest: the row has more frames than the flow has noise for.
        """
        if isinstance(work, PromptWork):
            tokens, hop = 0, work.stream.prompt_end
        else:
            tokens, hop = len(work.stream.prompt), work.stream.spoken + work.hop
            if work.hop < 1 or len(work.tokens) < hop:
                raise ValueError(f"hop {work.hop} after {work.stream.spoken} of {len(work.tokens)} tokens")
        room = MAX_FRAMES // self._config.encoder.upsampling
        if tokens + hop > room:
            raise InvalidRequest(
                f"text: {hop} speech tokens with the voice's {tokens} are more than the {room} that the flow takes; "
                "split the text or use a shorter recording"
            )

    def prompt(self, work: PromptWork) -> Row | None:
        """The row of a prompt's state; None: it is known, there is nothing to keep, or no room to be made."""
        stream = work.stream
        if stream.voice is None or self._prompts.get(stream.voice):
            return None
        end = stream.prompt_end
        count = self._pool.pages_for(end)
        if not self._prompts.make_room(count):
            return None
        self.prompt_misses += 1
        pages = self._pool.acquire(count)
        return self._blocks(work, stream.prompt, 0, stream.prompt_blocks, None, RowState(end, pages, pages[0]))

    def chunk(self, work: FlowChunk) -> Row:
        """The row of a chunk, with state if there is, or can be, any."""
        stream = work.stream
        row, end = (*stream.prompt, *work.tokens), len(stream.prompt) + stream.spoken + work.hop
        if work.attention is not Attention.BLOCKS:
            tokens = self._window(row, 0, end)
            return Row(work, tokens, 0, end, (), self._whole_sight(work.attention, end, len(tokens)))
        start = stream.blocks[-1].end if stream.blocks else 0
        new = (Block(bound, len(row)) for bound in near_equal(start, end, self._config.encoder.chunk))
        before = stream.known
        after = self._extended(stream, before, end)
        if after is None:
            before = None
        past = before.tokens if before else 0
        if stream.spoken and (after is None or not stream.state):
            self.recomputed += 1
        if before and not stream.state and stream.voice is not None:
            self.prompt_hits += 1
            self._prompts.use(stream.voice)
        return self._blocks(work, row, past, (*stream.blocks, *new), before, after)

    def _blocks(
        self,
        work: FlowChunk | PromptWork,
        row: Sequence[int],
        past: int,
        blocks: tuple[Block, ...],
        before: RowState | None,
        after: RowState | None,
    ) -> Row:
        end = blocks[-1].end
        ends, lookahead_ends = of_blocks(blocks, past, end)
        frames = at_rate(ends, self._config.encoder.upsampling)
        sight = Sight(ends, frames, frames, lookahead_ends)
        return Row(work, self._window(row, past, end), past, end, blocks, sight, before, after)

    def _whole_sight(self, attention: Attention, end: int, lookahead_end: int) -> Sight:
        encoder = self._config.encoder
        frames, lookahead_ends = end * encoder.upsampling, np.full(end, lookahead_end)
        if attention is Attention.FULL:
            return Sight(whole_ends(0, end), whole_ends(0, frames), whole_ends(0, frames), lookahead_ends)
        return Sight(
            grid_ends(0, end, encoder.chunk),
            grid_ends(0, frames, encoder.chunk * encoder.upsampling),
            grid_ends(0, frames, self._config.estimator.chunk),
            lookahead_ends,
        )

    def _window(self, row: Sequence[int], past: int, end: int) -> NDArray[np.int64]:
        # The official code takes ids below zero for the first one, too.
        return np.maximum(np.asarray(row[past : end + self._config.encoder.lookahead], dtype=np.int64), 0)

    def _extended(self, stream: FlowStream, before: RowState | None, end: int) -> RowState | None:
        """The state that goes on from `before` up to token `end`, its pages held; None: there is no room."""
        pool, kept = self._pool, before.pages if before else ()
        partial = None
        if before and before is not stream.state and before.tokens % pool.page_tokens:
            # The last page of a voice's prompt goes on differently in every stream.
            *shared, partial = kept
            kept = tuple(shared)
        pool.hold(before.pages if before else ())
        try:
            count = pool.pages_for(end) - len(kept)
            if not self._prompts.make_room(count):
                return None
            fresh = pool.acquire(count)
            pool.hold(kept)
            if before and partial is not None:
                try:
                    pool.copy(partial, fresh[0], before.tokens % pool.page_tokens)
                except BaseException:
                    pool.release((*kept, *fresh))
                    raise
        finally:
            pool.release(before.pages if before else ())
        own = before.slot if before and before is stream.state else fresh[0]
        return RowState(end, (*kept, *fresh), own)
