"""Plans the rows of flow batches: what a row computes and attends to, and which pages of state it reads and writes.

A row's state has the keys and values of its past, and the last inputs of its convolutions, called tails.
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
from vivavoce.engine.request import Conditioning, FlowSteps
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import Models
from vivavoce.models.flow.model import MAX_FRAMES
from vivavoce.models.layers import MemoryShape
from vivavoce_kernels.layouts import KEY_TILE

Ends = NDArray[np.int64]
SINK = 0
"""The page to which padding is written; its keys are never read. Rows without a past read its tails: zeros."""
_MET_VOICES = 4096
"""The number of voices that `PromptCache.meet` remembers."""


@dataclass(frozen=True, eq=False)
class RowState:
    """The state of a row's first `tokens` tokens: its pages in order, and `slot`, the page that stores its tails.

    The slot is one of the row's own pages, so that no other row writes there.
    """

    tokens: int
    pages: tuple[int, ...]
    slot: int


class BufferPool:
    """One network's part of every page; a page has room for `page_tokens` tokens, each with `per_token` positions.

    A network may run in several passes, such as Euler steps, and may compute each row of the batch several times in a
    pass (copies), such as twice for classifier-free guidance. keys: [pages, passes, sites, copies, positions, key
    channels]; tails: [pages, passes, copies, tail, tail channels].
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
        """Number of slabs in a page; a slab has the positions of one attention layer in one pass and copy."""
        self.keys = like.new_empty(pages, passes, shape.sites, copies, self.positions, shape.key_channels)
        self.tails = like.new_empty(pages, passes, copies, shape.tail, shape.tail_channels)
        self.tails[SINK : SINK + 1] = 0
        self.page_bytes = sum(math.prod(one.shape[1:]) * one.element_size() for one in (self.keys, self.tails))


class PagePool:
    """All pages of state, allocated once within `state_bytes`. Each page counts its holders: streams, prompts, batches.

    kernels: whether kernels read the pages; a page is then one key tile of the estimator, read up to a row's end only.
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
        """Take `count` free pages, which must exist. The caller fills all but the last page before they are read.

        The last page is set to zeros: masked keys have the weight 0, but 0 times an infinite or NaN leftover is NaN.
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
    """The states of voices' prompts, which all streams of a voice share; the least recently used are dropped first."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self.states: OrderedDict[bytes, RowState] = OrderedDict()
        self.features: dict[bytes, VoiceFeatures] = {}
        """Features of voices that have a state."""
        self._met: OrderedDict[bytes, None] = OrderedDict()

    def meet(self, voice: bytes) -> bool:
        """Note that a stream will use this voice's prompt; return True if no earlier stream of it is remembered."""
        is_new = voice not in self._met
        self._met[voice] = None
        self._met.move_to_end(voice)
        if len(self._met) > _MET_VOICES:
            self._met.popitem(last=False)
        return is_new

    def add(self, voice: bytes, state: RowState) -> None:
        """Store a state and its pages. If the voice already has a state, release the new state's pages instead."""
        if self.states.setdefault(voice, state) is not state:
            self._pool.release(state.pages)

    def unused(self) -> list[bytes]:
        holders = self._pool.holders
        return [voice for voice, state in self.states.items() if all(holders[page] == 1 for page in state.pages)]

    def could_free(self) -> int:
        return sum(len(self.states[voice].pages) for voice in self.unused())

    def acquire(self, count: int) -> tuple[int, ...] | None:
        """Take `count` pages. If too few are free, drop prompts that no stream uses, oldest first. If even that is not
        enough, drop nothing, and return None."""
        pool = self._pool
        if len(pool.free) < count and len(pool.free) + self.could_free() < count:
            return None
        while len(pool.free) < count:
            self.drop(self.unused()[0])
        return pool.acquire(count)

    def drop(self, voice: bytes) -> None:
        self._pool.release(self.states.pop(voice).pages)
        self.features.pop(voice, None)


class Block(NamedTuple):
    """Successive tokens of a row that are computed together; end: the position after the last of these tokens.

    lookahead_end: the number of the row's tokens that were known at the first computation; the lookahead ends there.
    """

    end: int
    lookahead_end: int


@dataclass(frozen=True, eq=False)
class AttentionSpan:
    """The end of the keys that each new position of a row attends to, counted from the row's start.

    tokens: [new tokens]; up_frames and frames: [new frames], for the encoder's upper half and for the estimator;
    lookahead_ends: [new tokens], the number of tokens that were known when each token was first computed.
    """

    tokens: Ends
    up_frames: Ends
    frames: Ends
    lookahead_ends: Ends


@dataclass(frozen=True, eq=False)
class VoiceFeatures:
    """A voice's features on the device. speaker: [bins], projected; mel: [frames, bins] float32, of the prompt."""

    speaker: Tensor
    mel: Tensor


class FlowStream:
    """The state of one sequence in the flow stage. Only the stage changes it."""

    def __init__(self, conditioning: Conditioning, prompts: PromptCache, config: FlowConfig, steps: FlowSteps) -> None:
        encoder, self.steps = config.encoder, steps
        self.conditioning, self.upsampling = conditioning, encoder.upsampling
        self.prompt = conditioning.flow_prompt
        # The prompt's last tokens are left out: their lookahead is speech that does not exist yet.
        bounds = near_equal(0, max(0, len(conditioning.flow_tokens) - encoder.lookahead), encoder.chunk)
        self.prompt_blocks = tuple(Block(end, len(self.prompt)) for end in bounds)
        self.blocks = self.prompt_blocks
        """The blocks of the prompt and of all chunks so far. A past that is computed again has the same blocks."""
        self.voice = conditioning.flow_key + steps.value.encode() if bounds else None
        """Key of the prompt's state; None if the prompt is too short to have a state."""
        self.prompt_end = bounds[-1] if bounds else 0
        """Number of the prompt's tokens that the prompt's state covers."""
        self.spoken = 0
        """Number of speech tokens whose mel was returned."""
        self.state: RowState | None = None
        self.features: VoiceFeatures | None = None
        self.busy = self.closed = False
        self.prompts = prompts

    def meet(self) -> bool:
        """`PromptCache.meet` for the stream's voice, which must not be None."""
        assert self.voice is not None
        return self.prompts.meet(self.voice)

    @property
    def known(self) -> RowState | None:
        return self.state or (None if self.voice is None else self.prompts.states.get(self.voice))


