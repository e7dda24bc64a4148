"""The engine: submit a request, get a handle. One thread runs one loop over batched stages.

The loaded models decide which requests are possible. All three networks turn text or speech tokens into audio
(`EngineRequest`). A language model alone makes speech tokens from a prompt (`TokenRequest`). Flow and vocoder alone
turn speech tokens into audio (`EngineRequest` with speech tokens in its segments, or pushed to it later).
"""

from __future__ import annotations

import hashlib
import itertools
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, overload

import torch

from vivavoce.checkpoint.config import SilentTokens
from vivavoce.engine.adapters import AdapterInfo, Adapters
from vivavoce.engine.admission import AdmissionController
from vivavoce.engine.chunk_policy import ChunkPolicy, policy_for, with_short_chunks
from vivavoce.engine.cost_model import CPU_PRIORS, GPU_PRIORS, PLAIN_GPU_PRIORS, CostModel, CostSnapshot, ShortBatches
from vivavoce.engine.device import DeviceQueue, HostThreads, release_idle_team
from vivavoce.engine.generations import STAGES
from vivavoce.engine.handle import Handle, More, Outbox, RequestHandle, TokenHandle
from vivavoce.engine.intake import Intake
from vivavoce.engine.lm_runner import LMRunner
from vivavoce.engine.lm_stage.head_search import SpokenSample, find_heads, has_heads
from vivavoce.engine.lm_stage.slots import Chooser
from vivavoce.engine.loop import Loop
from vivavoce.engine.request import (
    Conditioning,
    EngineRequest,
    FlowSteps,
    InputMode,
    SamplingParams,
    SegmentRequest,
    TokenRequest,
    check_number,
    speech_prompt,
)
from vivavoce.engine.request_state import RequestState
from vivavoce.engine.scheduler import Scheduler
from vivavoce.engine.settings import (
    EngineSettings,
    MemoryPlan,
    adapter_bytes,
    has_language_model,
    plan_memory,
    uses_kernels,
)
from vivavoce.engine.stages import Stages
from vivavoce.engine.statistics import Statistics, StatisticsSnapshot
from vivavoce.engine.synthesis_runner import SynthesisRunner
from vivavoce.engine.watermark import WatermarkStream, marked_chunk
from vivavoce.errors import InvalidRequest, OutOfMemory, Overloaded
from vivavoce.models.build import LanguageModel, Models
from vivavoce.models.layers import PairRunner
from vivavoce.models.lm.adapters import LoadedAdapter
from vivavoce.models.lm.text_attention import TextHeads
from vivavoce.rates import Rates

_LONE_RATES = Rates(24_000, 480, 25)
"""Rates assumed for a language model alone. It makes no audio, so they affect only the order of its requests."""


