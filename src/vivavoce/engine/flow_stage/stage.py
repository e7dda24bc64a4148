"""The flow stage: opens and closes streams, and computes the mel of their chunks in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from torch import Tensor

from vivavoce.engine.cost_model import ShortBatches
from vivavoce.engine.flow_stage.padded import PaddedPath
from vivavoce.engine.flow_stage.planning import FlowRow, FlowStream, PagePool, Planner, PromptCache
from vivavoce.engine.request import Conditioning, FlowSteps
from vivavoce.models.build import Models
from vivavoce.models.flow.external import ExternalFlow
from vivavoce.models.flow.model import FlowSchedule, fixed_noise
from vivavoce.models.layers import PairRunner

if TYPE_CHECKING:
    from vivavoce.engine.flow_stage.packed import PackedPath


class Solver(Protocol):
    @property
    def rows(self) -> Sequence[FlowRow]: ...

    def step(self, number: int) -> None: ...

    def finish(self) -> Sequence[Tensor | None]:
        """Store the rows' state; return each row's new frames, [frames, bins] float32, None for a prompt."""


@dataclass(eq=False)
class FlowBatch:
    """A running batch, from `FlowStage.start` on. It ends with `result`, with `abandon`, or with a step that fails."""

    end: Callable[[FlowBatch, bool], None]
    """Updates the streams at the batch's end; the second argument tells whether the batch has finished."""
    rows: Sequence[FlowRow]
    steps_left: int
    share: float = 1.0
    solvers: list[Solver] = field(default_factory=list)
    steps_done: int = 0
    ended: bool = False

    def step(self) -> None:
        if self.ended or self.steps_left == 0:
            raise ValueError("the batch has no step left")
        try:
            for solver in self.solvers:
                solver.step(self.steps_done)
        except BaseException:
            self.abandon()
            raise
        self.steps_done += 1
        self.steps_left -= 1

    def result(self) -> list[Tensor | None]:
        """Return each row's new frames, [2 · hop, bins] float32 on the device, None for prompts. Call it once.

        It counts the rows' hops as spoken.
        """
        if self.ended or self.steps_left:
            raise ValueError(
                f"the batch has {self.steps_left} steps left" if self.steps_left else "the batch has ended"
            )
        mels: dict[FlowRow, Tensor | None] = {}
        for solver in self.solvers:
            mels.update(zip(solver.rows, solver.finish(), strict=True))
        self.end(self, True)
        return [mels.get(row) for row in self.rows]

    def abandon(self) -> None:
        """Give the batch up: its streams are as they were before it started. Does nothing once the batch has ended."""
        if not self.ended:
            self.end(self, False)


