"""Runs flow batches on our kernels: rows lie end to end, without padding, and each common size has its CUDA graphs.

A batch's tables are copied to the device, one CUDA graph encodes its tokens, and another computes each solver step.
Batches above the largest common size have no graph; their kernels are launched one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from vivavoce.engine.cost_model import ShortBatches
from vivavoce.engine.device import (
    FRAME_SIZES,
    SHORT_BATCHES,
    TOKEN_SIZES,
    BatchSizes,
    Bucket,
    Graphs,
    Launch,
    copy_into,
    in_order_of_recording,
    to_device,
    upload,
)
from vivavoce.engine.flow_stage.packed_tables import EncoderLayout, EstimatorLayout
from vivavoce.engine.flow_stage.padded import PaddedPath, voice_features
from vivavoce.engine.flow_stage.planning import SINK, BufferPool, FlowRow, FlowStream, PagePool, VoiceFeatures
from vivavoce.models.build import Models
from vivavoce.models.flow.dit import DiT
from vivavoce.models.flow.packed_dit import PackedDiT, PackedLookahead
from vivavoce.models.flow.packed_encoder import EncoderBatch, EncoderPast, PackedEncoder
from vivavoce.models.flow.packed_unet import PackedBatch, PackedUNet
from vivavoce.models.flow.unet import TokenEncoder
from vivavoce_kernels.common import compiled_ahead
from vivavoce_kernels.encoder_windows import EncoderTails
from vivavoce_kernels.flow_products import TAIL, ConvTails
from vivavoce_kernels.layouts import KEY_TILE

Record = Callable[[Launch], Launch]
"""Turns repeatable work into a function that repeats this work, such as the replay of a CUDA graph."""
Memory = TypeVar("Memory")
Run = TypeVar("Run")


class RecordedSizes(Generic[Memory, Run]):
    """The runs of one network for the common batch sizes, made at first use or by `prepare`, all in the same memory.

    paged: whether rows may have pages; allocate: makes memory with room for a batch of any of the given buckets; make:
    makes the run of a bucket in this memory; while its CUDA graph is recorded, the run processes only padding and
    changes no pages; short: up to this many positions, batches of short rows have runs of their own.
    """

    def __init__(
        self,
        sizes: BatchSizes,
        paged: bool,
        device: torch.device,
        allocate: Callable[[Sequence[Bucket]], Memory],
        make: Callable[[Bucket, Memory, Record], Run],
        short: int = 0,
    ) -> None:
        self.sizes, self.allocate, self.make, self._short = sizes, allocate, make, short
        self._sources = (True, False) if paged else (False,)
        self.graphs = Graphs(device)
        self.memory = allocate(self.common(None))
        self._runs: dict[Bucket, Run] = {}

    def of(self, positions: int, rows: int, paged: bool, short: bool = False) -> Run:
        """Return the run for a batch of this size. A size that is not common gets a new run, without a CUDA graph."""
        bucket = self.sizes.bucket(positions, rows, paged)
        if short and bucket.paged and bucket.positions <= self._short:
            bucket = replace(bucket, short=True)
        if not self.sizes.is_common(bucket):
            # A graph would save little in so large a batch, and each batch would need its own.
            return self.make(bucket, self.allocate([bucket]), lambda work: work)
        if bucket not in self._runs:
            self._runs[bucket] = self.make(bucket, self.memory, self.graphs.capture)
        return self._runs[bucket]

    def common(self, positions: int | None) -> list[Bucket]:
        """Return the common buckets for batches of up to this many positions; if None, all."""
        sizes = in_order_of_recording(self.sizes.positions, positions)
        common = [self.sizes.common(size, paged) for size in sizes for paged in self._sources]
        return common + [replace(one, short=True) for one in common if one.paged and one.positions <= self._short]

    def prepare(self, positions: int | None) -> None:
        for bucket in self.common(positions):
            self.of(bucket.positions, bucket.rows, bucket.paged, bucket.short)


class EncodedRows(NamedTuple):
    """The encoder's results for the rows of a batch.

    mu: [frames, bins], encoded new frames of all rows, end to end; read it, on the same stream, before another batch is
    encoded. slots: [2, rows] int64 on the device, the pages that store the rows' convolution tails before and after
    this batch, None without state. tails: [rows, tails of both rates, size], copies of the tails after this batch.
    pools: the pools to which `commit` writes these tails.
    """

    mu: Tensor
    slots: Tensor | None
    tails: Tensor
    pools: Sequence[BufferPool]

    def commit(self) -> None:
        if self.slots is not None:
            parts = self.tails.split([pool.tail for pool in self.pools], dim=1)
            for pool, tails in zip(self.pools, parts, strict=True):
                if pool.tail:
                    pool.tails.index_copy_(0, self.slots[1], tails[:, None, None])


class EncoderMemory(NamedTuple):
    """The encoder's tensors, which all buckets share; a bucket uses the first part of each tensor."""

    tables: Tensor
    mu: Tensor
    after: Tensor


