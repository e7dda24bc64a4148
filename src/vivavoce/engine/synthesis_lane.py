"""Flow and vocoder: batches of chunks, one Euler step at a time, then samples on their way to the host."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import torch
from torch import Tensor

from vivavoce.engine.cost_model import CostModel, Stage, Work
from vivavoce.engine.faults import Fail, is_out_of_memory, not_finite
from vivavoce.engine.flow_batches import FlowItem
from vivavoce.engine.flow_stage import Attention, FlowChunk, FlowJob, FlowStage, PromptWork
from vivavoce.engine.lane import Lane, Mark
from vivavoce.engine.scheduler import RunningBatch
from vivavoce.engine.statistics import Statistics
from vivavoce.engine.stream import Kind
from vivavoce.engine.ticket import Made, Track
from vivavoce.engine.vocoder_stage import Piece, VocoderStage

log = logging.getLogger(__name__)

_ATTENTION = {Kind.CHUNK: Attention.BLOCKS, Kind.GRID: Attention.GRID, Kind.WHOLE: Attention.FULL}


@dataclass(frozen=True, eq=False)
class Part:
    """A track's share of a batch: a cut, or its prompt's state."""

    track: Track
    item: FlowItem
    ready_at: float
    """When it could have begun, on the engine's clock."""
    attempts: int = 0
    """How often it was alone in a batch that did not fit into memory."""


@dataclass(eq=False)
class _Batch:
    number: int
    parts: list[Part]
    job: FlowJob
    work: Work
    steps: int
    queued_s: tuple[float, ...]
    told: int = 0
    """Steps whose seconds are known."""
    spent_s: float = 0.0

    @property
    def forsaken(self) -> bool:
        return all(part.track.ticket.stream.closed for part in self.parts)


@dataclass(frozen=True, eq=False)
class _Voiceless:
    """Mels that the vocoder has still to turn into samples."""

    number: int
    parts: list[Part]
    mels: list[Tensor]

    @property
    def forsaken(self) -> bool:
        return all(part.track.ticket.stream.closed for part in self.parts)


@dataclass(frozen=True, eq=False)
class _Leaving:
    """Samples that are being copied to the host."""

    parts: list[Part]
    copies: list[Tensor]
    mark: Mark


