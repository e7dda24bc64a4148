"""The engine: submit a request, get a handle. One thread, one loop, batched stages.

Its models decide what it can do. All three networks: text or speech tokens → audio (`EngineRequest`). A language
model alone: a prompt → speech tokens (`TokenRequest`). Flow and vocoder alone: speech tokens → audio (`EngineRequest`
whose segments bring speech tokens, or whose speech tokens arrive).
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, overload

import torch

from vivavoce.checkpoint.config import LMConfig
from vivavoce.engine.admission import AdmissionController
from vivavoce.engine.backends.registry import foreign_flow, lm_stage
from vivavoce.engine.chunk_policy import ChunkPolicy, policy_for
from vivavoce.engine.cost_model import CPU_PRIORS, GPU_PRIORS, PLAIN_GPU_PRIORS, CostModel, CostSnapshot
from vivavoce.engine.device import DeviceQueue, HostThreads, release_idle_team
from vivavoce.engine.generations import STAGES
from vivavoce.engine.handle import Handle, More, Outbox, RequestHandle, TokenHandle
from vivavoce.engine.lm_runner import LMRunner
from vivavoce.engine.lm_stage import Chooser, DecodeRun, StreamingPrompt, plain_run
from vivavoce.engine.loop import Loop
from vivavoce.engine.request import (
    Conditioning,
    EngineRequest,
    InputMode,
    SamplingParams,
    SegmentRequest,
    SpeechTokens,
    TokenRequest,
)
from vivavoce.engine.request_state import Phase, RequestState, SequenceState, Taken
from vivavoce.engine.scheduler import Scheduler
from vivavoce.engine.settings import (
    EngineSettings,
    MemoryPlan,
    has_language_model,
    plan_memory,
    uses_kernels,
)
from vivavoce.engine.stages import Stages
from vivavoce.engine.statistics import Statistics, StatisticsSnapshot
from vivavoce.engine.synthesis_runner import SynthesisRunner
from vivavoce.errors import InvalidRequest, OutOfMemory, Overloaded
from vivavoce.models.build import LanguageModel, Models
from vivavoce.models.generations import MAX_FRAMES
from vivavoce.models.layers import PairRunner
from vivavoce.models.lm.interleave import Row, RowKind, TextInterleaver
from vivavoce.rates import Rates

WARMUP_PROMPT, WARMUP_TOKENS = 100, 75
"""Speech tokens of the streams that measure the machine."""
_LONE_RATES = Rates(24_000, 480, 25)
"""Of a language model alone: it makes no audio, and only relations of its own requests' urgency depend on them."""


def build_stages(
    models: Models | LanguageModel,
    settings: EngineSettings,
    memory: MemoryPlan,
    *,
    chooser: Chooser | None = None,
    source_noise: bool = True,
    both: PairRunner | None = None,
) -> Stages:
    """The stages of the models that have weights; arguments as for `Engine`; both: as for `FlowStage`.

    Raises:
        InvalidRequest: the device's kernels do not take networks of these sizes, or a backend cannot run them.
        MissingDependency: a backend's package is not here.
    """
    kernels, frames, builders = uses_kernels(models, settings), memory.batch_frames, STAGES[models.config.generation]
    ways = {"kernels": kernels, "deterministic": settings.deterministic}
    stages = Stages(None, None, None)
    try:
        with torch.inference_mode():
            if settings.lm_backend != "torch":
                stages = replace(stages, lm=lm_stage(models, settings, memory))
            elif has_language_model(models):
                lm = builders.lm(models, slots=memory.slots, capacity=memory.capacity, chooser=chooser, **ways)
                stages = replace(stages, lm=lm)
            if isinstance(models, Models):
                foreign, shared = foreign_flow(models, settings), {"most_frames": frames, "both": both}
                more = {} if foreign is None else {"foreign": foreign}
                flow = builders.flow(models, state_bytes=memory.state_bytes, **shared, **ways, **more)
                vocoder = builders.vocoder(models, source_noise=source_noise, kernels=kernels, **shared)
                stages = replace(stages, flow=flow, vocoder=vocoder)
    except ValueError as error:
        raise InvalidRequest(f"kernels: {error}") from None
    return stages