def build_stages(
    models: Models | LanguageModel,
    settings: EngineSettings,
    memory: MemoryPlan,
    *,
    chooser: Chooser | None = None,
    source_noise: bool = True,
    both: PairRunner | None = None,
    given: Stages = Stages(),
) -> Stages:
    """Return the stages in `given`, and new stages for other networks that have weights. Arguments are as for `Engine`.

    both: as for `FlowStage`.

    Raises:
        InvalidRequest: our kernels or a backend cannot run networks of these sizes.
        MissingDependency: a backend's package is not installed.
    """
    kernels, frames, builders = uses_kernels(models, settings), memory.batch_frames, STAGES[models.config.generation]
    ways = {"kernels": kernels, "deterministic": settings.deterministic}
    lm, flow, vocoder = given.lm, given.flow, given.vocoder
    try:
        with torch.inference_mode():
            if lm is None and settings.lm_backend != "torch":
                from vivavoce_runtimes.registry import lm_stage

                lm = lm_stage(models, settings, memory)
            elif lm is None and has_language_model(models):
                room: dict[str, int] = {}
                if settings.adapter_places:
                    adapter_bytes(models, settings)  # raises UnsupportedModel if the model cannot have adapters
                    room = {"adapters": settings.adapter_places, "adapter_rank": settings.max_adapter_rank}
                sizes = {"slots": memory.slots, "capacity": memory.capacity, **room}
                lm = builders.lm(models, chooser=chooser, **sizes, **ways)
            if isinstance(models, Models):
                shared, more = {"most_frames": frames, "both": both}, dict[str, Any]()
                if flow is None and settings.flow_backend != "torch":
                    from vivavoce_runtimes.registry import external_flow

                    more = {"external": external_flow(models, settings)}
                flow = flow or builders.flow(models, state_bytes=memory.state_bytes, **shared, **ways, **more)
                vocoder = vocoder or builders.vocoder(models, source_noise=source_noise, kernels=kernels, **shared)
    except ValueError as error:
        raise InvalidRequest(f"kernels: {error}") from None
    return Stages(lm, flow, vocoder)


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
    silent: SilentTokens = SilentTokens(),
    threads: AbstractContextManager[object] = nullcontext(),
) -> tuple[Loop, AdmissionController, Statistics]:
    """Make the loop, admission and statistics for a device's stages, or for simulated stages.

    policy: the chunk policy that admission assumes; queues: one for the language model, one for flow and vocoder; the
    other arguments are as for `Engine`, `LMRunner` and `Loop`.
    """
    statistics, limits = Statistics(), settings.limits.within(memory.batch_frames)
    admission = AdmissionController(costs, settings, rates, memory.slots, policy)
    lm, flow, vocoder = stages.lm, stages.flow, stages.vocoder
    if flow is None:  # without audio there are no streams to leave slots for
        limits = replace(limits, spare_slots=0.0)
    synthesis, padded, own_pace = None, not kernels, lm is not None and lm.self_paced
    if flow is not None and vocoder is not None:
        synthesis = SynthesisRunner(flow, vocoder, queues[1], costs, statistics, padded=padded, one_by_one=exclusive)
    runner = None if lm is None else LMRunner(lm, queues[0], costs, statistics, silent)
    short = ShortBatches() if flow is None else flow.short
    scheduler = Scheduler(costs, limits, exclusive=exclusive, padded=padded, self_paced=own_pace, short=short)
    loop = Loop(runner, synthesis, scheduler, admission, statistics, threads, clock=queues[0].clock)
    return loop, admission, statistics


