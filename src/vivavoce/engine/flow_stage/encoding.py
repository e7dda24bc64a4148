"""The token encoder over a batch of rows, for those who want its frames end to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from vivavoce.engine.flow_stage.arrays import BatchArrays, upload
from vivavoce.engine.flow_stage.paged_memory import Geometry, PassMemory, ShelfMemory
from vivavoce.engine.flow_stage.planning import Row
from vivavoce.engine.flow_stage.pool import PagePool, Shelf
from vivavoce.models.build import Models
from vivavoce.models.layers.masks import keys_before


@dataclass(frozen=True, eq=False)
class EncodedRows:
    """What the encoder made of rows.

    mu: [frames, bins]; starts: of each row its first frame there; slots: [2, rows] int64 on the device, pages beside
    which tails lie and will lie, None without state; memories: of the encoder, with those slots of theirs.
    """

    mu: Tensor
    starts: list[int]
    slots: Tensor | None
    memories: tuple[tuple[ShelfMemory, Tensor], ...]

    def commit(self) -> None:
        """Write the encoder's tails to the pool."""
        for memory, slots in self.memories:
            memory.commit(slots)


def encode_together(models: Models, pool: PagePool, rows: Sequence[Row]) -> EncodedRows:
    """All rows in one padded batch; keys and values go to the rows' pages."""
    flow, up = models.flow, models.config.flow.encoder.upsampling
    arrays = BatchArrays.of(rows, models.config.flow.encoder)
    shelves = pool.shelves[:2] if rows[0].after else ()
    geometries = [_geometry(shelf, rows) for shelf in shelves]
    indices = [array for geometry in geometries for array in (geometry.write, geometry.read, geometry.tails)]
    own = (arrays.tokens, arrays.lengths, arrays.past, *arrays.ends[:2], arrays.slots)
    tokens, lengths, past, token_ends, frame_ends, slots, *sent = upload((*own, *indices), models.device)
    memories = []
    for place, (shelf, geometry) in enumerate(zip(shelves, geometries, strict=True)):
        write, read, tails = sent[3 * place : 3 * place + 3]
        memories.append(ShelfMemory(shelf, write, read, tails, geometry.keys, slots[0]))
    keys, longest = max(row.end for row in rows), max(row.new for row in rows)
    mu = flow.encoder.encode(
        flow.token_embedding(tokens),
        lengths,
        longest,
        (
            keys_before(token_ends, keys) if token_ends.numel() else None,
            keys_before(frame_ends, keys * up) if frame_ends.numel() else None,
        ),
        keys,
        past if len({row.past for row in rows}) > 1 else None,
        (PassMemory(memories[0]), PassMemory(memories[1])) if memories else None,
    )
    return EncodedRows(
        mu.flatten(0, 1),
        [place * longest * up for place in range(len(rows))],
        slots if memories else None,
        tuple((memory, slots[1]) for memory in memories),
    )


def _geometry(shelf: Shelf, rows: Sequence[Row]) -> Geometry:
    pages = [row.after.pages for row in rows if row.after]
    return Geometry.of(shelf, pages, [(row.past, row.end) for row in rows])
