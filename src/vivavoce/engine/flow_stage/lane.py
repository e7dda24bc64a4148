"""Rows that are computed together: one padded batch on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vivavoce.engine.flow_stage.arrays import BatchArrays, upload
from vivavoce.engine.flow_stage.paged_memory import Geometry, PassMemory, ShelfMemory
from vivavoce.engine.flow_stage.planning import Row
from vivavoce.engine.flow_stage.pool import PagePool
from vivavoce.engine.flow_stage.stream import FlowStream, VoiceFeatures
from vivavoce.engine.flow_stage.work import FlowChunk
from vivavoce.models.build import Models
from vivavoce.models.flow.matching import Path, Schedule
from vivavoce.models.layers.masks import keys_before


@dataclass(frozen=True, eq=False)
class Workplace:
    """What all batches share; noise: [MAX_FRAMES, bins] float32 on the device."""

    models: Models
    pool: PagePool
    schedule: Schedule
    noise: Tensor


class PaddedLane:
    """A batch on its way from tokens to mel. Either every row leaves a state, and may have a past, or none does.

    All work is enqueued on the device; the host waits for none of it.
    """

    def __init__(self, place: Workplace, rows: Sequence[Row]) -> None:
        self.rows = rows
        self._up = place.models.config.flow.encoder.upsampling
        self._memories: list[ShelfMemory] = []
        arrays = BatchArrays.of(rows, place.models.config.flow.encoder)
        geometries = _geometries(place.pool, rows)
        (tokens, lengths, past, frames, lookahead_ends, *ends, self._slots), indices = _sent(
            arrays, geometries, place.models.device
        )
        for shelf, geometry, (write, read, tails) in zip(place.pool.shelves, geometries, indices, strict=False):
            self._memories.append(ShelfMemory(shelf, write, read, tails, geometry.keys, self._slots[0]))
        keys = max(row.end for row in rows)
        masks = [
            keys_before(end, width) if end.numel() else None
            for end, width in zip(ends, (keys, keys * self._up, keys * self._up), strict=True)
        ]
        flow = place.models.flow
        mu = flow.encoder.encode(
            flow.token_embedding(tokens),
            lengths,
            max(row.new for row in rows),
            (masks[0], masks[1]),
            keys,
            past if len({row.past for row in rows}) > 1 else None,
            (PassMemory(self._memories[0]), PassMemory(self._memories[1])) if self._memories else None,
            lookahead_ends if lookahead_ends.numel() else None,
        )
        voices = [voice_features(row.stream, place.models) for row in rows]
        self._path = Path(
            flow.estimator,
            place.schedule,
            place.models.config.flow.guidance,
            place.noise.index_select(0, frames).view(mu.shape),
            mu,
            torch.stack([voice.speaker for voice in voices]),
            self._condition(mu, voices),
            masks[2],
        )

    def step(self, number: int) -> None:
        """Take Euler step `number`."""
        self._path.step(number, PassMemory(self._memories[2], number) if self._memories else None)

    def mels(self) -> list[Tensor | None]:
        """New frames of each row, [2 · hop, bins] float32; None for prompts."""
        return [
            mel[first_frame(row, row.work, self._up) : row.new * self._up] if isinstance(row.work, FlowChunk) else None
            for row, mel in zip(self.rows, self._path.x, strict=True)
        ]

    def commit(self) -> None:
        """Write the tails to the pool."""
        for memory in self._memories:
            memory.commit(self._slots[1])

    def _condition(self, mu: Tensor, voices: Sequence[VoiceFeatures]) -> Tensor:
        condition = torch.zeros_like(mu, dtype=torch.float32)
        for row, voice, given in zip(self.rows, voices, condition, strict=True):
            mel = voice.mel[row.past * self._up : row.end * self._up]
            if len(mel):
                given[: len(mel)] = mel
        return condition


def first_frame(row: Row, chunk: FlowChunk, upsampling: int) -> int:
    """Where a chunk's new frames begin in its row."""
    if row.blocks:
        return (row.new - chunk.hop) * upsampling
    # As in the official code a prompt ends where its mel does, which may be a frame before its tokens' end.
    return len(row.stream.conditioning.flow_mel) + row.stream.spoken * upsampling


def voice_features(stream: FlowStream, models: Models) -> VoiceFeatures:
    """A stream's voice on the device, worked out once."""
    if stream.features is None:
        given, device = stream.conditioning, models.device
        speaker = models.flow.speaker(given.embedding[None].to(device, non_blocking=True))[0]
        stream.features = VoiceFeatures(speaker, given.flow_mel.to(device, non_blocking=True).float())
    return stream.features


def _geometries(pool: PagePool, rows: Sequence[Row]) -> list[Geometry]:
    if rows[0].after is None:
        return []
    pages = [row.after.pages for row in rows if row.after]
    positions = [(row.past, row.end) for row in rows]
    return [Geometry.of(shelf, pages, positions) for shelf in pool.shelves]


def _sent(
    arrays: BatchArrays, geometries: Sequence[Geometry], device: torch.device
) -> tuple[list[Tensor], list[list[Tensor]]]:
    own = [arrays.tokens, arrays.lengths, arrays.past, arrays.frames, arrays.lookahead_ends, *arrays.ends, arrays.slots]
    indices = [array for geometry in geometries for array in (geometry.write, geometry.read, geometry.tails)]
    sent = upload((*own, *indices), device)
    return sent[: len(own)], [sent[first : first + 3] for first in range(len(own), len(sent), 3)]
