"""The door of the flow stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from vivavoce.engine.flow_stage.blocks import near_equal
from vivavoce.engine.flow_stage.job import FlowJob, Lane
from vivavoce.engine.flow_stage.lane import PaddedLane, Workplace
from vivavoce.engine.flow_stage.planning import Planner, Row
from vivavoce.engine.flow_stage.pool import PagePool
from vivavoce.engine.flow_stage.prompts import PromptCache
from vivavoce.engine.flow_stage.stream import FlowStream
from vivavoce.engine.flow_stage.work import Attention, FlowChunk, PromptWork
from vivavoce.engine.request import Conditioning
from vivavoce.models.build import Models
from vivavoce.models.flow.matching import Schedule, fixed_noise


@dataclass(frozen=True)
class FlowStatistics:
    """How the stage stands, and what it has done since it was made.

    prompt_hits: rows that began with the state of their voice's prompt; prompt_misses: prompts that were computed;
    recomputed: chunks whose past was computed again for want of state.
    """

    pages_in_use: int
    pages_total: int
    prompts: int
    prompt_hits: int
    prompt_misses: int
    recomputed: int


class _Lanes(Protocol):
    """How batches are computed."""

    def parts(self, rows: Sequence[Row]) -> Sequence[Sequence[Row]]:
        """The rows in the order in which they came, as many together as can be."""

    def begin(self, rows: Sequence[Row]) -> Lane: ...

    def prepare(self, frames: int | None) -> None: ...


class _PaddedLanes:
    """By the network as it is."""

    def __init__(self, place: Workplace) -> None:
        self._place = place

    def parts(self, rows: Sequence[Row]) -> Sequence[Sequence[Row]]:
        return [rows]

    def begin(self, rows: Sequence[Row]) -> Lane:
        return PaddedLane(self._place, rows)

    def prepare(self, frames: int | None) -> None:
        """Nothing is to be done."""


class FlowStage:
    """Batches of chunks from speech tokens to mel. One thread uses it; rows never affect one another.

    State is a cache: what a chunk of blocks does not find of its past is computed again, with the same result.

    Args:
        models: networks on one device. The flow's weights are moved in memory to where inference reads them best.
        state_bytes: what the state of all sequences and voices may take on the device; 0 is enough to work.
        kernels: compute the encoder and the estimator without padding by kernels of our own, where
            `models.kernels.usable` says so.
        deterministic: with kernels, and slower: what a row computes does not depend on its neighbours, nor on whether
            its past was kept, to the bit.
        fp8: with kernels; the products of the estimator's transformer blocks are of e4m3.
        most_frames: with kernels; of the largest batch that is recorded: larger ones are cut. None: as many as pay.

    Raises:
        ValueError: a network of sizes that the kernels do not take; or deterministic or fp8 without kernels.
    """

    def __init__(
        self,
        models: Models,
        *,
        state_bytes: int,
        kernels: bool = False,
        deterministic: bool = False,
        fp8: bool = False,
        most_frames: int | None = None,
    ) -> None:
        if (deterministic or fp8) and not kernels:
            asked = "deterministic" if deterministic else "fp8"
            raise ValueError(f"{asked}: the flow is so with kernels only; set kernels or leave it out")
        models.flow.lay_out()
        config = models.config.flow
        self._config, self._pool = config, PagePool(models, state_bytes, kernels=kernels)
        self._prompts = PromptCache(self._pool)
        self._planner = Planner(config, self._pool, self._prompts)
        schedule = Schedule.of(models.flow.estimator, config.num_steps)
        noise = fixed_noise(config.num_mel_bins).to(models.device)
        place = Workplace(models, self._pool, schedule, noise)
        self._lanes: _Lanes = _packed_lanes(place, deterministic, fp8, most_frames) if kernels else _PaddedLanes(place)
        self._streams: set[FlowStream] = set()
        self._jobs: set[FlowJob] = set()

    def open(self, conditioning: Conditioning) -> FlowStream:
        """A sequence's place; it holds no pages until its first chunk."""
        encoder = self._config.encoder
        bounds = near_equal(0, max(0, len(conditioning.flow_tokens) - encoder.lookahead), encoder.chunk)
        stream = FlowStream(conditioning, self._prompts, encoder.upsampling, bounds)
        self._streams.add(stream)
        return stream

    def close(self, stream: FlowStream) -> None:
        """Free what the stream holds; pages in a running batch are freed with it. May be called again."""
        stream.closed = True
        self._streams.discard(stream)
        self._drop(stream)

    def lacks_prompt(self, stream: FlowStream) -> bool:
        """Whether to compute the state of the stream's voice before its next chunk of blocks.

        It is not known, the prompt is long enough to have one, and there is room for it and for the stream.
        """
        if stream.voice is None or stream.known:
            return False
        pages = self._pool.pages_for(stream.prompt_end) + 1
        return self._pool.free + self._prompts.could_free() >= pages

    def start(self, work: Sequence[FlowChunk | PromptWork]) -> FlowJob:
        """Begin one batch, all of one attention; chunks of blocks may stand beside prompts.

        Raises:
            InvalidRequest: a row has more frames than the flow has noise for. Nothing was begun.
        """
        self._check(work)
        rows: list[Row] = []
        lanes: list[Lane] = []
        job = FlowJob(work, rows, lanes, self._config.num_steps, self._end)
        self._jobs.add(job)
        for one in work:
            one.stream.busy = True
        try:
            rows.extend(self._plan(work))
            for kept in (True, False):
                together = [row for row in rows if (row.after is not None) == kept]
                if together:
                    lanes.extend(self._lanes.begin(part) for part in self._lanes.parts(together))
        except BaseException:
            job.abandon()
            raise
        return job

    def prepare(self, frames: int | None = None) -> None:
        """Do ahead what the first batches of each size up to so many frames would wait for; None: of all sizes."""
        self._lanes.prepare(frames)

    def statistics(self) -> FlowStatistics:
        """A snapshot."""
        pool, planner = self._pool, self._planner
        return FlowStatistics(
            pages_in_use=pool.total - pool.free,
            pages_total=pool.total,
            prompts=len(self._prompts),
            prompt_hits=planner.prompt_hits,
            prompt_misses=planner.prompt_misses,
            recomputed=planner.recomputed,
        )

    def balanced(self) -> bool:
        """Whether every page is free or held by exactly those who say so."""
        states = [
            *(stream.state for stream in self._streams),
            *self._prompts,
            *(row.after for job in self._jobs for row in job.rows),
        ]
        return self._pool.balanced(state.pages for state in states if state)

    def _check(self, work: Sequence[FlowChunk | PromptWork]) -> None:
        kinds = {one.attention if isinstance(one, FlowChunk) else Attention.BLOCKS for one in work}
        streams = {one.stream for one in work}
        if len(kinds) != 1 or len(streams) != len(work):
            raise ValueError("a batch is of one kind of attention, and has a stream once")
        if any(stream.busy or stream.closed for stream in streams):
            raise ValueError("a stream of the batch is closed, or in a running batch")
        for one in work:
            self._planner.check(one)

    def _plan(self, work: Sequence[FlowChunk | PromptWork]) -> Iterator[Row]:
        voices = set()
        for one in work:
            if isinstance(one, FlowChunk):
                yield self._planner.chunk(one)
            elif one.stream.voice not in voices:
                voices.add(one.stream.voice)
                row = self._planner.prompt(one)
                if row:
                    yield row

    def _end(self, job: FlowJob, done: bool) -> None:
        self._jobs.remove(job)
        for one in job.work:
            one.stream.busy = False
        for row in job.rows:
            stream = row.stream
            if isinstance(row.work, FlowChunk) and done:
                stream.spoken += row.work.hop
                if row.blocks:
                    stream.blocks = row.blocks
                    self._drop(stream)
                if row.after and not stream.closed:
                    stream.state = row.after
                    continue
            elif row.after and done and stream.voice is not None:
                self._prompts.add(stream.voice, row.after)
                continue
            if row.after:
                self._pool.release(row.after.pages)

    def _drop(self, stream: FlowStream) -> None:
        if stream.state:
            self._pool.release(stream.state.pages)
            stream.state = None


def _packed_lanes(place: Workplace, deterministic: bool, fp8: bool, most_frames: int | None) -> _Lanes:
    # Triton is not installed everywhere.
    from vivavoce.engine.flow_stage.packed_lane import PackedLanes

    return PackedLanes(place, deterministic=deterministic, fp8=fp8, most_frames=most_frames)
