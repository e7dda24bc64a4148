"""Flow and vocoder: batches of chunks, one Euler step at a time, then samples on their way to the host."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vivavoce.engine.chunk_policy import CrossfadeMode
from vivavoce.engine.cost_model import BatchSize, CostModel, Stage
from vivavoce.engine.device import DeviceQueue, QueueEvent
from vivavoce.engine.flow_stage import FlowChunk, PromptPrefill
from vivavoce.engine.request import SegmentRequest
from vivavoce.engine.request_state import ChunkPlan, SequenceState
from vivavoce.engine.scheduler import FlowItem, RunningBatch
from vivavoce.engine.stages import Fail, FlowInterface, FlowJobInterface, VocoderInterface, is_out_of_memory, not_finite
from vivavoce.engine.statistics import Statistics
from vivavoce.engine.vocoder_stage import VocoderRow

log = logging.getLogger(__name__)

_MOST_BATCHES = 2
"""Flow batches that take their steps in turns."""


class Synthesized(NamedTuple):
    """Samples of one cut, [n] float32, on the host."""

    sequence: SequenceState
    cut: ChunkPlan
    samples: NDArray[np.float32]


@dataclass(eq=False)
class _Batch(RunningBatch):
    """Items in the flow (`job`), or with mels that the vocoder has still to turn into samples."""

    size: BatchSize
    job: FlowJobInterface | None
    queued_s: Sequence[float] = ()
    mels: Sequence[Tensor] = ()
    steps: int = 1
    done: int = 0
    """Steps whose seconds are known."""
    spent_s: float = 0.0
    last: bool = False
    """It is the last attempt."""


class SynthesisRunner:
    """Runs flow batches, vocodes what they give, and hands samples out in the order in which batches end.

    Args:
        padded: the rows of a batch cost as much as its longest one.
        one_by_one: the vocoder takes a batch's chunks one after the other, so that none waits for a less urgent one.

    `fail` is the loop's.
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
        self._on_cuda = queue.on_cuda
        self._batches: list[_Batch] = []
        self._again: deque[tuple[Sequence[FlowItem], bool]] = deque()
        """Items of batches that failed, to be tried in smaller ones; whether it is for the last time."""
        self._leaving: deque[tuple[Sequence[FlowItem], Sequence[Tensor], QueueEvent]] = deque()
        """Samples that are being copied to the host."""

    @property
    def busy(self) -> bool:
        """Batches are running, samples are on their way, or the device has work left, such as a prompt's."""
        return bool(self._batches or self._leaving or self._again) or self.queue.busy

    @property
    def batches_open(self) -> bool:
        """Another batch may be begun beside those that run."""
        return sum(batch.job is not None for batch in self._batches) < _MOST_BATCHES

    def running(self) -> Sequence[RunningBatch]:
        """The batches with steps left; the vocoder's is a step of its own."""
        for batch in self._batches:
            seconds = self._costs.predict(Stage.FLOW if batch.job else Stage.VOCODER, batch.size)
            batch.seconds_left = seconds * (batch.job.steps_left / batch.steps if batch.job else 1.0)
        return self._batches

    def prepare(self, frames: int | None) -> None:
        """Get ready for batches of up to this many mel frames; None: of any size."""
        with self.queue.entered():
            self.flow.prepare(frames)
            self.vocoder.prepare(frames)

    def open(self, sequence: SequenceState) -> None:
        """A sequence's places in flow and vocoder."""
        segment, request = sequence.segment, sequence.request
        assert isinstance(segment, SegmentRequest)
        joins = CrossfadeMode.SEAMLESS if request.policy is None else request.policy.joins
        sequence.flow = self.flow.open(segment.conditioning)
        sequence.wave = self.vocoder.open(segment.seed, segment.speed, joins)
        if request.policy is not None and joins is CrossfadeMode.SEAMLESS:
            sequence.lacks_prompt = self.flow.lacks_prompt(sequence.flow)
            # Its chunks go on from a state of the voice's prompt that other streams may have left.
            if request.asked and sequence.flow.voice is not None:
                with self._statistics.lock:
                    self._statistics.now.prompt_cache_hits += sequence.flow.known is not None
                    self._statistics.now.prompt_cache_misses += sequence.flow.known is None

    def release(self, sequence: SequenceState) -> None:
        """Free what a sequence holds; what is in a running batch when that has ended."""
        if sequence.flow is not None:
            self.flow.close(sequence.flow)
            self.vocoder.close(sequence.wave)

    def retry(self) -> bool:
        """Begin a batch that failed before, in a smaller form; False: there is none."""
        if not self._again:
            return False
        items, last = self._again.popleft()
        items = [item for item in items if not item.sequence.request.closed]
        if items:
            self._begin(items, (), last)
        return True

    def begin(self, items: Sequence[FlowItem]) -> None:
        """Begin a flow batch; marks what its cuts take of their sequences."""
        now = self.queue.clock()
        begun, queued = [], []
        for item in items:
            sequence, cut = item
            if sequence.request.closed:
                continue  # the language model failed it a moment ago
            if cut is None:
                sequence.lacks_prompt = self.flow.lacks_prompt(sequence.flow)
                if not sequence.lacks_prompt:
                    continue  # another stream of the voice has brought it meanwhile
            else:
                sequence.chunks += 1
                sequence.finished = cut.final
                if sequence.pushed:
                    sequence.pushed.popleft()
            begun.append(item)
            queued.append(now - (sequence.ready_at or now))
            sequence.busy, sequence.ready_at = True, now if sequence.pushed else None
        if begun:
            self._begin(begun, queued)

    def advance(self, running: RunningBatch) -> None:
        """One step of a running batch: an Euler step of the flow, or the vocoder."""
        assert isinstance(running, _Batch)
        job = running.job
        if job is None:
            self._batches.remove(running)
            self._vocode(running.items, running.mels)
            return

        def on_done(seconds: float) -> None:
            running.spent_s += seconds
            running.done += 1
            if running.done == running.steps:
                self._costs.observe(Stage.FLOW, running.size, running.spent_s)
                self._statistics.batch(Stage.FLOW, running.size.rows, running.spent_s, running.queued_s)
            for sequence, _ in running.items:
                sequence.request.timings.flow_s += seconds / len(running.items)

        try:
            self.queue.launch(job.step, on_done)
        except Exception as error:
            self._batches.remove(running)
            self._recover(running.items, error, running.last)
            return
        if job.steps_left:
            return
        self._batches.remove(running)
        try:
            with self.queue.entered():
                mels = job.result()
        except Exception as error:
            # Some rows may have left their state: to compute them again from it would be wrong.
            job.abandon()
            self._give_up(running.items, error)
            return
        cuts: list[tuple[FlowItem, Tensor]] = []
        for item, mel in zip(running.items, mels, strict=True):
            sequence, cut = item
            if cut is None or mel is None:
                sequence.lacks_prompt = sequence.busy = False
            else:
                sequence.spoken += cut.hop
                cuts.append((item, mel))
        for group in [[pair] for pair in cuts] if self._one_by_one else [cuts] if cuts else []:
            size = self._size([len(mel) for _, mel in group])
            items, made = [item for item, _ in group], [mel for _, mel in group]
            self._batches.append(_Batch(items, 0.0, size, None, mels=made))

    def wait(self) -> None:
        """Block until something that was launched is done."""
        self.queue.settle(wait=True)

    def collect(self) -> list[Synthesized]:
        """Samples that have arrived at the host, in the order in which their batches ended."""
        for batch in self._batches[:]:
            if all(sequence.request.closed for sequence, _ in batch.items):
                if batch.job is not None:
                    batch.job.abandon()
                self._batches.remove(batch)
                for sequence, _ in batch.items:
                    sequence.busy = False
        self.queue.settle()
        made: list[Synthesized] = []
        while self._leaving and self._leaving[0][2].reached():
            items, copies, _ = self._leaving.popleft()
            for (sequence, cut), copy in zip(items, copies, strict=True):
                assert cut is not None
                sequence.busy = False
                # A copy of its own: listeners keep chunks, and page-locked memory is dear.
                samples = copy.numpy().copy() if copy.is_pinned() else copy.numpy()
                if np.isfinite(samples).all():
                    made.append(Synthesized(sequence, cut, samples))
                else:
                    log.warning("samples not finite: of request %(request)d", {"request": sequence.request.id})
                    self.fail([sequence], not_finite())
        return made

    def _begin(self, items: Sequence[FlowItem], queued: Sequence[float] = (), last: bool = False) -> None:
        work: list[FlowChunk | PromptPrefill] = []
        for sequence, cut in items:
            if cut is None:
                work.append(PromptPrefill(sequence.flow))
            else:
                tokens = tuple(sequence.tokens[: cut.seen])
                work.append(FlowChunk(sequence.flow, tokens, cut.hop, cut.attention))
        # What the flow will really compute: without its state a chunk's past comes on top.
        size = self._size([one.frames for one in work], sum(one.past_frames for one in work))
        try:
            with self.queue.entered():
                job = self.flow.start(work)
        except Exception as error:
            self._recover(items, error, last)
            return
        self._batches.append(_Batch(items, 0.0, size, job, queued, steps=job.steps_left, last=last))

    def _size(self, frames: Sequence[int], past: int = 0) -> BatchSize:
        """Of a batch whose rows have this many frames."""
        return BatchSize(len(frames), len(frames) * max(frames) if self._padded else sum(frames), past)

    def _vocode(self, items: Sequence[FlowItem], mels: Sequence[Tensor]) -> None:
        rows = []
        for (sequence, cut), mel in zip(items, mels, strict=True):
            assert cut is not None
            rows.append(VocoderRow(sequence.wave, mel, cut.final, whole=sequence.request.policy is None))
        size = self._size([row.frames for row in rows])

        def on_done(seconds: float) -> None:
            self._costs.observe(Stage.VOCODER, size, seconds)
            self._statistics.batch(Stage.VOCODER, size.rows, seconds)
            for sequence, _ in items:
                sequence.request.timings.vocoder_s += seconds / len(items)

        waves: list[Tensor] | None = None

        def work() -> tuple[Sequence[Tensor], QueueEvent]:
            nonlocal waves
            waves = self.vocoder.run(rows)
            if not self._on_cuda:
                return waves, self.queue.mark()
            samples = torch.cat(waves)  # all of a batch in one copy
            copy = torch.empty(samples.shape, dtype=samples.dtype, pin_memory=True)
            copy.copy_(samples, non_blocking=True)
            return copy.split([len(one) for one in waves]), self.queue.mark()

        try:
            copies, mark = self.queue.launch(work, on_done)
        except Exception as error:
            # What was vocoded cannot be once more: its stream remembers it as spoken.
            if waves is not None or len(items) == 1:
                self._give_up(items, error)
                return
        else:
            self._leaving.append((items, copies, mark))
            return
        # Not in the handler: there the error would keep the batch's tensors alive.
        self._make_room()
        half = len(items) // 2
        self._vocode(items[:half], mels[:half])
        self._vocode(items[half:], mels[half:])

    def _recover(self, items: Sequence[FlowItem], error: Exception, last: bool = False) -> None:
        """Try again in two halves: an item that cannot be computed harms no other. After out-of-memory one that is
        alone is tried once more, with room made.
        """
        half = len(items) // 2
        if half:
            self._again.extend(((items[:half], False), (items[half:], False)))
        elif is_out_of_memory(error) and not last:
            self._again.append((items, True))
        else:
            self._give_up(items, error)
            return
        self._make_room()

    def _make_room(self) -> None:
        """Give back what torch's allocator keeps in pieces that are too small."""
        if self._on_cuda:
            torch.cuda.empty_cache()

    def _give_up(self, items: Sequence[FlowItem], error: Exception) -> None:
        self.fail([sequence for sequence, _ in items], error)
        for sequence, _ in items:
            sequence.busy = False