def assemble(
    stages: Stages,
    settings: EngineSettings,
    memory: MemoryPlan,
    rates: Rates,
    policy: ChunkPolicy,
    costs: CostModel,
    queues: tuple[DeviceQueue, DeviceQueue],
    *,
    kernels: bool,
    exclusive: bool,
    silent: tuple[int, ...] = (),
    enter: Callable[[], None] | None = None,
) -> tuple[Loop, AdmissionController, Statistics]:
    """What decides, over a device's stages or over simulated ones. policy: how streams are taken to be cut; queues: of
    the language model, and of flow and vocoder; the others are as for `Engine`, `LMRunner` and `Loop`.
    """
    statistics, limits = Statistics(), settings.limits.within(memory.batch_frames)
    admission = AdmissionController(costs, settings, rates, memory.slots, policy)
    lm, flow, vocoder = stages.lm, stages.flow, stages.vocoder
    if flow is None:  # no stream could want the slots that are spared for them
        limits = replace(limits, spare_slots=0.0)
    synthesis, padded, own_pace = None, not kernels, lm is not None and lm.self_paced
    if flow is not None and vocoder is not None:
        synthesis = SynthesisRunner(flow, vocoder, queues[1], costs, statistics, padded=padded, one_by_one=exclusive)
    runner = None if lm is None else LMRunner(lm, queues[0], costs, statistics, silent)
    scheduler = Scheduler(costs, limits, exclusive=exclusive, padded=padded, self_paced=own_pace)
    loop = Loop(runner, synthesis, scheduler, admission, statistics, enter=enter, clock=queues[0].clock)
    return loop, admission, statistics


