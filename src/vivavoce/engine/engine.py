"""The engine: submit a request, get a handle. One thread, one loop, three batched stages."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

import torch

from vivavoce.engine.books import Books
from vivavoce.engine.chunk_policy import ChunkPolicy
from vivavoce.engine.cost_model import CPU_PRIORS, GPU_PRIORS, PLAIN_GPU_PRIORS, CostModel, CostSnapshot
from vivavoce.engine.handle import Handle, More, Outbox, check_arrival
from vivavoce.engine.host_threads import release_idle_team
from vivavoce.engine.language_lane import LanguageLane
from vivavoce.engine.lm_stage import Chooser
from vivavoce.engine.loop import Loop
from vivavoce.engine.loop_thread import LoopThread, stopped
from vivavoce.engine.messages import Cancelled, Prepare, Submitted, TextArrived
from vivavoce.engine.precision import check_precision
from vivavoce.engine.request import Arrival, Conditioning, SamplingParams, SpeechRequest, SynthesisRequest
from vivavoce.engine.scheduler import Scheduler
from vivavoce.engine.settings import EngineSettings, plan_memory, uses_kernels
from vivavoce.engine.statistics import RequestEvent, Statistics, StatisticsSnapshot
from vivavoce.engine.stream import Stream
from vivavoce.engine.synthesis_lane import SynthesisLane
from vivavoce.engine.ticket import Ticket, Track
from vivavoce.engine.workshop import Workshop
from vivavoce.errors import InvalidRequest, OutOfMemory, Overloaded
from vivavoce.models.build import Models

NONSENSE_PROMPT, NONSENSE_TOKENS = 100, 75
"""Speech tokens of the streams that measure the machine."""


class Engine:
    """Speaks for any number of users at once; safe to use from any thread.

    Args:
        models: networks on one device.
        settings: slots, memory, admission.
        official: end the decode by the official rules; for parity, together with the `official` chunk policy.
        chooser: stands in for repetition-aware sampling.
        source_noise: whether the vocoder's source has its noise; without it audio is a function of the tokens.
    """

    def __init__(
        self,
        models: Models,
        settings: EngineSettings = EngineSettings(),
        *,
        official: bool = False,
        chooser: Chooser | None = None,
        source_noise: bool = True,
    ) -> None:
        self.models, self.settings = models, settings
        self.memory = plan_memory(models, settings)
        self._kernels = uses_kernels(models, settings)
        check_precision(settings.precision, models, kernels=self._kernels and chooser is None)
        with torch.inference_mode():
            self._workshop = Workshop(
                models,
                self.memory,
                kernels=self._kernels,
                deterministic=settings.deterministic,
                precision=settings.precision,
                official=official,
                chooser=chooser,
                source_noise=source_noise,
            )
        if models.device.type == "cuda":
            # Weights and state were laid out on this thread's stream, which the lanes' streams do not wait for.
            torch.cuda.synchronize(models.device)
        self._costs = CostModel(CPU_PRIORS if self._exclusive else GPU_PRIORS if self._kernels else PLAIN_GPU_PRIORS)
        self._statistics = Statistics()
        self._books = Books(settings, self._costs, models.config.rates, self.memory.slots)
        self._loop = self._make_loop()
        self._ids = itertools.count()
        self._runner = LoopThread(self, self._loop, "vivavoce-engine")

    @property
    def healthy(self) -> bool:
        """It takes requests."""
        return self._runner.healthy

    @property
    def stuck_s(self) -> float:
        """Seconds that it has been at one step: fractions of one, unless its device does not answer; 0: it waits."""
        return max(0.0, time.perf_counter() - self._loop.busy_since)

    @property
    def statistics(self) -> StatisticsSnapshot:
        """What it has done so far."""
        return self._statistics.snapshot(waiting=self._books.load().waiting)

    @property
    def costs(self) -> CostSnapshot:
        """What batches of each stage have cost so far, by their size."""
        return self._costs.snapshot()

    def submit(self, request: SpeechRequest) -> Handle:
        """Take a request in; returns at once.

        Raises:
            InvalidRequest: it does not fit the model.
            Overloaded: running streams would run dry, or too many requests wait; says when to come again.
            EngineStopped: the engine was closed or has failed.
        """
        if not self.healthy:
            raise stopped()
        self._runner.start()
        try:
            return self._enqueue(request)
        except Overloaded:
            self._statistics.request(RequestEvent.REFUSED)
            raise

    def check_load(self, streaming: bool) -> None:
        """Refuse at once what would be refused anyway: text and voices cost time that running streams need.

        Raises:
            Overloaded: as `submit`.
        """
        try:
            self._books.check(streaming)
        except Overloaded:
            self._statistics.request(RequestEvent.REFUSED)
            raise

    def warm_up(self, seconds: float = 3.0, streams: int | None = None) -> None:
        """Record the stages' launches, then speak nonsense until the costs are known: one stream, then 2, 4, 8 … at
        once, for about that many seconds. What the process holds by then is set aside from garbage collection, whose
        pauses streams would hear, until the engine is closed (`engine/collector.py`).

        streams: record what so many low_latency ones at once need, and the rest when it is first met; None: all.

        Raises:
            InvalidRequest: streams is below 1.
        """
        if streams is not None and streams < 1:
            raise InvalidRequest(f"streams: {streams} is below 1; choose 1 or more, or leave it out")
        self._runner.start()
        prepared: Future[None] = Future()
        self._loop.post(Prepare(streams, prepared))
        prepared.result()
        self._measure(seconds, min(streams or self.memory.slots, self.memory.slots))
        self._runner.set_aside.begin()

    def _measure(self, seconds: float, most: int) -> None:
        """Speak nonsense: one stream, then more, `most` at last."""
        count, until = 1, time.perf_counter() + seconds
        while count == 1 or (time.perf_counter() < until and count <= most):
            requests = [self._nonsense(seed) for seed in range(count)]
            try:
                for handle in [self._enqueue(one, asked=False) for one in requests]:
                    handle.result()
            except OutOfMemory:
                return  # what smaller batches have taught is enough
            count *= 2

    def close(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """Stop: accepted requests are finished (`drain`, for `timeout_s` at most), or end with EngineStopped."""
        self._runner.close(drain=drain, timeout_s=timeout_s)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _exclusive(self) -> bool:
        """All stages take turns on one processor."""
        return self.models.device.type != "cuda"

    def _enqueue(self, request: SpeechRequest, asked: bool = True) -> Handle:
        arrived = deque(self._workshop.check_in(segment, request.arrival) for segment in request.segments)
        stream = Stream(next(self._ids), request.policy, time.perf_counter(), self.models.config.rates)
        stream.complete = request.arrival is not Arrival.SEGMENTS
        ticket = Ticket(stream, request, Outbox(), arrived, asked)
        self._books.admit(ticket)
        if asked:
            self._statistics.request(RequestEvent.ACCEPTED)
        if self._exclusive:
            release_idle_team()
        self._loop.post(Submitted(ticket))
        # A handle may be kept for long: it knows the number, not the stream and what hangs on it.
        number, arrival = stream.id, request.arrival

        def push(more: More) -> None:
            check_arrival(more, arrival)
            if isinstance(more, tuple):
                self._workshop.check_text(more)
            checked = self._workshop.check_in(more, Arrival.WHOLE) if isinstance(more, SynthesisRequest) else more
            self._loop.post(TextArrived(number, checked))

        return Handle(ticket.outbox, cancel=lambda: self._loop.post(Cancelled(number)), push=push)

    def _make_loop(self) -> Loop:
        workshop, device = self._workshop, self.models.device
        limits = self.settings.limits.within(self.memory.batch_frames)
        # The lanes report failures to the loop, which is made of them.
        loop: Loop

        def fail(tracks: Sequence[Track], error: Exception) -> None:
            loop.fail(tracks, error)

        loop = Loop(
            LanguageLane(workshop.lm, device, self._costs, self._statistics, fail),
            SynthesisLane(
                workshop.flow, workshop.vocoder, device, self._costs, self._statistics, fail, padded=not self._kernels
            ),
            Scheduler(self._costs, limits, exclusive=self._exclusive, padded=not self._kernels),
            self._statistics,
            self.models.config.rates.sample_rate,
            self._books,
            workshop.open,
        )
        return loop

    def _nonsense(self, seed: int) -> SpeechRequest:
        """A stream of three seconds in a voice of nothing."""
        generator = torch.Generator().manual_seed(seed)
        config = self.models.config
        tokens = torch.randint(config.flow.num_tokens, (NONSENSE_PROMPT,), generator=generator)
        mel = torch.zeros(NONSENSE_PROMPT * config.rates.frames_per_token, config.flow.num_mel_bins)
        voice = Conditioning(torch.ones(config.flow.speaker_size), (1,), tuple(tokens.tolist()), tokens, mel)
        sampling = SamplingParams(exact_tokens=NONSENSE_TOKENS)
        segment = SynthesisRequest(voice, text=(1,) * 10, sampling=sampling, seed=seed)
        return SpeechRequest((segment,), ChunkPolicy.low_latency())