class EngineInterface(Protocol):
    """The part of `Engine` that the front end uses to speak; a group of engines implements it, too."""

    def submit(self, request: EngineRequest) -> Handle: ...

    def check_load(self, streaming: bool) -> None: ...

    def warm_up(self, seconds: float = 3.0, streams: int | None = None) -> None: ...

    @property
    def text_heads(self) -> TextHeads | None: ...

    @property
    def language_model_id(self) -> str: ...

    def find_heads(self, texts: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> TextHeads | None: ...

    def watch(self, heads: TextHeads | None) -> None: ...

    @property
    def statistics(self) -> StatisticsSnapshot: ...

    @property
    def costs(self) -> Any: ...

    def close(self) -> None: ...


class Engine:
    """Speaks for any number of users at once; safe to use from any thread.

    Args:
        models: networks on one device; the engine takes the requests that they can serve.
        settings: slots, memory, admission.
        official: end decoding by the official code's rules; for parity, together with the `official` chunk policy.
        chooser: replaces repetition-aware sampling.
        source_noise: whether the vocoder's source adds noise; without noise the audio depends only on the tokens.
        costs: predicts the seconds of batches; None: a new `CostModel`.
        stages: stages to use instead of new stages that run `models`.
        exclusive: whether stages, and chunks in the vocoder, take turns on one processor; None: True except on CUDA.
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
        stages: Stages = Stages(),
        exclusive: bool | None = None,
    ) -> None:
        self.models, self.settings = models, settings
        device, kernels = models.device, uses_kernels(models, settings)
        self.memory = memory = plan_memory(models, settings)
        threads = HostThreads() if device.type == "cpu" else None
        self.stages = build_stages(
            models, settings, memory, chooser=chooser, source_noise=source_noise, both=threads, given=stages
        )
        if device.type == "cuda":
            # Weights and state were written on this thread's stream, which the queues' streams do not wait for.
            torch.cuda.synchronize(device)
        self._on_host = device.type != "cuda"
        exclusive = self._on_host if exclusive is None else exclusive
        priors = CPU_PRIORS if exclusive else GPU_PRIORS if kernels else PLAIN_GPU_PRIORS
        self._costs = CostModel(priors) if costs is None else costs
        self._rates = models.config.rates if isinstance(models, Models) else _LONE_RATES
        steps = FlowSteps(settings.flow_steps)
        lm_stage: Any = self.stages.lm
        self._adapters = Adapters(models.config.lm, lm_stage, settings.adapter_places, settings.max_adapter_rank)
        self._intake = Intake(models, self.stages.lm, self._rates, official, steps, self._adapters)
        self._ids = itertools.count()
        self._heads: TextHeads | None = None
        self._lm_id = ""
        self._loop, self._admission, self._statistics = assemble(
            self.stages,
            settings,
            memory,
            self._rates,
            self._chunked(policy_for(models.config.generation, None)),
            self._costs,
            (DeviceQueue(device, urgent=True), DeviceQueue(device)),
            kernels=kernels,
            exclusive=exclusive,
            silent=models.config.lm.vocabulary.silent,
            threads=threads or nullcontext(),
        )
        for name, folder in settings.adapters.items():
            self._adapters.load(name, Path(folder), self._loop.in_lm_queue)
        # The loop's thread refers only to the loop, so an engine that is not used any more is collected and stops.
        weakref.finalize(self, self._loop.abandon)

    def _chunked(self, policy: ChunkPolicy) -> ChunkPolicy:
        flow = self.stages.flow
        return policy if flow is None else with_short_chunks(policy, flow.short.frames, self._rates.frames_per_token)

    @property
    def healthy(self) -> bool:
        """Whether the engine takes requests."""
        lm = self.stages.lm
        return self._loop.healthy and (lm is None or lm.healthy)

    @property
    def idle(self) -> bool:
        """Whether the engine has no request and no work left."""
        load = self._admission.load()
        return self._loop.idle and not (load.waiting or load.streams or load.offline)

    @property
    def stuck_s(self) -> float:
        """Seconds that the current step has lasted: below 1 unless the device does not answer; 0 without work."""
        return max(0.0, time.perf_counter() - self._loop.busy_since)

    @property
    def statistics(self) -> StatisticsSnapshot:
        """Counters of the engine's work so far."""
        return self._statistics.snapshot(waiting=self._admission.load().waiting)

    @property
    def costs(self) -> CostSnapshot:
        """Measured costs of each stage's batches, by their size."""
        return self._costs.snapshot()

    @property
    def capacity(self) -> int:
        """Number of streams that the engine keeps up with, by the costs measured so far."""
        return self._admission.capacity()

    @property
    def places(self) -> int:
        """The number of streams that may wait for their start."""
        return self._admission.places

    @overload
    def submit(self, request: EngineRequest) -> Handle: ...

    @overload
    def submit(self, request: TokenRequest) -> TokenHandle: ...

    def submit(self, request: EngineRequest | TokenRequest) -> Handle | TokenHandle:
        """Accept a request, and return its handle at once.

        Raises:
            InvalidRequest: the request does not fit the model, or needs a network that the engine lacks.
            Overloaded: running streams would have gaps, or too many requests wait; the error tells when to retry.
            EngineStopped: the engine was closed or has failed.
        """
        self._loop.start()
        return self._enqueue(request)

    def check_load(self, streaming: bool, request: RequestState | None = None) -> None:
        """Raise Overloaded if a request would be refused now, before time is spent on its text and voice.

        request: if it is given and not refused, it counts as waiting from now on.
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

    @property
    def text_heads(self) -> TextHeads | None:
        """The attention heads that show where the voice is in the text; None if no such heads are known."""
        return self._heads

    @property
    def language_model_id(self) -> str:
        """A hash of some of the language model's weights; "" if the attention of its heads cannot be read."""
        if not has_heads(self.models.lm) or not hasattr(self.stages.lm, "watch"):
            return ""
        if not self._lm_id:
            self._lm_id = str(self._in_loop(self._hash_weights))
        return self._lm_id

    def _hash_weights(self) -> str:
        digest = hashlib.sha256(str(self.models.config.lm).encode())
        for weight in self.models.lm.state_dict().values():
            digest.update(weight.flatten()[:64].float().cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    def watch(self, heads: TextHeads | None) -> None:
        """From now on, use these attention heads to follow watched segments; if None, follow no segment."""
        self._in_loop(partial(self._watch, heads))

    def _watch(self, heads: TextHeads | None) -> None:
        self.stages.lm.watch(heads)  # type: ignore[union-attr]
        self._loop.watch(heads)
        self._heads = heads

    @property
    def adapters(self) -> tuple[AdapterInfo, ...]:
        """The LoRA adapters that requests may name."""
        return self._adapters.infos

    def load_adapter(self, name: str, folder: str | Path) -> AdapterInfo:
        """Load a LoRA adapter of the language model, as PEFT writes it, for requests that name it from now on.

        Raises:
            InvalidRequest: the folder cannot be read or does not fit the model, the name is taken, or
                `EngineSettings.max_adapters` are loaded already.
            Overloaded: a removed adapter still occupies the place that the new adapter needs.
        """
        return self._adapters.load(name, Path(folder), self._in_loop_queue)

    def check_adapter(self, name: str) -> None:
        """Raise AdapterNotFound if no adapter with this name is loaded."""
        self._adapters.find(name, {})

    def remove_adapter(self, name: str) -> None:
        """Unload an adapter; requests that already use it keep it. Raises AdapterNotFound if it is not loaded."""
        self._adapters.remove(name)

    def _in_loop_queue(self, work: Callable[[], Any]) -> Any:
        return self._in_loop(partial(self._loop.in_lm_queue, work))

    def find_heads(self, texts: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> TextHeads | None:
        """Speak some texts, and return the attention heads that follow the voice, or None. `watch` puts heads to use.

        texts: for each text its ids, and the index of the first id of each word.
        """
        lm, vocabulary, samples = self.models.lm, self.models.config.lm.vocabulary, []
        if not has_heads(lm):
            return None
        prompts = [speech_prompt(vocabulary, ids) for ids, _ in texts]
        self._loop.start()
        handles = [
            self._enqueue(TokenRequest(rows, 12 * len(ids), len(ids), seed=seed), asked=False)
            for seed, (rows, (ids, _)) in enumerate(zip(prompts, texts, strict=True))
        ]
        for (ids, words), rows, handle in zip(texts, prompts, handles, strict=True):
            tokens = tuple(one for piece in handle for one in piece)
            samples.append(SpokenSample(rows, slice(1, 1 + len(ids)), words, tokens))
        found: TextHeads | None = self._in_loop(partial(find_heads, lm, samples))
        return found

    def _in_loop(self, work: Callable[[], Any]) -> Any:
        """Run `work` in the loop's thread, which owns the device, and return its result."""
        self._loop.start()
        done: Future[Any] = Future()
        self._loop.post(partial(self._loop.call, work, done))
        return done.result()

    def warm_up(self, seconds: float = 3.0, streams: int | None = None) -> None:
        """Record the stages' CUDA graphs, then speak meaningless text to measure the costs of batches: one stream, then
        2, 4, 8 … at once, for about `seconds` in all. From then on, until the engine is closed, garbage collection
        skips the existing objects, because its pauses would interrupt streams. A language model alone is not measured.

        streams: record only the graphs for this many low_latency streams, other graphs at their first use; None: all
        graphs. InvalidRequest: streams is below 1, or seconds below 0.
        """
        check_number("seconds", seconds, 0, math.inf)
        check_number("streams", streams, 1, math.inf, whole=True)
        self._loop.start()
        self._in_loop(partial(self._loop.prepare, streams))
        count, until, most = 1, time.perf_counter() + seconds, min(streams or self.memory.slots, self.memory.slots)
        try:
            while self.stages.flow and (count == 1 or (time.perf_counter() < until and count <= most)):
                requests = [_warmup_stream(self.models, seed, self.stages.lm is not None) for seed in range(count)]
                for handle in [self._enqueue(request, asked=False) for request in requests]:
                    handle.result()
                count *= 2
        except OutOfMemory:
            pass  # the smaller batches have measured enough
        self._loop.gc_freeze.begin()

    def close(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """Stop the engine. Accepted requests are finished (`drain`, for `timeout_s` at most) or end with EngineStopped.

        A device that does not answer cannot block this call. A drain without `timeout_s` ends when one step takes 300
        s. After a drain the current step has 10 s to end; without a drain it has `timeout_s`, or 10 s if that is None.
        If it takes longer, an error is logged, and all remaining requests end with EngineStopped.
        """
        self._loop.close(drain=drain, timeout_s=timeout_s)
        if self.stages.lm is not None:
            self.stages.lm.shutdown()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _enqueue(self, request: EngineRequest | TokenRequest, asked: bool = True) -> Any:
        outbox, adapters = Outbox[Any](), dict[str, LoadedAdapter]()
        if isinstance(request, TokenRequest):
            arrival, policy, arrived = InputMode.WHOLE, None, deque([self._intake.prompt(request)])
        else:
            arrival, policy = request.arrival, request.policy
            if policy is not None:
                policy = self._chunked(policy_for(self.models.config.generation, policy))
            arrived = deque(self._intake.segment(segment, arrival, adapters) for segment in request.segments)
        state = RequestState(next(self._ids), policy, time.perf_counter(), self._rates, outbox, arrived, asked=asked)
        state.tokens_only, state.arrival, state.adapters = isinstance(request, TokenRequest), arrival, adapters
        state.complete = arrival in (InputMode.WHOLE, InputMode.TOKENS)
        state.batch = isinstance(request, EngineRequest) and request.batch
        self.check_load(state.live, state)
        if self._on_host:
            release_idle_team()
        loop, number = self._loop, state.id
        loop.post(partial(loop.accept, state))

        # A handle may be kept for long, so it refers to the request's number and not to the state with its tensors.
        def push(more: More) -> None:
            loop.post(partial(loop.take, number, self._intake.more(more, arrival, adapters)))

        leave = partial(loop.leave, number)
        if self.settings.watermark and not state.tokens_only:
            return RequestHandle(outbox, leave, push, partial(marked_chunk, WatermarkStream(self._rates.sample_rate)))
        return RequestHandle(outbox, leave, push)


_WARMUP_PROMPT, _WARMUP_TOKENS = 100, 75
"""Number of speech tokens in the voice's prompt, and in the three seconds that are spoken."""


def _warmup_stream(models: Models | LanguageModel, seed: int, from_text: bool) -> EngineRequest:
    """Return a request for meaningless speech of 3 s in a random voice; from_text: the language model makes tokens."""
    assert isinstance(models, Models)
    generator, config = torch.Generator().manual_seed(seed), models.config
    tokens = torch.randint(config.flow.num_tokens, (_WARMUP_PROMPT,), generator=generator)
    mel = torch.zeros(config.rates.frames_of(_WARMUP_PROMPT), config.flow.num_mel_bins)
    voice = Conditioning(torch.ones(config.flow.speaker_size), (1,), tuple(tokens.tolist()), tokens, mel)
    segment = SegmentRequest(voice, speech_tokens=tuple(tokens[:_WARMUP_TOKENS].tolist()), seed=seed)
    if from_text:
        sampling = SamplingParams(exact_tokens=_WARMUP_TOKENS)
        segment = SegmentRequest(voice, text=(1,) * 10, sampling=sampling, seed=seed)
    return EngineRequest((segment,), policy_for(config.generation, None))
