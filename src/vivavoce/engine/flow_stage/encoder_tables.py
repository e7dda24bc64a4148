"""The numbers of a packed batch of the token encoder: worked out on the host, copied to the device as one.

Batches are padded to the sizes of a few buckets, so that one recording serves many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.engine.flow_stage.buckets import (
    MAX_PACKED,
    MOST_PAGES,
    Numbers,
    common_rows,
    cut_tiles,
    most_tiles,
    with_room,
)
from vivavoce.engine.flow_stage.planning import Row
from vivavoce.engine.flow_stage.pool import SINK
from vivavoce.models.flow.packed_encoder_batch import EncoderTables

TOKEN_BUCKETS = (32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
_TOKENS_PER_ROW = 8


@dataclass(frozen=True)
class EncoderBucket:
    """A size of batch: packed tokens, rows, and whether rows have pages."""

    tokens: int
    rows: int
    paged: bool

    @classmethod
    def common(cls, tokens: int, paged: bool) -> EncoderBucket:
        """The one of `TOKEN_BUCKETS` with room for so many tokens."""
        return cls(tokens, common_rows(tokens, _TOKENS_PER_ROW), paged)

    @classmethod
    def of(cls, tokens: int, rows: int, paged: bool) -> EncoderBucket:
        """The smallest common one with room for so many tokens and rows; past the largest, one of its own."""
        return cls(*with_room(tokens, rows, TOKEN_BUCKETS, _TOKENS_PER_ROW), paged)

    @property
    def is_common(self) -> bool:
        """Whether others will need it, too."""
        return self.tokens in TOKEN_BUCKETS and self == EncoderBucket.common(self.tokens, self.paged)


@dataclass(frozen=True)
class EncoderShape:
    """How the tables of a bucket lie in one tensor.

    queries: positions of an attention program; lookahead, upsampling: the encoder's.

    Raises:
        ValueError: more than `MAX_PACKED` frames.
    """

    bucket: EncoderBucket
    queries: int
    lookahead: int
    upsampling: int

    def __post_init__(self) -> None:
        if self.frames > MAX_PACKED:
            raise ValueError(
                f"a batch of {self.bucket.tokens} tokens has {self.frames} frames, at most {MAX_PACKED} go together; "
                "split it"
            )

    @property
    def frames(self) -> int:
        """Packed frames of the bucket."""
        return self.bucket.tokens * self.upsampling

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of the tables, in `EncoderTables`' order."""
        tokens, rows = self.bucket.tokens, self.bucket.rows
        pages = MOST_PAGES if self.bucket.paged else 0
        by_token, by_row = ((tokens,),) * 3, ((rows,),) * 4
        tiles = tuple((most_tiles(size, rows, self.queries), 3) for size in (tokens, self.frames))
        return ((tokens, 1 + self.lookahead), *by_token, (self.frames,), *by_row, *tiles, (rows, pages))

    @cached_property
    def sizes(self) -> list[int]:
        """Numbers of each table."""
        return [prod(shape) for shape in self.shapes]

    def views(self, flat: Tensor) -> EncoderTables:
        """flat: [numbers] int32 on the device."""
        parts = torch.split(flat, self.sizes)
        return EncoderTables(*(part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)))

    def numbers(self, rows: Sequence[Row]) -> Numbers:
        """What the tables hold for `rows`, which fit; none: a batch of padding."""
        flat = np.zeros(sum(self.sizes), dtype=np.int32)
        starts = [0, *accumulate(self.sizes)]
        tables = [
            flat[start : start + size].reshape(shape)
            for start, size, shape in zip(starts, self.sizes, self.shapes, strict=False)
        ]
        ids, row, local, ends, frame_ends, first, length, past, slots, tiles, frame_tiles, pages = tables
        new, count = np.array([one.new for one in rows], dtype=np.int64), len(rows)
        used, up = int(new.sum()), self.upsampling
        first[:count], length[:count], past[:count] = np.cumsum(new) - new, new, [one.past for one in rows]
        slots[:count] = [one.before.slot if one.before else SINK for one in rows]
        row[:used] = np.repeat(np.arange(count), new)
        local[:used] = np.arange(used) - np.repeat(first[:count], new)
        local[used:] = -1
        ids[:] = -1
        if rows:
            heard = np.concatenate([one.sight.lookahead_ends for one in rows]) - np.repeat(past[:count], new)
            ids[:used] = self._windows(rows, row[:used], local[:used], heard)
            # Padding ends nowhere: attention makes zeros of it.
            ends[:used] = np.concatenate([one.sight.tokens for one in rows])
            frame_ends[: used * up] = np.concatenate([one.sight.up_frames for one in rows])
        cut_tiles(tiles, new, self.bucket.tokens, self.queries)
        cut_tiles(frame_tiles, new * up, self.frames, self.queries)
        if self.bucket.paged:
            self._list(pages, [one.after.pages for one in rows if one.after])
        return flat

    def _list(self, pages: Numbers, held: Sequence[Sequence[int]]) -> None:
        counts = np.array([len(one) for one in held], dtype=np.int64)
        row, total = np.repeat(np.arange(len(held)), counts), int(counts.sum())
        place = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        pages[row, place] = np.fromiter(chain.from_iterable(held), dtype=np.int32, count=total)

    def _windows(
        self, rows: Sequence[Row], row: Numbers, local: Numbers, lookahead_ends: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Ids that each token hears: [tokens, 1 + lookahead]. Rows lie end to end, each with room for its lookahead;
        a token hears nothing past its lookahead's end."""
        nothing = np.full(self.lookahead, -1, dtype=np.int64)
        parts: list[NDArray[np.int64]] = []
        for one in rows:
            parts += (one.tokens, nothing[: one.new + self.lookahead - len(one.tokens)])
        begin, window = (np.arange(len(row)) + row * self.lookahead)[:, None], np.arange(1 + self.lookahead)
        heard: NDArray[np.bool_] = local[:, None] + window < lookahead_ends[:, None]
        return np.where(heard, np.concatenate(parts)[begin + window], -1)