class FlowStage:
    """Computes mel from speech tokens, in batches of chunks. One thread uses it; rows never affect one another.

    State is a cache: if a chunk's past is missing (with attention BLOCKS), it is computed again, with the same result.

    Args:
        models: networks on one device; the memory layout of their weights is changed.
        state_bytes: bytes of memory for state.
        kernels: run the encoder and the estimator on our own kernels, without padding; see `vivavoce_kernels.usable`.
        deterministic: slower, needs kernels; a row's bits depend neither on other rows nor on whether its past is kept.
        external: networks of another runtime, used instead of the model's networks, without kernels and without state.
        most_frames: with kernels, frames of the largest batch; larger batches are split. None: chosen for speed.
        both: without kernels, computes a step's two halves, with and without conditions; None: in one batch.

    Raises:
        ValueError: the kernels do not support the networks' sizes; or `deterministic` is set without `kernels`.
    """

    def __init__(
        self,
        models: Models,
        *,
        state_bytes: int,
        kernels: bool = False,
        deterministic: bool = False,
        most_frames: int | None = None,
        both: PairRunner | None = None,
        external: ExternalFlow | None = None,
    ) -> None:
        if external is not None:
            kernels, state_bytes, both = False, 0, None
        if deterministic and not kernels:
            raise ValueError("deterministic: the flow needs kernels for it; set kernels, or leave deterministic out")
        estimator, encoder = external or (None, None)
        for network, other in ((models.flow.encoder, encoder), (models.flow.estimator, estimator)):
            if other is None:
                network.lay_out()
        config = models.config.flow
        self._config, self.pool = config, PagePool(models, state_bytes, kernels=kernels)
        self.prompts = PromptCache(self.pool)
        self.planner = Planner(config, self.pool, self.prompts)
        velocity = estimator or models.flow.estimator
        self.schedules = {
            FlowSteps.OFFICIAL: FlowSchedule.euler(velocity, config.num_steps),
            FlowSteps.FAST: FlowSchedule.fast(velocity, config.num_steps),
        }
        noise = fixed_noise(config.num_mel_bins).to(models.device)
        plain = PaddedPath(models, self.pool, self.schedules, noise, velocity, encoder or models.flow.encoder, both)
        self.path: PaddedPath | PackedPath = plain
        if kernels:
            # Triton may not be installed.
            from vivavoce.engine.flow_stage.packed import PackedPath

            self.path = PackedPath(plain, deterministic=deterministic, most_frames=most_frames)
        self._streams: set[FlowStream] = set()
        self._batches: set[FlowBatch] = set()

    @property
    def short(self) -> ShortBatches:
        return self.path.short

    def prepare(self, frames: int | None = None) -> None:
        self.path.prepare(frames)

    def open(self, conditioning: Conditioning, steps: FlowSteps = FlowSteps.OFFICIAL) -> FlowStream:
        stream = FlowStream(conditioning, self.prompts, self._config, steps)
        self._streams.add(stream)
        return stream

    def close(self, stream: FlowStream) -> None:
        """Free the stream's state; pages in a running batch are freed with the batch. May be called again."""
        stream.closed = True
        self._streams.discard(stream)
        self.drop_state(stream)

    def drop_state(self, stream: FlowStream) -> None:
        if stream.state:
            self.pool.release(stream.state.pages)
            stream.state = None

    def lacks_prompt(self, stream: FlowStream) -> bool:
        """Return whether the prompt's state is missing, the prompt is long enough, and enough pages can be freed."""
        if stream.voice is None or stream.voice in self.prompts.states:
            return False
        pages = self.pool.pages_for(stream.prompt_end) + 1
        return len(self.pool.free) + self.prompts.could_free() >= pages

    def start(self, rows: Sequence[FlowRow]) -> FlowBatch:
        """Begin a batch of rows with the same attention and steps; prompts and chunks with BLOCKS may be mixed.

        InvalidRequest: a row has more frames than the flow has noise for; then nothing was begun.
        """
        streams = {row.stream for row in rows}
        if len({(row.attention, row.stream.steps) for row in rows}) != 1 or len(streams) != len(rows):
            raise ValueError("a batch needs one kind of attention and of steps, and each stream only once")
        if any(stream.busy or stream.closed for stream in streams):
            raise ValueError("a stream of the batch is closed, or in a running batch")
        for row in rows:
            self.planner.check(row)
        evaluations = len(self.schedules[rows[0].stream.steps])
        batch = FlowBatch(self.end, rows, evaluations, evaluations / self._config.num_steps)
        self._batches.add(batch)
        try:
            voices, planned = set(), []
            for row in rows:
                row.stream.busy = True
                if not row.hop and row.stream.voice in voices:
                    continue
                if not row.hop:
                    voices.add(row.stream.voice)
                if self.planner.plan(row):
                    planned.append(row)
            for kept in (True, False):
                together = [row for row in planned if (row.after is not None) == kept]
                for part in self.path.parts(together) if together else ():
                    batch.solvers.append(self.path.begin(part))
        except BaseException:
            batch.abandon()
            raise
        return batch

    def end(self, batch: FlowBatch, finished: bool) -> None:
        batch.ended, batch.solvers = True, []
        self._batches.remove(batch)
        for row in batch.rows:
            stream = row.stream
            stream.busy = False
            if row.hop and finished:
                stream.spoken += row.hop
                if row.blocks:
                    stream.blocks = row.blocks
                    self.drop_state(stream)
                if row.after and not stream.closed:
                    stream.state = row.after
                    continue
            elif row.after and finished and stream.voice is not None:
                self.prompts.add(stream.voice, row.after)
                continue
            if row.after:
                self.pool.release(row.after.pages)
