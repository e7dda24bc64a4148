"""From chunks to rows: what each row computes and sees, and the pages of state that it reads and writes.

State is keys and values of the rows' past, and the inputs that their convolutions read next.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.checkpoint.config import FlowConfig
from vivavoce.engine.chunk_policy import AttentionMode
from vivavoce.engine.request import Conditioning
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import Models
from vivavoce.models.flow.model import MAX_FRAMES
from vivavoce.models.kernels.layouts import KEY_TILE
from vivavoce.models.layers import MemoryShape

Ends = NDArray[np.int64]
SINK = 0
"""The page that positions of padding are written to and nothing is read from; beside it lie the tails of rows
without a past, which are zeros."""


@dataclass(frozen=True, eq=False)
class RowState:
    """The state of a row's first `tokens`: its pages in order, and `slot`, the page beside which its tails lie.

    The slot is one of the row's own pages, so that no other row writes there.
    """

    tokens: int
    pages: tuple[int, ...]
    slot: int


class BufferPool:
    """One network's share of every page; a page holds `page_tokens`, each of `per_token` positions.

    A network may run in several passes, such as Euler steps, and each pass over several rows for one row of the
    batch (copies), such as the two of classifier-free guidance.
    keys: [pages, passes, sites, copies, positions, key channels]; tails: [pages, passes, copies, tail, tail channels].
    """

    def __init__(
        self,
        shape: MemoryShape,
        pages: int,
        page_tokens: int,
        like: Tensor,
        *,
        per_token: int = 1,
        passes: int = 1,
        copies: int = 1,
    ) -> None:
        self.sites, self.tail, self.copies, self.per_token = shape.sites, shape.tail, copies, per_token
        self.positions = page_tokens * per_token
        self.slabs = passes * shape.sites * copies
        """Pieces of a page in which the positions of one attention's row lie."""
        self.keys = like.new_empty(pages, passes, shape.sites, copies, self.positions, shape.key_channels)
        self.tails = like.new_empty(pages, passes, copies, shape.tail, shape.tail_channels)
        self.tails[SINK : SINK + 1] = 0
        self.page_bytes = sum(math.prod(one.shape[1:]) * one.element_size() for one in (self.keys, self.tails))


class PagePool:
    """All pages, made once of `state_bytes`, and the number of their holders: streams, prompts and running batches.

    kernels: pages are read by kernels: the estimator's are one of their key tiles each, and nothing is read past a
    row's end.
    """

    def __init__(self, models: Models, state_bytes: int, *, kernels: bool = False) -> None:
        encoder = models.config.flow.encoder
        self.page_tokens = KEY_TILE // encoder.upsampling if kernels else encoder.chunk
        self._reads_whole_pages = not kernels
        page_bytes = sum(one.page_bytes for one in self._buffers(models, 1, torch.device("meta")))
        self.total = max(0, state_bytes // page_bytes - 1)
        self.buffers = self._buffers(models, self.total + 1 if self.total else 0, models.device)
        """Buffers of the encoder at token rate, of the encoder at mel rate, and of the estimator."""
        self.free = list(range(self.total, SINK, -1))
        self.holders: Counter[int] = Counter()

    def _buffers(self, models: Models, pages: int, device: torch.device) -> tuple[BufferPool, BufferPool, BufferPool]:
        flow, size = models.config.flow, self.page_tokens
        up = flow.encoder.upsampling
        like = torch.empty(0, device=device, dtype=models.dtype)
        of_tokens, of_frames = models.flow.encoder.memory_shapes
        estimator = models.flow.estimator.memory_shape
        return (
            BufferPool(of_tokens, pages, size, like),
            BufferPool(of_frames, pages, size, like, per_token=up),
            BufferPool(estimator, pages, size, like, per_token=up, passes=flow.num_steps, copies=2),
        )

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)

    def acquire(self, count: int) -> tuple[int, ...]:
        """Take free pages; there must be as many. The holder fills all but the last one before they are read.

        The last one is zeros: a masked key weighs nothing, but nothing times what was left there by an overflow is not
        a number.
        """
        pages = tuple(self.free.pop() for _ in range(count))
        self.holders.update(pages)
        if pages and self._reads_whole_pages:
            for buffer in self.buffers:
                buffer.keys[pages[-1]].zero_()
        return pages

    def release(self, pages: Iterable[int]) -> None:
        for page in pages:
            self.holders[page] -= 1
            if self.holders[page] == 0:
                del self.holders[page]
                self.free.append(page)

    def copy(self, source: int, target: int, tokens: int) -> None:
        for buffer in self.buffers:
            kept = tokens * buffer.per_token
            buffer.keys[target, ..., :kept, :].copy_(buffer.keys[source, ..., :kept, :])