class EncoderRun(NamedTuple):
    """The encoder's work for batches of one bucket, usually as a CUDA graph."""

    layout: EncoderLayout
    memory: EncoderMemory
    replay: Launch

    def write(self, rows: Sequence[FlowRow]) -> None:
        copy_into(self.memory.tables[: self.layout.size], torch.from_numpy(self.layout.numbers(rows)))


class PackedEncoding:
    """Encodes packed batches, which share memory and CUDA graphs; sizes: the common batch sizes, in tokens.

    invariant: slower, but a row's bits depend neither on other rows nor on whether its past was kept or is computed
    again. ValueError: the kernels do not support the network's sizes.
    """

    def __init__(self, models: Models, pool: PagePool, sizes: BatchSizes, *, invariant: bool) -> None:
        self._config, self._device = models.config.flow, models.device
        packed = PackedEncoder if isinstance(models.flow.encoder, TokenEncoder) else PackedLookahead
        self._network, self._pools = packed(models.flow, invariant=invariant), pool.buffers[:2]
        paged = bool(len(self._pools[0].keys))
        self.runs = RecordedSizes(sizes, paged, models.device, self._allocate, self._make)

    def encode(self, rows: Sequence[FlowRow]) -> EncodedRows:
        """Encode rows; either all keep state or none does. Keys and values go to pages; `commit` writes the tails."""
        paged, new = rows[0].after is not None, sum(row.new for row in rows)
        run = self.runs.of(new, len(rows), paged)
        run.write(rows)
        run.replay()
        mu, tails = run.memory.mu[: new * run.layout.upsampling], run.memory.after[: len(rows) if paged else 0].clone()
        slots = None
        if paged:
            pairs = [(row.before.slot if row.before else SINK, row.after.slot) for row in rows if row.after]
            (slots,) = upload((np.array(pairs, dtype=np.int64).T.copy(),), self._device)
        return EncodedRows(mu, slots, tails, self._pools)

    def prepare(self, tokens: int | None) -> None:
        with compiled_ahead() as apart:
            for bucket in self.runs.common(tokens) if apart else ():
                self._make(bucket, self.runs.memory, lambda work: work).replay()
        self.runs.prepare(tokens)

    def _layout(self, bucket: Bucket) -> EncoderLayout:
        encoder, queries = self._config.encoder, self._network.cuts(bucket.positions).attention.queries
        return EncoderLayout(bucket, queries, encoder.lookahead, encoder.upsampling)

    def _allocate(self, buckets: Sequence[Bucket]) -> EncoderMemory:
        layouts, like = [self._layout(bucket) for bucket in buckets], self._pools[0].keys
        rows = max((bucket.rows for bucket in buckets if bucket.paged), default=0)
        return EncoderMemory(
            torch.zeros(max(one.size for one in layouts), dtype=torch.int32, device=like.device),
            like.new_zeros(max(one.frames for one in layouts), self._config.num_mel_bins),
            like.new_zeros(rows, sum(pool.tail for pool in self._pools), self._pools[0].tails.shape[-1]),
        )

    def _make(self, bucket: Bucket, memory: EncoderMemory, record: Record) -> EncoderRun:
        layout = self._layout(bucket)
        tables, past = layout.tables(memory.tables[: layout.size]), None
        if bucket.paged:
            after = memory.after[: bucket.rows].split([pool.tail for pool in self._pools], dim=1)
            of_tokens, of_frames = (
                EncoderPast(pool.keys, EncoderTails(pool.tails, tables.slots, part))
                for pool, part in zip(self._pools, after, strict=True)
            )
            past = (of_tokens, of_frames)
        batch = EncoderBatch(tables, memory.mu[: layout.frames], past)
        run = EncoderRun(layout, memory, lambda: self._network.encode(batch))
        run.write(())
        return run._replace(replay=record(run.replay))