@dataclass(eq=False)
class FlowRow:
    """One row of a batch: the next mel of a stream, or (hop 0) the state of a prompt, for all streams of its voice.

    speech: the sequence's speech tokens that may be read, with the lookahead and without the prompt; hop: number of
    tokens, after the spoken tokens, that become mel. `FlowStage.start` fills in the other fields.
    """

    stream: Any
    """A `FlowStream`, or a `FlowStreamV1` of CosyVoice 1."""
    speech: Sequence[int] = ()
    hop: int = 0
    attention: AttentionMode = AttentionMode.BLOCKS
    frames: int = 0
    """Number of mel frames to compute."""
    past_frames: int = 0
    """Number of mel frames that were computed before; their state is read."""
    tokens: Ends = field(init=False)
    """[tokens] int64, from the first new token on, the lookahead included."""
    past: int = 0
    """Number of tokens before the first new token; their state is read."""
    end: int = 0
    """Position after the last new token."""
    blocks: tuple[Block, ...] = ()
    """All blocks up to `end`; empty unless `attention` is `BLOCKS`."""
    span: AttentionSpan = field(init=False)
    before: RowState | None = None
    """State that the row continues; None if the row starts at its first token."""
    after: RowState | None = None
    """State after the row; the row holds its pages. None if no state is kept."""

    @property
    def new(self) -> int:
        return self.end - self.past

    def first_frame(self, upsampling: int) -> int | None:
        """Return the index of the chunk's first frame among the computed frames; None if the row is a prompt."""
        if not self.hop:
            return None
        if self.blocks:
            return (self.end - self.past - self.hop) * upsampling
        # The official code ends a prompt where its mel ends, which may be a frame before the end of its tokens.
        stream = self.stream
        return len(stream.conditioning.flow_mel) + stream.spoken * upsampling


class Planner:
    """Plans rows; recomputed: number of chunks that needed their past computed again, because its state was missing."""

    def __init__(self, config: FlowConfig, pool: PagePool, prompts: PromptCache) -> None:
        self._config, self._pool, self._prompts = config, pool, prompts
        self.recomputed = 0

    def check(self, row: FlowRow) -> None:
        """Raise InvalidRequest for a row that has more frames than the flow has noise for."""
        stream = row.stream
        if row.hop == 0 and not row.speech:
            tokens, hop = 0, stream.prompt_end
        else:
            tokens, hop = len(stream.prompt), stream.spoken + row.hop
            if row.hop < 1 or len(row.speech) < hop:
                raise ValueError(f"hop {row.hop} after {stream.spoken} tokens needs more than the {len(row.speech)}")
        room = MAX_FRAMES // self._config.encoder.upsampling
        if tokens + hop > room:
            raise InvalidRequest(
                f"text: {hop} speech tokens with the voice's {tokens} are more than the {room} that the flow takes; "
                "split the text or use a shorter recording"
            )

    def plan(self, row: FlowRow) -> bool:
        """Plan the row's computation, with state from earlier chunks if possible; return True if there is work.

        There is no work if the row is a prompt, and its state already exists, the prompt is too short to have a state,
        or too few pages are free.
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
        # The official code treats ids below zero as the first id.
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
        # Full attention is a grid with one chunk, which is as long as the whole row.
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
        """Return the state that extends `before` up to token `end`, with acquired pages; None if there is no room."""
        pool, old = self._pool, before.pages if before else ()
        own = before is not None and before is stream.state
        # Each stream continues the last page of a voice's prompt with its own tokens, so it needs a copy.
        split = before.tokens % pool.page_tokens if before and not own else 0
        kept = old[:-1] if split else old
        pool.holders.update(old)  # `acquire` may drop the prompt that holds these pages
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
    """Return the ends of the fewest blocks of at most `most` positions that cover [start, end); sizes differ by ≤ 1.

    A short last block would cost as many steps as a long one, and attend to less context.
    """
    count = -(-(end - start) // most)
    return tuple(start + (end - start) * (place + 1) // count for place in range(count))


def block_ends(blocks: Sequence[Block], start: int, end: int) -> tuple[Ends, Ends]:
    """Return the end of the block and of the lookahead, for each position in [start, end) of a row of `blocks`."""
    # Only the last blocks of a long row are needed for a chunk.
    reached = blocks[bisect_right(blocks, start, key=itemgetter(0)) : bisect_left(blocks, end, key=itemgetter(0)) + 1]
    starts = [start, *(block.end for block in reached[:-1]), end]
    ends, lookahead_ends = np.array(reached, dtype=np.int64).T.repeat(np.diff(starts), axis=1)
    return ends, lookahead_ends


def grid_ends(start: int, end: int, chunk: int) -> Ends:
    """Return the end of each position's chunk in [start, end); chunks are counted from the row's start."""
    return np.minimum((np.arange(start, end) // chunk + 1) * chunk, end)