class SynthesisLane:
    """Runs flow batches, vocodes what they give, and hands samples out in the order in which batches end.

    `padded`: the rows of a batch cost as much as its longest one.
    """

    def __init__(
        self,
        flow: FlowStage,
        vocoder: VocoderStage,
        device: torch.device,
        costs: CostModel,
        statistics: Statistics,
        fail: Fail,
        *,
        padded: bool = True,
        max_batches: int = 2,
    ) -> None:
        self._flow, self._vocoder, self._device = flow, vocoder, device
        self._costs, self._statistics, self._fail = costs, statistics, fail
        self._padded = padded
        self._max_batches, self._one_by_one = max_batches, device.type != "cuda"
        self._lane = Lane(device)
        self._running: list[_Batch] = []
        self._again: deque[list[Part]] = deque()
        """Parts of batches that did not fit into memory, to be tried in smaller ones."""
        self._voiceless: list[_Voiceless] = []
        self._leaving: deque[_Leaving] = deque()
        self._numbers = count()

    @property
    def open(self) -> bool:
        """Another step may be launched."""
        return self._lane.open

    @property
    def busy(self) -> bool:
        """Batches are running, or samples on their way."""
        return bool(self._running or self._voiceless or self._leaving or self._again)

    @property
    def due_at(self) -> float:
        """When the oldest step is expected to be done, on the engine's clock; ∞: there is none."""
        return self._lane.due_at

    @property
    def batches_open(self) -> bool:
        """Another batch may be begun beside those that run."""
        return len(self._running) < self._max_batches

    def running(self) -> tuple[RunningBatch, ...]:
        """The batches with steps left, as the scheduler sees them; the vocoder's is a step of its own."""
        flows = (
            RunningBatch(
                batch.number,
                tuple(part.item for part in batch.parts),
                self._costs.predict(Stage.FLOW, batch.work) * batch.job.steps_left / batch.steps,
            )
            for batch in self._running
        )
        voiceless = (
            RunningBatch(
                batch.number,
                tuple(part.item for part in batch.parts),
                self._costs.predict(Stage.VOCODER, self._size([len(mel) for mel in batch.mels])),
            )
            for batch in self._voiceless
        )
        return (*flows, *voiceless)

    def prepare(self, frames: int | None) -> None:
        """Get ready for batches of up to so many mel frames; None: of any size."""
        with self._lane.entered():
            self._flow.prepare(frames)
            self._vocoder.prepare(frames)

    def retry(self) -> bool:
        """Begin a batch that did not fit before, in a smaller form; False: there is none."""
        if not self._again:
            return False
        parts = [part for part in self._again.popleft() if not part.track.ticket.stream.closed]
        if parts:
            self._begin(parts)
        return True

    def begin(self, parts: Sequence[Part]) -> None:
        """Begin a flow batch; marks what its cuts take of their segments."""
        now = time.perf_counter()
        parts = [part for part in parts if not self._has_its_prompt(part)]
        for part in parts:
            segment, cut = part.track.segment, part.item.cut
            segment.busy = True
            if cut is not None:
                segment.chunks += 1
                segment.finished = cut.final
        if parts:
            self._begin(parts, [now - part.ready_at for part in parts])

    def advance(self, batch: RunningBatch) -> None:
        """One step of a running batch: an Euler step of the flow, or the vocoder."""
        voiceless = next((one for one in self._voiceless if one.number == batch.number), None)
        if voiceless is not None:
            self._voiceless.remove(voiceless)
            self._vocode(voiceless.parts, voiceless.mels)
            return
        running = next(one for one in self._running if one.number == batch.number)
        try:
            self._step(running)
        except Exception as error:
            self._running.remove(running)
            self._recover(running.parts, error)
            return
        if running.job.steps_left == 0:
            self._running.remove(running)
            self._finish(running)

    def wait(self) -> None:
        """Block until something that was enqueued is done."""
        self._lane.settle(wait=True)

    def collect(self) -> list[Made]:
        """Samples that have arrived at the host, in the order in which their batches ended."""
        for batch in [batch for batch in self._running if batch.forsaken]:
            batch.job.abandon()
            self._running.remove(batch)
            self._settle_parts(batch.parts)
        for voiceless in [batch for batch in self._voiceless if batch.forsaken]:
            self._voiceless.remove(voiceless)
            self._settle_parts(voiceless.parts)
        self._lane.settle()
        made: list[Made] = []
        while self._leaving and self._leaving[0].mark.reached():
            leaving = self._leaving.popleft()
            for part, copy in zip(leaving.parts, leaving.copies, strict=True):
                if part.item.cut is not None:
                    # A copy of its own: listeners keep chunks, and page-locked memory is dear.
                    samples = copy.numpy().copy() if copy.is_pinned() else copy.numpy()
                    if np.isfinite(samples).all():
                        made.append(Made(part.track, part.item.cut, samples))
                    else:
                        log.warning("samples of request %d are no numbers", part.track.ticket.stream.id)
                        self._fail([part.track], not_finite())
            self._settle_parts(leaving.parts)
        return made

    def release(self, track: Track) -> None:
        """Free what a track holds; what is in a running batch when that has ended."""
        self._flow.close(track.flow)
        self._vocoder.close(track.wave)

    def _has_its_prompt(self, part: Part) -> bool:
        """A prompt's state that another stream of the voice has brought meanwhile."""
        segment = part.track.segment
        if part.item.cut is None:
            segment.lacks_prompt = self._flow.lacks_prompt(part.track.flow)
        return part.item.cut is None and not segment.lacks_prompt

    def _begin(self, parts: list[Part], queued: Sequence[float] = ()) -> None:
        asked = [_work(part) for part in parts]
        # What the flow will really compute: without its state a chunk's past comes on top.
        size = self._size([one.frames for one in asked], sum(one.past_frames for one in asked))
        try:
            with self._lane.entered():
                job = self._flow.start(asked)
        except Exception as error:
            self._recover(parts, error)
            return
        self._running.append(_Batch(next(self._numbers), parts, job, size, job.steps_left, tuple(queued)))

    def _size(self, frames: Sequence[int], past: int = 0) -> Work:
        """Of a batch whose rows have so many frames."""
        return Work(len(frames), len(frames) * max(frames) if self._padded else sum(frames), past)

    def _step(self, batch: _Batch) -> None:
        def tell(seconds: float) -> None:
            batch.spent_s += seconds
            batch.told += 1
            if batch.told == batch.steps:
                self._costs.observe(Stage.FLOW, batch.work, batch.spent_s)
                self._statistics.batch(Stage.FLOW, batch.work.rows, batch.spent_s, batch.queued_s)
            for part in batch.parts:
                part.track.ticket.flow_s += seconds / len(batch.parts)

        with self._lane.work(tell):
            batch.job.step()

    def _finish(self, batch: _Batch) -> None:
        try:
            with self._lane.entered():
                mels = batch.job.result()
        except Exception as error:
            # Some rows may have left their state: to compute them again from it would be wrong.
            batch.job.abandon()
            self._give_up(batch.parts, error)
            return
        cuts = [(part, mel) for part, mel in zip(batch.parts, mels, strict=True) if mel is not None]
        for part in batch.parts:
            segment, cut = part.track.segment, part.item.cut
            if cut is None:
                segment.lacks_prompt = False
            else:
                segment.spoken += cut.hop
        idle = [part for part, mel in zip(batch.parts, mels, strict=True) if mel is None]
        self._settle_parts(idle)
        # A CPU vocodes one after the other, so that nobody waits for what is less urgent; a device all at once.
        for group in [[pair] for pair in cuts] if self._one_by_one else [cuts]:
            if group:
                parts, made = [part for part, _ in group], [mel for _, mel in group]
                self._voiceless.append(_Voiceless(next(self._numbers), parts, made))

    def _vocode(self, parts: list[Part], mels: list[Tensor]) -> None:
        pieces = [_piece(part, mel) for part, mel in zip(parts, mels, strict=True)]
        work = self._size([piece.frames for piece in pieces])

        def tell(seconds: float) -> None:
            self._costs.observe(Stage.VOCODER, work, seconds)
            self._statistics.batch(Stage.VOCODER, work.rows, seconds)
            for part in parts:
                part.track.ticket.vocoder_s += seconds / len(parts)

        waves: list[Tensor] | None = None
        try:
            with self._lane.work(tell):
                waves = self._vocoder.run(pieces)
                copies = _to_host(waves)
                mark = self._lane.mark()
        except Exception as error:
            # What was vocoded cannot be once more: its stream remembers it as spoken.
            if waves is not None or len(parts) == 1 or not is_out_of_memory(error):
                self._give_up(parts, error)
                return
        else:
            self._leaving.append(_Leaving(parts, copies, mark))
            return
        # Not in the handler: there the error would keep the batch's tensors alive.
        self._make_room()
        half = len(parts) // 2
        self._vocode(parts[:half], mels[:half])
        self._vocode(parts[half:], mels[half:])

    def _recover(self, parts: list[Part], error: Exception) -> None:
        """After out-of-memory try again in two halves; a part alone once more with room made, then it fails."""
        if is_out_of_memory(error):
            self._make_room()
            if len(parts) > 1:
                half = len(parts) // 2
                self._again.extend((parts[:half], parts[half:]))
                return
            if parts[0].attempts == 0:
                self._again.append([replace(parts[0], attempts=1)])
                return
        self._give_up(parts, error)

    def _make_room(self) -> None:
        """Give back what torch's allocator keeps in pieces that are too small."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _give_up(self, parts: list[Part], error: Exception) -> None:
        self._fail([part.track for part in parts], error)
        self._settle_parts(parts)

    def _settle_parts(self, parts: Sequence[Part]) -> None:
        """Their batch has ended: the segments may be cut again."""
        for part in parts:
            part.track.segment.busy = False


def _work(part: Part) -> FlowChunk | PromptWork:
    track, cut = part.track, part.item.cut
    if cut is None:
        return PromptWork(track.flow)
    end = len(track.tokens)
    policy = track.ticket.request.policy
    if policy is not None and not cut.final:
        end = track.segment.spoken + cut.hop + policy.lookahead
    return FlowChunk(track.flow, tuple(track.tokens[:end]), cut.hop, _ATTENTION[cut.kind])


def _piece(part: Part, mel: Tensor) -> Piece:
    cut = part.item.cut
    assert cut is not None
    return Piece(part.track.wave, mel, cut.final, whole=part.track.ticket.request.policy is None)


def _to_host(waves: Sequence[Tensor]) -> list[Tensor]:
    """All of a batch in one copy, that is on its way when this returns."""
    if waves[0].device.type != "cuda":
        return [samples.cpu() for samples in waves]
    samples = torch.cat(list(waves))
    copy = torch.empty(samples.shape, dtype=samples.dtype, pin_memory=True)
    copy.copy_(samples, non_blocking=True)
    return list(copy.split([len(samples) for samples in waves]))