class Engine:
    """Speaks for any number of users at once; safe to use from any thread.

    Args:
        models: networks on one device; what there is decides what the engine can do.
        settings: slots, memory, admission.
        official: end the decode by the official rules; for parity, together with the `official` chunk policy.
        chooser: stands in for repetition-aware sampling.
        source_noise: whether the vocoder's source has its noise; without it audio is a function of the tokens.
        costs: what batches are expected to take; None: a model that learns it.
        stages: stand in for those of the models.
        exclusive: all stages take turns on one processor, a row at a time where that is as fast; None: on other devices
            than CUDA.
    """

    def __init__(
        self,
        models: Models | LanguageModel,
        settings: EngineSettings = EngineSettings(),
        *,
        official: bool = False,
        chooser: Chooser | None = None,
        source_noise: bool = True,
        costs: CostModel | None = None,
        stages: Stages | None = None,
        exclusive: bool | None = None,
    ) -> None:
        self.models, self.settings, self._official = models, settings, official
        device, kernels = models.device, uses_kernels(models, settings)
        self.memory = memory = plan_memory(models, settings)
        threads = HostThreads() if device.type == "cpu" else None
        self.stages = stages or build_stages(
            models, settings, memory, chooser=chooser, source_noise=source_noise, both=threads
        )
        if device.type == "cuda":
            # Weights and state were laid out on this thread's stream, which the queues' streams do not wait for.
            torch.cuda.synchronize(device)
        self._on_host = device.type != "cuda"
        exclusive = self._on_host if exclusive is None else exclusive
        priors = CPU_PRIORS if exclusive else GPU_PRIORS if kernels else PLAIN_GPU_PRIORS
        self._costs = CostModel(priors) if costs is None else costs
        self._rates = models.config.rates if isinstance(models, Models) else _LONE_RATES
        self._ids = itertools.count()
        self._loop, self._admission, self._statistics = assemble(
            self.stages,
            settings,
            memory,
            self._rates,
            policy_for(models.config.generation, None),
            self._costs,
            (DeviceQueue(device, urgent=True), DeviceQueue(device)),
            kernels=kernels,
            exclusive=exclusive,
            silent=models.config.lm.vocabulary.silent,
            enter=None if threads is None else threads.enter,
        )
        # The thread holds the loop, not the engine: an engine that is not used any more stops by itself.
        weakref.finalize(self, self._loop.abandon)

    @property
    def healthy(self) -> bool:
        """It takes requests."""
        lm = self.stages.lm
        return self._loop.healthy and (lm is None or lm.healthy)

    @property
    def idle(self) -> bool:
        """No request is there, and nothing is left to do for those that were."""
        load = self._admission.load()
        return self._loop.idle and not (load.waiting or load.streams or load.offline)

    @property
    def stuck_s(self) -> float:
        """Seconds that it has been at one step: fractions of one, unless its device does not answer; 0: it waits."""
        return max(0.0, time.perf_counter() - self._loop.busy_since)

    @property
    def statistics(self) -> StatisticsSnapshot:
        """What it has done so far."""
        return self._statistics.snapshot(waiting=self._admission.load().waiting)

    @property
    def costs(self) -> CostSnapshot:
        """What batches of each stage have cost so far, by their size."""
        return self._costs.snapshot()

    @property
    def capacity(self) -> int:
        """Streams that it keeps up with, as far as batches were measured so far."""
        return self._admission.capacity()

    @overload
    def submit(self, request: EngineRequest) -> Handle: ...

    @overload
    def submit(self, request: TokenRequest) -> TokenHandle: ...

    def submit(self, request: EngineRequest | TokenRequest) -> Handle | TokenHandle:
        """Take a request in; returns at once.

        Raises:
            InvalidRequest: it does not fit the model, or what the engine has of it.
            Overloaded: running streams would run dry, or too many requests wait; says when to come again.
            EngineStopped: the engine was closed or has failed.
        """
        self._loop.start()
        return self._enqueue(request)

    def check_load(self, streaming: bool, request: RequestState | None = None) -> None:
        """Refuse at once what would be refused anyway (Overloaded): text and voices cost time that streams need.

        request: it is counted from then on.
        """
        counts = self._statistics.now.requests
        try:
            self._admission.check(streaming, request)
        except Overloaded:
            with self._statistics.lock:
                counts.refused += 1
            raise
        if request is not None and request.asked:
            with self._statistics.lock:
                counts.accepted += 1

    def warm_up(self, seconds: float = 3.0, streams: int | None = None) -> None:
        """Record the stages' launches, then speak nonsense until the costs are known: one stream, then 2, 4, 8 … at
        once, for about that many seconds. What the process holds by then is set aside from garbage collection, whose
        pauses streams would hear, until the engine is closed. A language model alone is not measured.

        streams: record what this many low_latency ones at once need, and the rest when it is first met; None: all.

        Raises:
            InvalidRequest: streams is below 1.
        """
        if streams is not None and streams < 1:
            raise InvalidRequest(f"streams: {streams} is below 1; choose 1 or more, or leave it out")
        self._loop.start()
        prepared: Future[None] = Future()
        self._loop.post(partial(self._loop.prepare, streams, prepared))
        prepared.result()
        count, until, most = 1, time.perf_counter() + seconds, min(streams or self.memory.slots, self.memory.slots)
        try:
            while self.stages.flow and (count == 1 or (time.perf_counter() < until and count <= most)):
                for handle in [self._enqueue(self._nonsense(seed), asked=False) for seed in range(count)]:
                    handle.result()
                count *= 2
        except OutOfMemory:
            pass  # what smaller batches have taught is enough
        self._loop.gc_freeze.begin()

    def close(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """Stop: accepted requests are finished (`drain`, for `timeout_s` at most), or end with EngineStopped.

        A device that does not answer does not hold it: without `timeout_s` a drain ends when one step takes 300 s. The
        step under way then has 10 s more, and without a drain `timeout_s` or 10 s. After that an error is logged, and
        all that waits ends with EngineStopped.
        """
        self._loop.close(drain=drain, timeout_s=timeout_s)
        if self.stages.lm is not None:
            self.stages.lm.shutdown()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _enqueue(self, request: EngineRequest | TokenRequest, asked: bool = True) -> Any:
        outbox: Outbox[Any] = Outbox()
        if isinstance(request, TokenRequest):
            arrival, policy, arrived = InputMode.WHOLE, None, deque([self._read_prompt(request)])
        else:
            arrival, policy = request.arrival, request.policy
            if policy is not None:
                policy = policy_for(self.models.config.generation, policy)
            arrived = deque(self._check_in(segment, arrival) for segment in request.segments)
        state = RequestState(next(self._ids), policy, time.perf_counter(), self._rates, outbox, arrived, asked=asked)
        state.tokens_only, state.arrival = isinstance(request, TokenRequest), arrival
        state.complete = arrival in (InputMode.WHOLE, InputMode.TOKENS)
        self.check_load(state.policy is not None, state)
        if self._on_host:
            release_idle_team()
        loop, number = self._loop, state.id
        loop.post(partial(loop.accept, state))

        # A handle may be kept for long: it knows the number, not the state and what hangs on it.
        def push(more: More) -> None:
            loop.post(partial(loop.take, number, self._check_more(more, arrival)))

        return RequestHandle(outbox, cancel=partial(loop.leave, number), push=push)

    def _check_more(self, more: More, arrival: InputMode) -> Taken:
        """What was pushed, as the loop takes it."""
        if more is None or isinstance(more, Exception):
            return more
        takes, given = InputMode.TOKENS, "text ids were"
        if isinstance(more, SegmentRequest):
            takes, given = InputMode.SEGMENTS, "a segment was"
        elif isinstance(more, SpeechTokens):
            takes, given = InputMode.SPEECH, "speech tokens were"
        if arrival is not takes:
            raise InvalidRequest(f"text: {given} pushed to a request of arrival {arrival.value}; push what it takes")
        if isinstance(more, SegmentRequest):
            more.check_not_empty()
            return self._check_in(more, InputMode.WHOLE)
        vocabulary = self.models.config.lm.vocabulary
        if isinstance(more, SpeechTokens):
            _check_range("speech tokens", more.tokens, vocabulary.num_speech_tokens)
        else:
            _check_range("text", more, self.models.config.lm.text_vocab_size)
        return more

    def _check_in(self, segment: SegmentRequest, arrival: InputMode) -> SequenceState:
        """A segment with the language model's work for it; safe to call from any thread."""
        self._check_ids(segment)
        config, voice, lm = self.models.config.lm, segment.conditioning, self.stages.lm
        room = self._rates.tokens_in(MAX_FRAMES) - len(voice.flow_tokens)
        sequence = SequenceState(segment, prompt_tokens=len(voice.flow_tokens))
        tokens = () if segment.pause_s else segment.speech_tokens
        if arrival in (InputMode.TOKENS, InputMode.SPEECH) and not isinstance(config, LMConfig):
            raise InvalidRequest("text: CosyVoice 1 speaks whole sentences only; push them as segments")
        if tokens is not None:
            if len(tokens) > room:
                raise InvalidRequest(
                    f"speech tokens: {len(tokens)}, beside this voice there is room for {room}; use a shorter recording"
                )
            sequence.phase, sequence.tokens, sequence.produced = Phase.DECODED, list(tokens), len(tokens)
            sequence.limited, sequence.finished = False, segment.pause_s > 0
            if arrival is InputMode.SPEECH:
                sequence.phase, sequence.pushed = Phase.STARVED, deque()
        elif lm is None:
            raise InvalidRequest("text: this engine has no language model; give speech tokens")
        elif arrival is InputMode.TOKENS:
            assert isinstance(config, LMConfig)
            interleaver = TextInterleaver(
                config.vocabulary,
                (config.mix_text, config.mix_speech),
                voice.lm_prompt_text,
                voice.lm_prompt_tokens,
                segment.sampling.max_ratio,
                voice.lm_system_text,
                self._official,
            )
            sequence.phase, sequence.limited = Phase.STARVED, False
            sequence.text = StreamingPrompt(interleaver, config.vocabulary, room, lm.capacity)
            sequence.text.push(segment.text)
        else:
            run = plain_run(config, segment, official=self._official, room=None if self._official else room)
            lm.check(run)
            sequence.run, sequence.prompt_rows, sequence.most_tokens = run, len(run.rows), run.forced_at
            sequence.limited = segment.sampling.exact_tokens is None
        return sequence

    def _read_prompt(self, request: TokenRequest) -> SequenceState:
        config, lm = self.models.config.lm, self.stages.lm
        if lm is None:
            raise InvalidRequest("prompt: this engine has no language model; give speech tokens")
        vocabulary, rows = config.vocabulary, request.rows
        stop_ids = tuple(vocabulary.stop_ids)
        ends = stop_ids if request.ends is None else request.ends
        unknown = next((one for one in ends if one not in stop_ids), None)
        if unknown is not None:
            raise InvalidRequest(
                f"ends: id {unknown} ends no speech of this model; choose some of {stop_ids[0]} … {stop_ids[-1]}"
            )
        most = {
            RowKind.CONTROL: max(vocabulary.sos, vocabulary.task),
            RowKind.TEXT: config.text_vocab_size - 1,
            RowKind.SPEECH: vocabulary.num_speech_tokens - 1,
            RowKind.SPEAKER: -1 if request.speaker is None else 0,
        }
        wrong: Row | None = next((row for row in rows if not 0 <= row.id <= most[row.kind]), None)
        if wrong is not None:
            raise InvalidRequest(
                f"prompt: {wrong.kind.name.lower()} id {wrong.id} is outside of 0 … {most[wrong.kind]}; "
                "it is of another model"
            )
        run = DecodeRun(rows, ends, request.max_tokens, vocabulary.eos, request.min_tokens, stop_ids, request.speaker)
        if run.positions > lm.capacity:
            room = lm.capacity - len(rows) - 1
            way_out = f"ask for {room} or fewer" if room > 0 else "use a shorter text or reference"
            raise InvalidRequest(
                f"max_tokens: {request.max_tokens} after {len(rows)} rows of prompt may need {run.positions} "
                f"positions, a slot has {lm.capacity}; {way_out}"
            )
        return SequenceState(request, prompt_rows=len(rows), run=run, most_tokens=run.forced_at, finished=True)

    def _check_ids(self, segment: SegmentRequest) -> None:
        """Refuse ids that the tables lack: on a device they would end the engine for everyone."""
        voice = segment.conditioning
        if not isinstance(self.models, Models):
            raise InvalidRequest("request: this engine has no flow and no vocoder; ask for speech tokens")
        config = self.models.config
        text, speech = config.lm.text_vocab_size, config.lm.vocabulary.num_speech_tokens
        _check_range("text", segment.text, text)
        _check_range("speech tokens", segment.speech_tokens or (), speech)
        sizes = (text, speech, config.flow.num_tokens)
        if sizes in voice.fits:
            return
        _check_range("text", voice.lm_text, text)
        _check_range("speech tokens", voice.lm_prompt_tokens, speech)
        # Ids below zero stand for the first one there.
        _check_range("speech tokens", [max(0, one) for one in voice.flow_prompt], config.flow.num_tokens)
        voice.fits.add(sizes)

    def _nonsense(self, seed: int) -> EngineRequest:
        """A stream of three seconds in a voice of nothing."""
        assert isinstance(self.models, Models)
        generator, config = torch.Generator().manual_seed(seed), self.models.config
        tokens = torch.randint(config.flow.num_tokens, (WARMUP_PROMPT,), generator=generator)
        mel = torch.zeros(config.rates.frames_of(WARMUP_PROMPT), config.flow.num_mel_bins)
        voice = Conditioning(torch.ones(config.flow.speaker_size), (1,), tuple(tokens.tolist()), tokens, mel)
        if self.stages.lm is None:
            segment = SegmentRequest(voice, speech_tokens=tuple(tokens[:WARMUP_TOKENS].tolist()), seed=seed)
        else:
            sampling = SamplingParams(exact_tokens=WARMUP_TOKENS)
            segment = SegmentRequest(voice, text=(1,) * 10, sampling=sampling, seed=seed)
        return EngineRequest((segment,), policy_for(config.generation, None))


def _check_range(field: str, ids: Sequence[int], end: int) -> None:
    # Every request passes here, and hardly any fails.
    if ids and not (min(ids) >= 0 and max(ids) < end):
        wrong = next(one for one in ids if not 0 <= one < end)
        raise InvalidRequest(f"{field}: id {wrong} is outside of 0 … {end - 1}; it is of another model")
