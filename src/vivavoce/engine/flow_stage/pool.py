"""Pages of state: keys and values of the rows' past, and what their convolutions read next."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from vivavoce.models.build import Models
from vivavoce.models.flow.memory import KEY_TILE, MemoryShape

SINK = 0
"""The page that positions of padding are written to and nothing is read from; beside it lie the tails of rows
without a past, which are zeros."""


class Shelf:
    """One network's share of every page; all its tensors have the pages as their first dimension.

    A network may run in several passes, such as Euler steps, and each pass over several rows for one row of the
    batch, such as the two of classifier-free guidance.

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
        read_whole: bool = True,
    ) -> None:
        self.sites, self.tail, self.copies, self.per_token = shape.sites, shape.tail, copies, per_token
        self.read_whole = read_whole
        """Whether positions are read, though masked later, that nothing was written to."""
        self.positions = page_tokens * per_token
        self.slabs = passes * shape.sites * copies
        """Pieces of a page in which the positions of one attention's row lie."""
        self.keys = like.new_empty(pages, passes, shape.sites, copies, self.positions, shape.key_channels)
        self.tails = like.new_empty(pages, passes, copies, shape.tail, shape.tail_channels)
        self.tails[SINK : SINK + 1] = 0

    @property
    def page_bytes(self) -> int:
        """What one page takes."""
        return sum(math.prod(tensor.shape[1:]) * tensor.element_size() for tensor in (self.keys, self.tails))


class PagePool:
    """All pages, who holds them, and the three networks' shelves.

    Pages are held by number of holders: streams, prompts and running batches. The tensors are made once; on a CPU
    memory is taken only as pages are used.

    Args:
        state_bytes: what the pages may take in all.
        kernels: pages are read by kernels: the estimator's are one of their key tiles each, and nothing is read past a
            row's end.
    """

    def __init__(self, models: Models, state_bytes: int, *, kernels: bool = False) -> None:
        encoder = models.config.flow.encoder
        self.page_tokens = KEY_TILE // encoder.upsampling if kernels else encoder.chunk

        def shelves(pages: int, device: torch.device) -> tuple[Shelf, Shelf, Shelf]:
            return _shelves(models, pages, self.page_tokens, device, kernels)

        self.total = max(0, state_bytes // sum(one.page_bytes for one in shelves(1, torch.device("meta"))) - 1)
        self.shelves = shelves(self.total + 1 if self.total else 0, models.device)
        """Of the encoder at token rate, of the encoder at mel rate, and of the estimator."""
        self._free = list(range(self.total, SINK, -1))
        self._holders: Counter[int] = Counter()

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def pages_for(self, tokens: int) -> int:
        """Pages that the state of so many tokens takes."""
        return -(-tokens // self.page_tokens)

    def acquire(self, count: int) -> tuple[int, ...]:
        """Take free pages; there must be as many.

        Whoever takes them fills all but the last one before they are read. The last one is zeros: a masked key weighs
        nothing, but nothing times what was left there by an overflow is not a number.
        """
        pages = tuple(self._free.pop() for _ in range(count))
        self._holders.update(pages)
        for shelf in self.shelves if pages else ():
            if shelf.read_whole:
                shelf.keys[pages[-1]].zero_()
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

    def holders(self, page: int) -> int:
        """How many hold the page."""
        return self._holders[page]

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the keys and values of a page's first `tokens`."""
        for shelf in self.shelves:
            kept = tokens * shelf.per_token
            shelf.keys[target, ..., :kept, :].copy_(shelf.keys[source, ..., :kept, :])

    def balanced(self, held: Iterable[Sequence[int]]) -> bool:
        """Whether the books agree with what the holders say they hold, and every other page is free."""
        counted = Counter(page for pages in held for page in pages)
        return counted == self._holders and sorted((*counted, *self._free)) == list(range(1, self.total + 1))


def _shelves(models: Models, pages: int, size: int, device: torch.device, kernels: bool) -> tuple[Shelf, Shelf, Shelf]:
    config = models.config.flow
    like = torch.empty(0, device=device, dtype=models.dtype)
    of_tokens, of_frames = models.flow.encoder.memory_shapes
    up = config.encoder.upsampling
    return (
        Shelf(of_tokens, pages, size, like, read_whole=not kernels),
        Shelf(of_frames, pages, size, like, per_token=up, read_whole=not kernels),
        Shelf(
            models.flow.estimator.memory_shape,
            pages,
            size,
            like,
            per_token=up,
            passes=config.num_steps,
            copies=2,
            read_whole=not kernels,
        ),
    )
