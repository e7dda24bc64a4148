"""The token encoder over rows one by one, so that nobody's numbers depend on anybody else's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vivavoce.engine.flow_stage.arrays import upload
from vivavoce.engine.flow_stage.encoding import EncodedRows
from vivavoce.engine.flow_stage.paged_memory import Geometry, PassMemory, ShelfMemory
from vivavoce.engine.flow_stage.planning import Row
from vivavoce.engine.flow_stage.pool import SINK, PagePool, Shelf
from vivavoce.engine.flow_stage.row_memory import RowMemory
from vivavoce.models.build import Models
from vivavoce.models.layers.masks import keys_before


def encode_alone(models: Models, pool: PagePool, rows: Sequence[Row]) -> EncodedRows:
    """One row after the other, and of each one block after the other; see `encoding.encode_together`.

    So every product has the same shape whoever else is in the batch, and whether the row's past was kept or is
    computed again: libraries choose another order of sums for another shape.
    """
    parts: list[Tensor] = []
    memories: list[tuple[ShelfMemory, Tensor]] = []
    starts, place = [], 0
    for row in rows:
        mu, kept = _encode_blocks(models, pool, row) if row.bounds else (_encode_whole(models, row), [])
        parts.append(mu)
        memories.extend(kept)
        starts.append(place)
        place += len(mu)
    slots = None
    if rows[0].after:
        pairs = [(row.before.slot if row.before else SINK, row.after.slot) for row in rows if row.after]
        (slots,) = upload((np.array(pairs, dtype=np.int64).T.copy(),), models.device)
    return EncodedRows(torch.cat(parts), starts, slots, tuple(memories))


def _encode_whole(models: Models, row: Row) -> Tensor:
    """A row that sees what its attention says and leaves nothing: [frames, bins]."""
    flow, up = models.flow, models.config.flow.encoder.upsampling
    tokens, token_ends, frame_ends = upload((row.tokens, row.sight.tokens, row.sight.up_frames), models.device)
    full = bool((row.sight.tokens == row.end).all())
    masks = (
        (None, None) if full else (keys_before(token_ends[None], row.end), keys_before(frame_ends[None], row.end * up))
    )
    return flow.encoder.encode(flow.token_embedding(tokens)[None], _length(tokens), row.new, masks)[0]


def _encode_blocks(models: Models, pool: PagePool, row: Row) -> tuple[Tensor, list[tuple[ShelfMemory, Tensor]]]:
    """New frames [frames, bins], and what is to be committed beside which page."""
    flow, lookahead = models.flow, models.config.flow.encoder.lookahead
    tokens, pages, before, after = upload(
        (
            row.tokens,
            np.array(row.after.pages if row.after else (), dtype=np.int64),
            np.array([row.before.slot if row.before else SINK]),
            np.array([row.after.slot if row.after else SINK]),
        ),
        models.device,
    )
    like = flow.token_embedding.weight
    shelves = pool.shelves[:2] if row.after else ()
    of_tokens, of_frames = (
        [RowMemory.of_pages(shelf, pages, row.past * shelf.per_token, before) for shelf in shelves]
        if shelves
        else [RowMemory.empty(shape, like) for shape in flow.encoder.memory_shapes]
    )
    parts, start = [], row.past
    for end in (bound for bound in row.bounds if bound > row.past):
        window = tokens[start - row.past : end - row.past + lookahead]
        embedded = flow.token_embedding(window)[None]
        parts.append(
            flow.encoder.encode(
                embedded, _length(window), end - start, (None, None), end, None, (of_tokens, of_frames)
            )[0]
        )
        start = end
    kept = [_keep(shelf, memory, row, before) for shelf, memory in zip(shelves, (of_tokens, of_frames), strict=False)]
    return torch.cat(parts), [(memory, after) for memory in kept]


def _keep(shelf: Shelf, memory: RowMemory, row: Row, before: Tensor) -> ShelfMemory:
    """Write new keys and values to the row's pages, and set its tails aside."""
    assert row.after is not None
    geometry = Geometry.of(shelf, [row.after.pages], [(row.past, row.end)])
    write, read, tails = upload((geometry.write, geometry.read[:0], geometry.tails), before.device)
    kept = ShelfMemory(shelf, write, read, tails, geometry.keys, before)
    for site in range(shelf.sites):
        PassMemory(kept).recall(site, memory.new_keys(site))
    kept.after[0] = memory.tails
    return kept


def _length(tokens: Tensor) -> Tensor:
    return torch.full((1,), len(tokens), device=tokens.device)