class PromptCache:
    """States of voices' prompts, shared by all streams of a voice; the least recently used ones give way."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self.states: OrderedDict[bytes, RowState] = OrderedDict()

    def add(self, voice: bytes, state: RowState) -> None:
        """Take over a state that its maker holds; one that is here already is kept in its stead."""
        if self.states.setdefault(voice, state) is not state:
            self._pool.release(state.pages)

    def unused(self) -> list[bytes]:
        holders = self._pool.holders
        return [voice for voice, state in self.states.items() if all(holders[page] == 1 for page in state.pages)]

    def could_free(self) -> int:
        return sum(len(self.states[voice].pages) for voice in self.unused())

    def acquire(self, count: int) -> tuple[int, ...] | None:
        """Take this many pages. Prompts that no stream uses are dropped for them, oldest first; None: not even then
        would there be enough, and nothing is dropped.
        """
        pool = self._pool
        if len(pool.free) < count and len(pool.free) + self.could_free() < count:
            return None
        while len(pool.free) < count:
            self.drop(self.unused()[0])
        return pool.acquire(count)

    def drop(self, voice: bytes) -> None:
        self._pool.release(self.states.pop(voice).pages)


class Block(NamedTuple):
    """Token positions of a row that are computed together, once; they end before `end`.

    lookahead_end: number of tokens that were known at that time. The lookahead of the last tokens sees only those.
    """

    end: int
    lookahead_end: int


@dataclass(frozen=True, eq=False)
class AttentionSpan:
    """The reach of each new position of a row: a query sees the keys before its end, counted from the row's start.

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
    """State of one sequence in the flow stage. Only the stage changes it."""

    def __init__(self, conditioning: Conditioning, prompts: PromptCache, config: FlowConfig) -> None:
        encoder = config.encoder
        self.conditioning, self.upsampling = conditioning, encoder.upsampling
        self.prompt = conditioning.flow_prompt
        # Without the last tokens of the prompt, whose lookahead is speech that is not generated yet.
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

    @property
    def known(self) -> RowState | None:
        return self.state or (None if self.voice is None else self._prompts.states.get(self.voice))


@dataclass(eq=False)
class FlowRow:
    """One row of a batch: the next mel of a stream, or (hop 0) the state of its voice's prompt, for all its streams.

    speech: all speech tokens of the sequence that may be used, the lookahead included, without the prompt's; hop: the
    number of tokens after those already spoken that become mel. The other fields are planned by `FlowStage.start`.
    """

    stream: Any
    """A `FlowStream`, or CosyVoice 1's `FlowStreamV1`."""
    speech: Sequence[int] = ()
    hop: int = 0
    attention: AttentionMode = AttentionMode.BLOCKS
    frames: int = 0
    """Number of mel frames to compute."""
    past_frames: int = 0
    """Number of mel frames that were computed before, whose state is read."""
    tokens: Ends = field(init=False)
    """[tokens] int64, from the first new one on, the lookahead included."""
    past: int = 0
    """Number of tokens before the first new one, whose state is read."""
    end: int = 0
    """Position after the last new token."""
    blocks: tuple[Block, ...] = ()
    """All blocks up to `end`; empty unless `attention` is `BLOCKS`."""
    span: AttentionSpan = field(init=False)
    before: RowState | None = None
    """State that the row continues; None: it starts at the first token."""
    after: RowState | None = None
    """State after the row, whose pages are held for it; None: no state is kept."""

    @property
    def new(self) -> int:
        return self.end - self.past

    def first_frame(self, upsampling: int) -> int | None:
        """The first of the computed frames that belongs to the chunk; None: the row is a prompt."""
        if not self.hop:
            return None
        if self.blocks:
            return (self.end - self.past - self.hop) * upsampling
        # The official code ends a prompt where its mel ends, which may be a frame before its tokens' end.
        stream = self.stream
        return len(stream.conditioning.flow_mel) + stream.spoken * upsampling


