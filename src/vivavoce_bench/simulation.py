"""Simulate an engine on a virtual clock.

The engine's own loop, scheduler and admission run unchanged, but the networks compute nothing. Each batch takes the
time that a cost model gives, on a device with two parallel queues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vivavoce.engine.chunk_policy import ChunkPolicy, with_short_chunks
from vivavoce.engine.cost_model import BatchSize, CostModel, Priors, ShortBatches, Stage
from vivavoce.engine.device import DEPTH, SHORT_BATCHES, DeviceQueue, QueueEvent
from vivavoce.engine.engine import assemble
from vivavoce.engine.flow_stage import FlowRow
from vivavoce.engine.generations import STAGES
from vivavoce.engine.handle import Outbox, RequestTimings
from vivavoce.engine.lm_stage import DecodeRun, Sampled
from vivavoce.engine.request import Conditioning, SamplingParams, SegmentRequest, speech_prompt
from vivavoce.engine.request_state import RequestState, SequenceState
from vivavoce.engine.settings import EngineSettings, MemoryPlan
from vivavoce.engine.stages import Stages
from vivavoce.engine.vocoder_stage.stage import PooledTails, Tails, VocoderRow
from vivavoce.errors import Overloaded
from vivavoce.models.build import Models

BESIDE = 0.65
"""Relative speed of a queue while the other queue is busy. `BESIDE` and `TURN_S` are fitted to the times to first audio
of 64 to 600 listeners of CosyVoice2 on one H200 (benchmarks/results/gpu)."""
TURN_S = 3e-4
"""Seconds of host time for one iteration of the engine's loop."""
READ_S = 5e-3
"""Seconds to prepare a request's text before the request reaches the engine."""
PROMPT, PROMPT_TEXT, TEXT = 87, 20, 40
"""Number of speech tokens in each voice's prompt, text ids in its transcript, and text ids in each request."""
_TINY_S = 1e-9
_ZEROS = torch.zeros(1)


class Visit(NamedTuple):
    """A request at time `at_s` for `tokens` speech tokens in voice number `voice`. batch: it has no live listener."""

    at_s: float
    tokens: int
    voice: int = 0
    batch: bool = False


@dataclass(frozen=True)
class Machine:
    """models: networks without weights; costs: for batches that run alone; exclusive: True if stages never overlap."""

    models: Models
    memory: MemoryPlan
    costs: Priors
    exclusive: bool = False


class Device:
    """A virtual clock and two work queues. exclusive: each launch blocks until its work is done."""

    def __init__(self, exclusive: bool) -> None:
        self.now, self.exclusive = 0.0, exclusive
        self.queues: list[SimulatedQueue] = []
        self.alarms: deque[tuple[float, Callable[[], object]]] = deque()
        """(time, function to call at that time), in order of time."""

    def advance(self, until: float, mark: SimulatedMark | None = None) -> None:
        while self.now < until and not (mark and mark.passed):
            busy = [one for one in self.queues if one.marks]
            speed = BESIDE if len(busy) > 1 else 1.0
            ahead = min(((one.marks[0].work - one.done) / speed for one in busy), default=inf)
            due = self.alarms[0][0] if self.alarms else inf
            step = max(0.0, min(ahead, until - self.now, due - self.now))
            self.now = until if step == until - self.now else self.now + step
            for queue in busy:
                queue.go_on(step * speed)
            while self.alarms and self.alarms[0][0] <= self.now:
                self.alarms.popleft()[1]()


@dataclass(eq=False)
class SimulatedMark(QueueEvent):
    device: Device
    work: float
    passed: bool

    def reached(self, wait: bool = False) -> bool:
        if wait:
            self.device.advance(inf, self)
        return self.passed