@dataclass(eq=False)
class EstimatorMemory:
    """The estimator's tensors. Batches use them in turn, step by step; holder: the batch that uses them now."""

    tables: Tensor
    features: Tensor
    x: Tensor
    step: Tensor
    tails: Tensor
    holder: PackedSolver | None = None


class EstimatorRun:
    """Runs one evaluation of the estimator, then the solver's update of x, for one bucket, usually as a CUDA graph."""

    def __init__(
        self,
        layout: EstimatorLayout,
        memory: EstimatorMemory,
        network: PackedUNet | PackedDiT,
        pool: BufferPool,
        record: Record,
    ) -> None:
        self.layout, self._memory, self._tables = layout, memory, memory.tables[: layout.size]
        bucket, tails = layout.bucket, None
        if bucket.paged:
            size = (2, bucket.rows, *pool.tails.shape[3:])
            tails = ConvTails(*(part[: prod(size)].view(size) for part in memory.tails))
        self._batch = PackedBatch(
            memory.x[: bucket.positions],
            memory.features[: 2 * bucket.positions],
            memory.step,
            layout.tables(self._tables),
            pool.keys if bucket.paged else None,
            tails,
            bucket.short,
        )
        memory.holder = None
        self._tables.copy_(torch.from_numpy(layout.numbers((), 1)))
        self._replay = record(lambda: network.step(self._batch))

    def step(self, number: int, solver: PackedSolver) -> None:
        batch, tails = self._batch, self._batch.tails
        if self._memory.holder is not solver:
            self._enter(solver)
        batch.step.copy_(solver.numbers[number])
        if tails is None or solver.before is None or solver.after is None:
            self._replay()
        else:
            rows = solver.before.shape[2]
            tails.before[:, :rows].copy_(solver.before[number])
            self._replay()
            solver.after[number].copy_(tails.after[:, :rows])
        solver.x.copy_(batch.x[: len(solver.x)])
        finished = solver.schedule.evaluations[number].move != 0
        solver.point = solver.x if finished else batch.features[: len(solver.x), : solver.x.shape[1]].clone()

    def leave(self, solver: PackedSolver) -> None:
        if self._memory.holder is solver:
            self._memory.holder = None

    def _enter(self, solver: PackedSolver) -> None:
        used, bins = solver.x.shape
        features = self._batch.features.view(2, -1, self._batch.features.shape[1])
        self._tables.copy_(solver.tables)
        self._batch.x[:used].copy_(solver.x)
        features[:, :used, :bins] = solver.point
        features[0, :used, bins:] = solver.given
        features[1, :used, bins:] = 0
        self._memory.holder = solver