class Planner:
    """Plans rows; recomputed: chunks so far whose past was computed again for want of state."""

    def __init__(self, config: FlowConfig, pool: PagePool, prompts: PromptCache) -> None:
        self._config, self._pool, self._prompts = config, pool, prompts
        self.recomputed = 0

    def check(self, row: FlowRow) -> None:
        """Refuse, with InvalidRequest, a row that has more frames than the flow has noise for."""
        stream = row.stream
        if row.hop == 0 and not row.speech:
            tokens, hop = 0, stream.prompt_end
        else:
            tokens, hop = len(stream.prompt), stream.spoken + row.hop
            if row.hop < 1 or len(row.speech) < hop:
                raise ValueError(f"hop {row.hop} after {stream.spoken} of {len(row.speech)} tokens")
        room = MAX_FRAMES // self._config.encoder.upsampling
        if tokens + hop > room:
            raise InvalidRequest(
                f"text: {hop} speech tokens with the voice's {tokens} are more than the {room} that the flow takes; "
                "split the text or use a shorter recording"
            )

    def plan(self, row: FlowRow) -> bool:
        """Fill in what the row computes, with state if there is, or can be, any.

        False: a prompt's state is known, there is nothing to keep, or no room to be made.
        """
        stream, encoder = row.stream, self._config.encoder
        row.past, row.before, row.after = 0, None, None
        if not row.hop:
            if stream.voice is None or stream.voice in self._prompts.states:
                return False
            pages = self._prompts.acquire(self._pool.pages_for(stream.prompt_end))
            if pages is None:
                return False
            row.blocks, row.end = stream.prompt_blocks, stream.prompt_end
            row.after = RowState(stream.prompt_end, pages, pages[0])
        else:
            row.end = len(stream.prompt) + stream.spoken + row.hop
            if row.attention is AttentionMode.BLOCKS:
                before, start = stream.known, stream.blocks[-1].end if stream.blocks else 0
                heard = len(stream.prompt) + len(row.speech)
                new = (Block(bound, heard) for bound in near_equal(start, row.end, encoder.chunk))
                row.blocks, row.after = (*stream.blocks, *new), self._extended(stream, before, row.end)
                if row.after is not None and before is not None:
                    row.before, row.past = before, before.tokens
                if stream.spoken and (row.after is None or not stream.state):
                    self.recomputed += 1
                if row.before and not stream.state and stream.voice is not None:
                    self._prompts.states.move_to_end(stream.voice)
        known = (*stream.prompt, *row.speech)[row.past : row.end + encoder.lookahead]
        # The official code takes ids below zero for the first one, too.
        row.tokens = np.maximum(np.asarray(known, dtype=np.int64), 0)
        row.frames, row.past_frames = (row.end - row.past) * encoder.upsampling, row.past * encoder.upsampling
        if row.blocks:
            ends, lookahead_ends = block_ends(row.blocks, row.past, row.end)
            frames = np.repeat(ends * encoder.upsampling, encoder.upsampling)
            row.span = AttentionSpan(ends, frames, frames, lookahead_ends)
        else:
            row.span = self._whole_span(row)
        return True

    def _whole_span(self, row: FlowRow) -> AttentionSpan:
        encoder, end = self._config.encoder, row.end
        frames = end * encoder.upsampling
        # One chunk of the grid that holds the whole row is full attention.
        of_tokens, of_up_frames, of_frames = (
            (end, frames, frames)
            if row.attention is AttentionMode.FULL
            else (encoder.chunk, encoder.chunk * encoder.upsampling, self._config.estimator.chunk)
        )
        return AttentionSpan(
            grid_ends(0, end, of_tokens),
            grid_ends(0, frames, of_up_frames),
            grid_ends(0, frames, of_frames),
            np.full(end, len(row.tokens)),
        )

    def _extended(self, stream: FlowStream, before: RowState | None, end: int) -> RowState | None:
        """The state that goes on from `before` up to token `end`, its pages held; None: the pool has no room."""
        pool, old = self._pool, before.pages if before else ()
        own = before is not None and before is stream.state
        # Each stream continues the last page of a voice's prompt with its own tokens, so it needs a copy.
        split = before.tokens % pool.page_tokens if before and not own else 0
        kept = old[:-1] if split else old
        pool.holders.update(old)  # making room may drop the prompt that they belong to
        try:
            fresh = self._prompts.acquire(pool.pages_for(end) - len(kept))
            if fresh and split:
                try:
                    pool.copy(old[-1], fresh[0], split)
                except BaseException:
                    pool.release(fresh)
                    raise
        except BaseException:
            pool.release(old)
            raise
        if fresh is None:
            pool.release(old)
            return None
        pool.release(old[len(kept) :])
        return RowState(end, (*kept, *fresh), before.slot if before and own else fresh[0])


def near_equal(start: int, end: int, most: int) -> tuple[int, ...]:
    """Ends of the fewest blocks of at most `most` positions that make up [start, end); their sizes differ by one.

    A short last block would cost as many steps as a long one, and hear less of what is around it.
    """
    count = -(-(end - start) // most)
    return tuple(start + (end - start) * (place + 1) // count for place in range(count))


def block_ends(blocks: Sequence[Block], start: int, end: int) -> tuple[Ends, Ends]:
    """Ends of its block and of its lookahead, for each position in [start, end) of a row that is cut into `blocks`."""
    # Each chunk asks for the last blocks of a long row only.
    reached = blocks[bisect_right(blocks, start, key=itemgetter(0)) : bisect_left(blocks, end, key=itemgetter(0)) + 1]
    starts = [start, *(block.end for block in reached[:-1]), end]
    ends, lookahead_ends = np.array(reached, dtype=np.int64).T.repeat(np.diff(starts), axis=1)
    return ends, lookahead_ends


def grid_ends(start: int, end: int, chunk: int) -> Ends:
    """The end of each position's chunk in [start, end), chunks being counted from the row's start."""
    return np.minimum((np.arange(start, end) // chunk + 1) * chunk, end)
