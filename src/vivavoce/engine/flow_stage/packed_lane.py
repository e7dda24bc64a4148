"""Rows that are computed together without padding, by kernels: what `lane.Lane` does, fast."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from vivavoce.engine.flow_stage.arrays import upload
from vivavoce.engine.flow_stage.buckets import FRAME_BUCKETS
from vivavoce.engine.flow_stage.encoder_tables import TOKEN_BUCKETS
from vivavoce.engine.flow_stage.lane import Workplace, first_frame, voice_features
from vivavoce.engine.flow_stage.packed_buffers import BufferShelf, PackedBuffers, PackedState
from vivavoce.engine.flow_stage.packed_encoding import EncodedRows, PackedEncoding
from vivavoce.engine.flow_stage.packed_tables import Bucket, TableShape
from vivavoce.engine.flow_stage.planning import Row
from vivavoce.engine.flow_stage.stream import VoiceFeatures
from vivavoce.engine.flow_stage.voices import load_voices
from vivavoce.engine.flow_stage.work import FlowChunk
from vivavoce.engine.graphs import sizes_within
from vivavoce.models.flow.memory import KEY_TILE
from vivavoce.models.flow.packed import PackedUNet
from vivavoce.models.kernels.flow_conv import TAIL


class PackedLanes:
    """Begins packed batches, which share buffers and recordings.

    Args:
        deterministic: what a row computes does not depend on its neighbours, nor on whether its past was kept or is
            computed again, to the bit; slower.
        fp8: see `PackedUNet`.
        most_frames: of the largest batch that is recorded; None: of all common sizes.

    Raises:
        ValueError: sizes that the kernels do not take.
    """

    def __init__(self, place: Workplace, *, deterministic: bool, fp8: bool, most_frames: int | None = None) -> None:
        flow, shelf = place.models.config.flow, place.pool.shelves[2]
        if shelf.positions != KEY_TILE or flow.encoder.upsampling < TAIL:
            raise ValueError(
                f"upsampling {flow.encoder.upsampling}, the flow's kernels need a power of two from {TAIL} to "
                f"{KEY_TILE}; run without kernels"
            )
        network = PackedUNet(
            place.models.flow.estimator, place.schedule, flow.guidance, invariant=deterministic, fp8=fp8
        )
        self._place, self._alone = place, deterministic
        sizes = sizes_within(FRAME_BUCKETS, most_frames)
        self._upsampling, self._most_frames = flow.encoder.upsampling, sizes[-1]
        self._most_rows = Bucket.common(self._most_frames, True).rows
        tokens = sizes_within(TOKEN_BUCKETS, self._tokens(self._most_frames))
        self._encoding = PackedEncoding(place.models, place.pool, tokens, invariant=deterministic)
        self._buffers = BufferShelf(network, flow.estimator, shelf, sizes)

    def parts(self, rows: Sequence[Row]) -> Sequence[Sequence[Row]]:
        """Parts that have recordings: pasts that are computed again may make a batch larger than it was planned."""
        parts: list[list[Row]] = [[]]
        frames = 0
        for row in rows:
            new = row.new * self._upsampling
            if parts[-1] and (frames + new > self._most_frames or len(parts[-1]) == self._most_rows):
                parts.append([])
                frames = 0
            parts[-1].append(row)
            frames += new
        return parts

    def begin(self, rows: Sequence[Row]) -> PackedLane:
        """Rows that all leave a state, or none."""
        frames = sum(row.new for row in rows) * self._upsampling
        buffers = self._buffers.of(Bucket.of(frames, len(rows), rows[0].after is not None))
        if not self._alone:
            load_voices([row.stream for row in rows], self._place.models)
        return PackedLane(self._place, rows, self._encoding.encode(rows), buffers)

    def prepare(self, frames: int | None) -> None:
        """Record the encoder and the steps of all common sizes that batches of up to so many frames come in."""
        self._encoding.prepare(self._tokens(frames))
        self._buffers.prepare(frames)

    def _tokens(self, frames: int | None) -> int | None:
        return None if frames is None else -(-frames // self._upsampling)


class PackedLane:
    """A batch on its way from tokens to mel. Either every row leaves a state, and may have a past, or none does.

    All work is enqueued on the device; the host waits for none of it.
    """

    def __init__(self, place: Workplace, rows: Sequence[Row], encoded: EncodedRows, buffers: PackedBuffers) -> None:
        self.rows = rows
        self._up, self._shelf = place.models.config.flow.encoder.upsampling, place.pool.shelves[2]
        self._encoded, self._buffers = encoded, buffers
        self._state = self._begin(place, buffers.shape)

    def step(self, number: int) -> None:
        """Take Euler step `number`."""
        self._buffers.step(number, self._state)

    def mels(self) -> list[Tensor | None]:
        """New frames of each row, [2 · hop, bins] float32; None for prompts."""
        self._buffers.leave(self._state)
        parts = torch.split(self._state.x, [row.new * self._up for row in self.rows])
        return [
            mel[first_frame(row, row.work, self._up) :] if isinstance(row.work, FlowChunk) else None
            for row, mel in zip(self.rows, parts, strict=True)
        ]

    def commit(self) -> None:
        """Write the tails to the pool."""
        self._encoded.commit()
        if self._state.after is not None and self._encoded.slots is not None:
            self._shelf.tails.index_copy_(0, self._encoded.slots[1], self._state.after.permute(2, 0, 1, 3, 4))

    def _begin(self, place: Workplace, shape: TableShape) -> PackedState:
        models, device = place.models, place.models.device
        voices, places = _distinct([voice_features(row.stream, models) for row in self.rows])
        tables, mel_starts = shape.numbers(self.rows, self._up), _mel_starts(voices)
        new = [row.new * self._up for row in self.rows]
        used = sum(new)
        position = tables[2 * shape.bucket.frames :][:used]
        voice = np.repeat(places, new)
        in_prompt = position < np.array([len(one.mel) for one in voices])[voice]
        mel = np.where(in_prompt, np.array(mel_starts)[voice] + position, 0)
        sent = upload((tables, voice, mel, position), device, torch.int32)
        # Encoded frames lie in the rows' order, too; the next batch's will lie in their place.
        mu = self._encoded.mu
        speaker = torch.stack([one.speaker for one in voices]).index_select(0, sent[1])
        silence = torch.zeros(1, mu.shape[1], device=device)
        condition = torch.cat((silence, *(one.mel for one in voices if len(one.mel)))) if in_prompt.any() else silence
        given = torch.cat((mu, speaker, condition.index_select(0, sent[2]).to(mu.dtype)), dim=1)
        x = place.noise.index_select(0, sent[3])
        if self._encoded.slots is None:
            return PackedState(sent[0], x, given, None, None)
        before = self._shelf.tails.index_select(0, self._encoded.slots[0]).permute(1, 2, 0, 3, 4).contiguous()
        return PackedState(sent[0], x, given, before, torch.empty_like(before))


def _distinct(voices: Sequence[VoiceFeatures]) -> tuple[list[VoiceFeatures], list[int]]:
    """Each of them once, and where each of the given ones is among those."""
    found = {id(voice): voice for voice in voices}
    order = {key: place for place, key in enumerate(found)}
    return list(found.values()), [order[id(voice)] for voice in voices]


def _mel_starts(voices: Sequence[VoiceFeatures]) -> list[int]:
    """Where each prompt's mel begins behind a first frame of silence."""
    starts, end = [], 1
    for voice in voices:
        starts.append(end)
        end += len(voice.mel)
    return starts