class PackedPath:
    """Begins packed batches, which share memory and CUDA graphs.

    deterministic: slower, but a row's bits depend neither on other rows nor on whether its past was kept or is computed
    again. most_frames: frames of the largest batch with a CUDA graph; None: the largest common size. ValueError: the
    kernels do not support the network's sizes.
    """

    def __init__(self, context: PaddedPath, *, deterministic: bool, most_frames: int | None = None) -> None:
        flow, models, estimator = context.models.config.flow, context.models, context.models.flow.estimator
        self._pool, self._up = context.pool.buffers[2], flow.encoder.upsampling
        if self._pool.positions != KEY_TILE or self._up < TAIL:
            raise ValueError(
                f"upsampling {self._up} is not supported, the flow's kernels need a power of two from {TAIL} to "
                f"{KEY_TILE}; run without kernels"
            )
        self._context, self._deterministic, self._estimator = context, deterministic, flow.estimator
        given = (tuple(context.schedules.values()), flow.guidance)
        self._network = (
            PackedDiT(estimator, *given, invariant=deterministic)
            if isinstance(estimator, DiT)
            else PackedUNet(estimator, *given, invariant=deterministic)
        )
        sizes = FRAME_SIZES.within(most_frames)
        self._most = sizes.common(sizes.positions[-1], True)
        tokens = TOKEN_SIZES.within(-(-self._most.positions // self._up))
        self.encoding = PackedEncoding(models, context.pool, tokens, invariant=deterministic)
        paged = bool(len(self._pool.keys))
        self.short = SHORT_BATCHES if paged and self._network.takes_short else ShortBatches()
        short = self.short.chunks and sizes.bucket(self.short.frames * self.short.chunks, 1, True).positions
        self.runs = RecordedSizes(sizes, paged, models.device, self._allocate, self._make, short)

    def parts(self, rows: Sequence[FlowRow]) -> Sequence[Sequence[FlowRow]]:
        """Split a batch into parts that have CUDA graphs: rows without stored state can make it larger than planned."""
        parts: list[list[FlowRow]] = [[]]
        frames = 0
        for row in rows:
            new = row.new * self._up
            if parts[-1] and (frames + new > self._most.positions or len(parts[-1]) == self._most.rows):
                parts.append([])
                frames = 0
            parts[-1].append(row)
            frames += new
        return parts

    def begin(self, rows: Sequence[FlowRow]) -> PackedSolver:
        """Begin a batch; either all of its rows keep state or none does."""
        new = [row.new * self._up for row in rows]
        run = self.runs.of(sum(new), len(rows), rows[0].after is not None, self.short.include(new))
        if not self._deterministic:
            load_voices([row.stream for row in rows], self._context.models)
        return PackedSolver(self._context, rows, self.encoding.encode(rows), run)

    def prepare(self, frames: int | None) -> None:
        self.encoding.prepare(None if frames is None else -(-frames // self._up))
        self.runs.prepare(frames)

    def _layout(self, bucket: Bucket) -> EstimatorLayout:
        return EstimatorLayout(bucket, self._network.cuts(bucket.positions).attention.queries)

    def _allocate(self, buckets: Sequence[Bucket]) -> EstimatorMemory:
        like, frames = self._pool.keys, max(bucket.positions for bucket in buckets)
        tail_rows = max((bucket.rows for bucket in buckets if bucket.paged), default=0)
        return EstimatorMemory(
            torch.zeros(max(self._layout(one).size for one in buckets), dtype=torch.int32, device=like.device),
            like.new_zeros(2 * frames, self._estimator.in_channels),
            torch.zeros(frames, self._estimator.out_channels, device=like.device),
            torch.zeros(2, dtype=torch.int32, device=like.device),
            like.new_zeros(2, 2 * tail_rows * prod(self._pool.tails.shape[3:])),
        )

    def _make(self, bucket: Bucket, memory: EstimatorMemory, record: Record) -> EstimatorRun:
        return EstimatorRun(self._layout(bucket), memory, self._network, self._pool, record)


class PackedSolver:
    """Computes the mel of one packed batch in steps. Either all rows keep state for their next chunk, or none does.

    All work is enqueued on the device; the host does not wait. Between steps the batch's values are in its own tensors.
    tables: [numbers] int32, the index tables of the batch; numbers: [evaluations, 2] int32, `PackedBatch.step` of each
    evaluation; x: [frames, bins] float32, the solution so far; point: like x, the next evaluation's input; given:
    [frames, in − bins], constant features; before, after: [evaluations, 2, rows, tail, channels], convolution tails.
    """

    def __init__(self, context: PaddedPath, rows: Sequence[FlowRow], encoded: EncodedRows, run: EstimatorRun) -> None:
        models, self.rows, self._encoded, self._run = context.models, rows, encoded, run
        self._up, self._pool = models.config.flow.encoder.upsampling, context.pool.buffers[2]
        features = [voice_features(row.stream, models) for row in rows]
        order = {one: place for place, one in enumerate(dict.fromkeys(features))}
        voices, places = list(order), [order[one] for one in features]
        tables = run.layout.numbers(rows, self._up)
        new = [row.new * self._up for row in rows]
        position = tables[2 * run.layout.bucket.positions :][: sum(new)]
        voice, lengths = np.repeat(places, new), np.array([len(one.mel) for one in voices])
        in_prompt = position < lengths[voice]
        # Each frame's index in `condition`: a frame of the prompt's mel, or, after the prompt, the silent frame 0.
        mel = np.where(in_prompt, (1 + np.cumsum(lengths) - lengths)[voice] + position, 0)
        sent = upload((tables, voice, mel, position), models.device, torch.int32)
        # mu is copied below, because the next batch overwrites it.
        mu = encoded.mu
        speaker = torch.stack([one.speaker for one in voices]).index_select(0, sent[1])
        silence = torch.zeros(1, mu.shape[1], device=models.device)
        condition = torch.cat((silence, *(one.mel for one in voices if len(one.mel)))) if in_prompt.any() else silence
        self.tables, self.x = sent[0], context.noise.index_select(0, sent[3])
        self.point, self.schedule = self.x, context.schedules[rows[0].stream.steps]
        self.numbers = context.numbers[rows[0].stream.steps]
        self.given = torch.cat((mu, speaker, condition.index_select(0, sent[2]).to(mu.dtype)), dim=1)
        self.before: Tensor | None = None
        self.after: Tensor | None = None
        if encoded.slots is not None:
            self.before = self._pool.tails.index_select(0, encoded.slots[0]).permute(1, 2, 0, 3, 4).contiguous()
            self.after = torch.empty_like(self.before)

    def step(self, number: int) -> None:
        self._run.step(number, self)

    def finish(self) -> list[Tensor | None]:
        self._encoded.commit()
        if self.after is not None and self._encoded.slots is not None:
            self._pool.tails.index_copy_(0, self._encoded.slots[1], self.after.permute(2, 0, 1, 3, 4))
        self._run.leave(self)
        parts = torch.split(self.x, [row.new * self._up for row in self.rows])
        firsts = [row.first_frame(self._up) for row in self.rows]
        return [None if first is None else mel[first:] for first, mel in zip(firsts, parts, strict=True)]


def load_voices(streams: Sequence[FlowStream], models: Models) -> None:
    """Compute the features of all streams that lack them, with two asynchronous copies to the device.

    The last bits of a speaker's projection may depend on the number of speakers that are projected together.
    """
    lacking: dict[bytes | FlowStream, list[FlowStream]] = {}
    for stream in streams:
        if stream.features is None and stream.voice is not None:
            stream.features = stream.prompts.features.get(stream.voice)
        if stream.features is None:
            lacking.setdefault(stream.voice or stream, []).append(stream)
    if not lacking:
        return
    given = [alike[0].conditioning for alike in lacking.values()]
    mels = [one.flow_mel.float() for one in given]
    speakers = models.flow.speaker(to_device(torch.stack([one.embedding for one in given]), models.device))
    # Mels are flattened, because the mel of an empty prompt may have the shape [0, 0].
    whole = to_device(torch.cat([mel.flatten() for mel in mels]), models.device)
    parts = torch.split(whole, [mel.numel() for mel in mels])
    for alike, speaker, part, mel in zip(lacking.values(), speakers, parts, mels, strict=True):
        features = VoiceFeatures(speaker, part.view(mel.shape))
        for stream in alike:
            stream.features = features
        prompts, voice = alike[0].prompts, alike[0].voice
        if voice is not None and voice in prompts.states:
            prompts.features[voice] = features