class SimulatedQueue(DeviceQueue):
    def __init__(self, device: Device) -> None:
        super().__init__(torch.device("cpu"), clock=lambda: device.now)
        self._depth, self._device = 1 if device.exclusive else DEPTH, device
        self._given = self.done = 0.0
        self.marks: deque[SimulatedMark] = deque()
        device.queues.append(self)

    def spend(self, seconds: float) -> None:
        if self._device.exclusive:
            self._device.advance(self._device.now + seconds)
        else:
            self._given += seconds

    def mark(self) -> SimulatedMark:
        made = SimulatedMark(self.clock(), self._device, self._given, self._given <= self.done)
        if not made.passed:
            self.marks.append(made)
        return made

    def go_on(self, seconds: float) -> None:
        self.done += seconds
        while self.marks and self.marks[0].work <= self.done + _TINY_S:
            mark = self.marks.popleft()
            mark.passed, mark.at, self.done = True, self.clock(), max(self.done, mark.work)


class _LM:
    self_paced = False

    def __init__(self, queue: SimulatedQueue, machine: Machine) -> None:
        self.slots, self._queue, self._costs = machine.memory.slots, queue, machine.costs
        self._free, self._open = list(range(self.slots)), dict[int, list[int]]()
        """`_open` maps a slot to [number of ids that are not launched yet, number of positions in the cache]."""
        self._launches: deque[tuple[QueueEvent, int, list[tuple[int, list[int], int]]]] = deque()

    free_slots = property(lambda self: len(self._free))
    decoding = property(lambda self: sum(left > 0 for left, _ in self._open.values()))
    in_flight = property(lambda self: len(self._launches))
    steps_in_flight = property(lambda self: sum(steps for _, steps, _ in self._launches))

    def check(self, run: DecodeRun, slot: int) -> None: ...

    def open(self, params: SamplingParams, seed: int) -> int:
        self._open[self._free[-1]] = [0, 0]
        return self._free.pop()

    def close(self, slot: int) -> None:
        del self._open[slot]
        self._free.append(slot)

    def prefill(self, runs: Mapping[int, DecodeRun]) -> None:
        self._open.update({slot: [run.forced_at, len(run.rows)] for slot, run in runs.items()})
        size = BatchSize(len(runs), sum(len(run.rows) for run in runs.values()))
        self._launch(self._costs[Stage.PREFILL].seconds(size), 1, list(runs), 0)

    def decode(self, steps: int) -> None:
        active = [number for number, (left, _) in self._open.items() if left]
        size = BatchSize(len(active), 0, sum(self._open[number][1] for number in active))
        self._launch(steps * self._costs[Stage.DECODE].seconds(size), steps, active, steps)

    def _launch(self, seconds: float, ids: int, active: Sequence[int], steps: int) -> None:
        self._queue.spend(seconds)
        said = [(number, self._open[number], min(ids, self._open[number][0])) for number in active]
        for _, slot, fewer in said:
            slot[:] = slot[0] - fewer, slot[1] + fewer
        self._launches.append((self._queue.mark(), steps, said))

    def collect(self, wait: bool) -> list[Sampled]:
        arrived = []
        while self._launches and self._launches[0][0].reached():
            for number, slot, ids in self._launches.popleft()[2]:
                if self._open.get(number) is slot:  # skip a slot that was closed since its launch
                    arrived.append(Sampled(number, (0,) * ids, False))
        return arrived


class _Synthesis:
    """Replaces `PackedPath` and `PackedVocoding`, or their versions for padded batches."""

    def __init__(self, queue: SimulatedQueue, machine: Machine) -> None:
        self._queue, self._costs, self._config = queue, machine.costs, machine.models.config
        self._padded = machine.memory.batch_frames is None
        self.short = SHORT_BATCHES if Stage.SHORT_FLOW in machine.costs else ShortBatches()

    def _seconds(self, stage: Stage, frames: Sequence[int], past: int = 0) -> float:
        size = BatchSize(len(frames), len(frames) * max(frames) if self._padded else sum(frames), past)
        return self._costs[stage].seconds(size)

    def parts(self, rows: Sequence[FlowRow]) -> Sequence[Sequence[FlowRow]]:
        return [rows]

    def begin(self, rows: Sequence[FlowRow]) -> SimpleNamespace:
        flow, up = self._config.flow, self._config.flow.encoder.upsampling
        frames = [row.new * up for row in rows]
        seconds = self._seconds(self.short.stage(frames), frames, sum(row.past * up for row in rows))
        mels = [_ZEROS.expand(row.hop * up, flow.num_mel_bins) if row.hop else None for row in rows]
        step = partial(self._queue.spend, seconds / flow.num_steps)
        return SimpleNamespace(rows=rows, step=lambda _: step(), finish=lambda: mels)

    def release(self, tails: Tails) -> None: ...

    def vocode(self, rows: Sequence[VocoderRow]) -> list[tuple[Tensor, Tails]]:
        if rows:
            self._queue.spend(self._seconds(Stage.VOCODER, [row.frames for row in rows]))
        return [self._finished(row) for row in rows]

    def _finished(self, row: VocoderRow) -> tuple[Tensor, Tails]:
        overlap, context = row.stream.rule.overlap, row.before.context
        frames = row.frames - (context - overlap if context else 0) - (0 if row.final or row.whole else overlap)
        samples = _ZEROS.expand(frames * self._config.rates.samples_per_frame)
        frames_so_far = row.before.frames + row.new_frames
        kept = Tails(frames=frames_so_far, context=row.seen_again, pooled=PooledTails(0, 0))
        return samples, Tails() if row.final or row.whole else kept


