"""Runs flow and vocoder: computes batches of chunks step by step, and copies their samples to the host."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.engine.chunk_policy import CrossfadeMode
from vivavoce.engine.cost_model import BatchSize, CostModel, Stage
from vivavoce.engine.device import DeviceQueue, QueueEvent
from vivavoce.engine.flow_stage import FlowRow
from vivavoce.engine.request import SegmentRequest
from vivavoce.engine.request_state import ChunkPlan, SequenceState
from vivavoce.engine.scheduler import RunningBatch
from vivavoce.engine.stages import Fail, FlowInterface, FlowJobInterface, VocoderInterface, is_out_of_memory, not_finite
from vivavoce.engine.statistics import Statistics
from vivavoce.engine.vocoder_stage import VocoderRow

log = logging.getLogger(__name__)

_MOST_BATCHES = 2
"""The most unfinished flow batches; each launch is one step of one batch, so an urgent batch can go first."""


@dataclass(eq=False)
class _Batch(RunningBatch):
    """A batch of chunks that is in the flow (`job`), or that waits for the vocoder (`mels`)."""

    stage: Stage
    size: BatchSize
    job: FlowJobInterface | None
    queued_s: Sequence[float] = ()
    mels: Sequence[Tensor] = ()
    steps: int = 1
    done: int = 0
    """Number of steps whose seconds are known."""
    spent_s: float = 0.0
    last: bool = False
    """Whether this is the last attempt at these chunks."""


class SynthesisRunner:
    """Runs flow batches, vocodes their mels, and returns samples in the order in which batches end.

    Args:
        padded: each row of a batch costs as much as the longest row.
        one_by_one: the vocoder takes a batch's chunks one by one, so that no chunk waits for a less urgent chunk.

    `fail` is `Loop.fail`.
    """

    fail: Fail

    def __init__(
        self,
        flow: FlowInterface,
        vocoder: VocoderInterface,
        queue: DeviceQueue,
        costs: CostModel,
        statistics: Statistics,
        *,
        padded: bool = True,
        one_by_one: bool = False,
    ) -> None:
        self.flow, self.vocoder, self.queue = flow, vocoder, queue
        self._costs, self._statistics = costs, statistics
        self._padded, self._one_by_one = padded, one_by_one
        self._batches: list[_Batch] = []
        self.failed: deque[tuple[Sequence[ChunkPlan], bool]] = deque()
        """Chunks of failed batches, which are tried again in smaller batches, and whether that is the last attempt."""
        self._leaving: deque[tuple[Sequence[ChunkPlan], Sequence[Tensor], QueueEvent]] = deque()
        """Samples that are being copied to the host."""

    @property
    def busy(self) -> bool:
        """Whether batches are running, samples are being copied, or the device has work left, such as a prompt."""
        return bool(self._batches or self._leaving or self.failed) or self.queue.busy

    def running(self) -> tuple[Sequence[RunningBatch], bool]:
        """Return the running batches (a vocoder batch has one step), and whether another flow batch may begin."""
        in_flow = 0
        for batch in self._batches:
            batch.seconds_left = self._costs.predict(batch.stage, batch.size)
            if batch.job is not None:
                batch.seconds_left *= batch.job.share * batch.job.steps_left / batch.steps
                in_flow += 1
        return self._batches, in_flow < _MOST_BATCHES

    def prepare(self, frames: int | None) -> None:
        with self.queue.entered():
            self.flow.prepare(frames)
            self.vocoder.prepare(frames)

    def open(self, sequence: SequenceState) -> None:
        segment, request = sequence.segment, sequence.request
        assert isinstance(segment, SegmentRequest)
        joins = CrossfadeMode.SEAMLESS if request.policy is None else request.policy.joins
        sequence.flow = self.flow.open(segment.conditioning, sequence.flow_steps)
        sequence.wave = self.vocoder.open(segment.seed, segment.speed, joins)
        if request.policy is not None and joins is CrossfadeMode.SEAMLESS:
            sequence.lacks_prompt = self.flow.lacks_prompt(sequence.flow)
            # For a voice's first sequence a GPU computes the prompt with the first chunk, and keeps no state of the
            # prompt. If the voice comes again, the state is computed first: later sequences need not compute it.
            if self.queue.on_cuda and sequence.flow.voice is not None and sequence.flow.meet():
                sequence.lacks_prompt = False
            # It is a hit if the chunks continue the state of the voice's prompt that an earlier stream left.
            if request.asked and sequence.flow.voice is not None:
                with self._statistics.lock:
                    self._statistics.now.prompt_cache_hits += sequence.flow.known is not None
                    self._statistics.now.prompt_cache_misses += sequence.flow.known is None

    def release(self, sequence: SequenceState) -> None:
        """Free the streams of a sequence; its part of a running batch is freed when that batch has ended."""
        if sequence.flow is not None:
            self.flow.close(sequence.flow)
            self.vocoder.close(sequence.wave)

    def retry(self) -> None:
        """Begin one of the smaller batches in `failed`."""
        chunks, last = self.failed.popleft()
        chunks = [chunk for chunk in chunks if not chunk.sequence.request.closed]
        if chunks:
            self._begin(chunks, (), last)

    def begin(self, chunks: Sequence[ChunkPlan]) -> None:
        """Begin a flow batch, and update the sequences of its chunks."""
        now = self.queue.clock()
        begun, queued = [], []
        for chunk in chunks:
            sequence = chunk.sequence
            if sequence.request.closed:
                continue  # the language model's failure has just ended the request
            if not chunk.hop:
                sequence.lacks_prompt = self.flow.lacks_prompt(sequence.flow)
                if not sequence.lacks_prompt:
                    continue  # another stream of the voice has computed the state
            else:
                sequence.chunks += 1
                sequence.seen = max(sequence.seen, min(chunk.seen, sequence.produced))
                sequence.finished = chunk.final
                if sequence.pushed:
                    sequence.pushed.popleft()
            begun.append(chunk)
            queued.append(now - (sequence.ready_at or now))
            sequence.busy, sequence.ready_at = True, now if sequence.pushed else None
        if begun:
            self._begin(begun, queued)

    def advance(self, running: RunningBatch) -> None:
        """Launch one step of a running batch: a step of the flow's solver, or the vocoder after the last of them."""
        assert isinstance(running, _Batch)
        job = running.job
        if job is None:
            self._batches.remove(running)
            self._vocode(running.chunks, running.mels)
            return

        def on_done(seconds: float) -> None:
            running.spent_s += seconds
            running.done += 1
            if running.done == running.steps:
                # The cost model assumes batches with official steps.
                self._costs.observe(running.stage, running.size, running.spent_s / job.share)
                self._statistics.batch(running.stage, running.size.rows, running.spent_s, running.queued_s)
            for chunk in running.chunks:
                chunk.sequence.request.timings.flow_s += seconds / len(running.chunks)

        try:
            self.queue.launch(job.step, on_done)
        except Exception as error:
            self._batches.remove(running)
            self._recover(running.chunks, error, running.last)
            return
        if job.steps_left:
            return
        self._batches.remove(running)
        try:
            with self.queue.entered():
                mels = job.result()
        except Exception as error:
            # Some rows may have stored their new state: computing them again from it would be wrong.
            job.abandon()
            self._give_up(running.chunks, error)
            return
        made: list[tuple[ChunkPlan, Tensor]] = []
        for chunk, mel in zip(running.chunks, mels, strict=True):
            if mel is None:
                chunk.sequence.lacks_prompt = chunk.sequence.busy = False
            else:
                chunk.sequence.spoken += chunk.hop
                made.append((chunk, mel))
        for group in [[pair] for pair in made] if self._one_by_one else [made] if made else []:
            chunks, parts = zip(*group, strict=True)
            size = self._size([len(mel) for mel in parts])
            self._batches.append(_Batch(chunks, 0.0, Stage.VOCODER, size, None, mels=parts))

    def wait(self) -> None:
        self.queue.settle(wait=True)

    def collect(self) -> list[tuple[ChunkPlan, NDArray[np.float32]]]:
        """Return chunks whose samples, [n] float32, have arrived at the host, in the order in which batches ended."""
        for batch in self._batches[:]:
            if all(chunk.sequence.request.closed for chunk in batch.chunks):
                if batch.job is not None:
                    batch.job.abandon()
                self._batches.remove(batch)
                for chunk in batch.chunks:
                    chunk.sequence.busy = False
        self.queue.settle()
        arrived: list[tuple[ChunkPlan, NDArray[np.float32]]] = []
        while self._leaving and self._leaving[0][2].reached():
            chunks, copies, _ = self._leaving.popleft()
            for chunk, copy in zip(chunks, copies, strict=True):
                chunk.sequence.busy = False
                # Copy, because listeners keep chunks, and page-locked memory is scarce.
                samples = copy.numpy().copy() if copy.is_pinned() else copy.numpy()
                if np.isfinite(samples).all():
                    arrived.append((chunk, samples))
                else:
                    log.warning("samples not finite: in request %(request)d", {"request": chunk.sequence.request.id})
                    self.fail([chunk.sequence], not_finite())
        return arrived

    def _begin(self, chunks: Sequence[ChunkPlan], queued: Sequence[float] = (), last: bool = False) -> None:
        rows = [FlowRow(chunk.sequence.flow) for chunk in chunks]
        for chunk, row in zip(chunks, rows, strict=True):
            if chunk.hop:
                row.speech, row.hop = tuple(chunk.sequence.tokens[: chunk.seen]), chunk.hop
                row.attention = chunk.attention
        try:
            with self.queue.entered():
                job = self.flow.start(rows)
        except Exception as error:
            self._recover(chunks, error, last)
            return
        # All frames that the flow computes, with the frames of earlier chunks if their state is missing.
        frames = [row.frames for row in rows]
        stage = self.flow.short.stage(frames) if all(row.after for row in rows) else Stage.FLOW
        size = self._size(frames, sum(row.past_frames for row in rows))
        self._batches.append(_Batch(chunks, 0.0, stage, size, job, queued, steps=job.steps_left, last=last))

    def _size(self, frames: Sequence[int], past: int = 0) -> BatchSize:
        return BatchSize(len(frames), len(frames) * max(frames) if self._padded else sum(frames), past)

    def _vocode(self, chunks: Sequence[ChunkPlan], mels: Sequence[Tensor]) -> None:
        rows = [
            VocoderRow(chunk.sequence.wave, mel, chunk.final, whole=chunk.sequence.request.policy is None)
            for chunk, mel in zip(chunks, mels, strict=True)
        ]
        size = self._size([row.frames for row in rows])

        def on_done(seconds: float) -> None:
            self._costs.observe(Stage.VOCODER, size, seconds)
            self._statistics.batch(Stage.VOCODER, size.rows, seconds)
            for chunk in chunks:
                chunk.sequence.request.timings.vocoder_s += seconds / len(chunks)

        waves: list[Tensor] | None = None

        def work() -> tuple[Sequence[Tensor], QueueEvent]:
            nonlocal waves
            waves = self.vocoder.run(rows)
            if not self.queue.on_cuda:
                return waves, self.queue.mark()
            samples = torch.cat(waves)  # one copy for the whole batch
            copy = torch.empty(samples.shape, dtype=samples.dtype, pin_memory=True)
            copy.copy_(samples, non_blocking=True)
            return copy.split([len(one) for one in waves]), self.queue.mark()

        try:
            copies, mark = self.queue.launch(work, on_done)
        except Exception as error:
            # Vocoded chunks cannot be vocoded again, because their streams already have the new tails.
            if waves is not None or len(chunks) == 1:
                self._give_up(chunks, error)
                return
        else:
            self._leaving.append((chunks, copies, mark))
            return
        # This stays outside of the `except` block, in which the exception would keep the batch's tensors alive.
        self._make_room()
        half = len(chunks) // 2
        self._vocode(chunks[:half], mels[:half])
        self._vocode(chunks[half:], mels[half:])

    def _recover(self, chunks: Sequence[ChunkPlan], error: Exception, last: bool = False) -> None:
        """Try again in two halves, so that a chunk that cannot be computed fails alone. A single chunk that ran out of
        memory is tried once more, after freeing cached memory.
        """
        half = len(chunks) // 2
        if half:
            self.failed.extend(((chunks[:half], False), (chunks[half:], False)))
        elif is_out_of_memory(error) and not last:
            self.failed.append((chunks, True))
        else:
            self._give_up(chunks, error)
            return
        self._make_room()

    def _make_room(self) -> None:
        """Free the memory that torch's allocator has cached, because its pieces may be too small."""
        if self.queue.on_cuda:
            torch.cuda.empty_cache()

    def _give_up(self, chunks: Sequence[ChunkPlan], error: Exception) -> None:
        self.fail([chunk.sequence for chunk in chunks], error)
        for chunk in chunks:
            chunk.sequence.busy = False
