"""Pages of state: keys and values of the rows' past, and what their convolutions read next; who holds which."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from vivavoce.models.build import Models
from vivavoce.models.kernels.layouts import KEY_TILE
from vivavoce.models.layers import MemoryShape

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
        """Of the encoder at token rate, of the encoder at mel rate, and of the estimator."""
        self._free = list(range(self.total, SINK, -1))
        self._holders: Counter[int] = Counter()

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

    @property
    def free(self) -> int:
        """Pages without a holder."""
        return len(self._free)

    def pages_for(self, tokens: int) -> int:
        """Pages that the state of this many tokens takes."""
        return -(-tokens // self.page_tokens)

    def acquire(self, count: int) -> tuple[int, ...]:
        """Take free pages; there must be as many. The holder fills all but the last one before they are read.

        The last one is zeros: a masked key weighs nothing, but nothing times what was left there by an overflow is not
        a number.
        """
        pages = tuple(self._free.pop() for _ in range(count))
        self._holders.update(pages)
        if pages and self._reads_whole_pages:
            for buffer in self.buffers:
                buffer.keys[pages[-1]].zero_()
        return pages

    def hold(self, pages: Iterable[int]) -> None:
        """One more holder for each of the pages."""
        self._holders.update(pages)

    def release(self, pages: Iterable[int]) -> None:
        """One holder less for each of the pages; pages without any are free."""
        for page in pages:
            self._holders[page] -= 1
            if self._holders[page] == 0:
                del self._holders[page]
                self._free.append(page)

    def unshared(self, pages: Iterable[int]) -> bool:
        """Whether each of the pages has one holder only."""
        return all(self._holders[page] == 1 for page in pages)

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the keys and values of a page's first `tokens`."""
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
        """Voices that no stream uses, the least recently used first."""
        return [voice for voice, state in self.states.items() if self._pool.unshared(state.pages)]

    def could_free(self) -> int:
        """Pages of the prompts that no stream uses."""
        return sum(len(self.states[voice].pages) for voice in self.unused())

    def make_room(self, pages: int) -> bool:
        """Drop prompts that no stream uses, oldest first, until this many pages are free.

        False: not enough could be; then nothing is dropped.
        """
        if self._pool.free < pages and self._pool.free + self.could_free() < pages:
            return False
        while self._pool.free < pages:
            self.drop(self.unused()[0])
        return True

    def drop(self, voice: bytes) -> None:
        """Forget a voice's state; streams that hold its pages keep them."""
        self._pool.release(self.states.pop(voice).pages)