class Simulation:
    def __init__(self, machine: Machine, settings: EngineSettings, policy: ChunkPolicy) -> None:
        self._machine, self._device = machine, Device(machine.exclusive)
        queues = SimulatedQueue(self._device), SimulatedQueue(self._device)
        lm: Any = _LM(queues[0], machine)
        computing: Any = _Synthesis(queues[1], machine)
        builders = STAGES[machine.models.config.generation]
        flow: Any = builders.flow(machine.models, state_bytes=machine.memory.state_bytes)
        vocoder: Any = builders.vocoder(machine.models)
        flow.path = vocoder.vocoding = computing
        self.flow = flow
        rates = machine.models.config.rates
        self._policy = with_short_chunks(policy, flow.short.frames, rates.frames_per_token)
        self._loop, self._admission, self.statistics = assemble(
            Stages(lm, flow, vocoder),
            settings,
            machine.memory,
            rates,
            self._policy,
            CostModel(machine.costs),
            queues,
            kernels=machine.memory.batch_frames is not None,
            exclusive=machine.exclusive,
        )
        self._voices: dict[int, Conditioning] = {}
        self._asked: list[RequestTimings | None] = []

    def run(self, visits: Sequence[Visit]) -> list[RequestTimings | None]:
        """Return the timings of each visit, or None for a refused visit. visits: in order of time."""
        device, loop = self._device, self._loop
        device.alarms.extend((visit.at_s + READ_S, partial(self._arrive, visit)) for visit in visits)
        with torch.inference_mode():
            while True:
                if not loop.run_once() and not loop.wait_for_device():
                    if not device.alarms:
                        break
                    device.advance(device.alarms[0][0])
                device.advance(device.now + TURN_S)
        return self._asked

    def _arrive(self, visit: Visit) -> None:
        config, number = self._machine.models.config, len(self._asked)
        voice = self._voices.setdefault(visit.voice, self._voices.get(visit.voice) or self._voice(visit.voice))
        text, sampling = (1,) * TEXT, SamplingParams(exact_tokens=visit.tokens)
        rows = speech_prompt(config.lm.vocabulary, voice.lm_text + text, voice.lm_prompt_tokens)
        sequence = SequenceState(SegmentRequest(voice, text, sampling=sampling), len(rows), PROMPT)
        sequence.run, sequence.most_tokens = DecodeRun(rows, (), visit.tokens, config.lm.vocabulary.eos), visit.tokens
        state = RequestState(number, self._policy, visit.at_s, config.rates, Outbox(), deque([sequence]))
        self._asked.append(None)
        with suppress(Overloaded):
            state.batch = visit.batch
            self._admission.check(state.live, state)
            self._asked[number] = state.timings
            self._loop.post(partial(self._loop.accept, state))

    def _voice(self, number: int) -> Conditioning:
        flow, tokens = self._machine.models.config.flow, (1,) * PROMPT
        embedding = torch.full((flow.speaker_size,), float(number))
        return Conditioning(embedding, (1,) * PROMPT_TEXT, tokens, torch.tensor(tokens))
