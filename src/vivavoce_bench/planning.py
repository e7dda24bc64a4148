"""An engine's memory and listeners on a GPU: the source of every planned figure in commands and pages.

Neither a device nor weights are needed. Memory is divided as the engine divides it. Times are admission's: the costs of
batches, fitted under load on one H200, moved to another card by its maker's data sheet. Launches stay unchanged,
arithmetic scales with products a second, reading with bytes a second. So figures of other cards are computed, not
measured. A fleet is planned by simulating one of its engines (`simulation.py`), with the costs of batches that run
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import torch

from vivavoce.checkpoint.config import Generation, ModelConfig
from vivavoce.engine.admission import (
    DURATION_S,
    MAX_ROWS,
    PROMPT_S,
    TEXT_ROWS,
    AdmissionController,
    AdmissionLimits,
)
from vivavoce.engine.chunk_policy import policy_for
from vivavoce.engine.cost_model import PLAIN_GPU_PRIORS, BatchSize, Coefficients, CostModel, Priors, Stage
from vivavoce.engine.flow_stage.planning import PagePool
from vivavoce.engine.scheduler import Limits
from vivavoce.engine.settings import CUDA_BYTES, EngineSettings, MemoryPlan, divide, room_beside, suits_kernels
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import Models
from vivavoce.models.generations import NETWORKS
from vivavoce_bench.costs import ALONE_COSTS, MEASURED_COSTS
from vivavoce_bench.simulation import Machine


class Card(NamedTuple):
    """From its maker's data sheet: float16 products with float32 sums, without sparsity; memory in GB and its rate."""

    name: str
    tflops: float
    gb_per_s: float
    gb: int


H200 = Card("H200", 989, 4800, 141)
CARDS = (
    H200,
    Card("H100 SXM", 989, 3350, 80),
    Card("A100 80 GB", 312, 2039, 80),
    Card("L40S", 362, 864, 48),
    Card("RTX 4090", 165, 1008, 24),
    Card("A10", 125, 600, 24),
    Card("L4", 121, 300, 24),
    Card("RTX 3090", 71, 936, 24),
    Card("RTX 3060", 25.5, 360, 12),
)


@dataclass(frozen=True)
class EnginePlan:
    """weights: bytes by network; memory_bytes: the whole budget; state_s: seconds of speech whose past is kept."""

    models: Models
    memory_bytes: int
    weights: Mapping[str, int]
    memory: MemoryPlan
    state_s: float

    @property
    def num_bytes(self) -> int:
        return CUDA_BYTES + sum(self.weights.values()) + self.memory.num_bytes

    def listeners(self, card: Card) -> int:
        """Streams of ten seconds, each in its own voice, that admission lets play at once; 0: one alone has gaps.

        Memory bounds those at work at one moment: a card that is faster than its listeners finishes each sooner.
        """
        limits, config = AdmissionLimits(), self.models.config
        policy = policy_for(config.generation, None)
        admission = AdmissionController(self._costs(card), limits, config.rates, self.memory.slots, policy)
        at_work = self.memory.slots
        if self.state_s < inf:
            at_work = max(1, min(at_work, int(self.state_s / (PROMPT_S + DURATION_S / 2))))
        most = int(limits.headroom * at_work / admission.share_of_real_time(at_work))
        low, high = 0, most + 1  # bisection: the share grows with the streams
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if admission.share_of_real_time(middle) <= limits.headroom else (low, middle)
        return low

    def offline(self, card: Card) -> float:
        """Seconds of speech a second if every slot speaks an utterance of ten seconds whole."""
        costs, rates = self._costs(card), self.models.config.rates
        slots, tokens = self.memory.slots, round(DURATION_S * rates.tokens_per_second)
        prompt = TEXT_ROWS + round(PROMPT_S * rates.tokens_per_second)
        frames = round((PROMPT_S + DURATION_S) * rates.frames_per_second)
        rows = max(1, min(MAX_ROWS, slots, (self.memory.batch_frames or Limits().batch_frames) // frames))
        seconds = slots * costs.predict(Stage.PREFILL, BatchSize(1, prompt))
        seconds += tokens * costs.predict(Stage.DECODE, BatchSize(slots, 0, slots * (prompt + tokens // 2)))
        for stage in (Stage.FLOW, Stage.VOCODER):
            seconds += slots / rows * costs.predict(stage, BatchSize(rows, rows * frames))
        return slots * DURATION_S / seconds

    def machine(self, card: Card) -> Machine:
        """Raises InvalidRequest for an engine that cannot be simulated."""
        generation = self.models.config.generation
        if self.memory.batch_frames is None or generation not in ALONE_COSTS:
            raise InvalidRequest("model: only CosyVoice2 and 3 in 16 bit can be simulated; leave --streams out")
        return Machine(self.models, self.memory, self._moved(card, ALONE_COSTS[generation]))

    def _costs(self, card: Card) -> CostModel:
        generation, kernels = self.models.config.generation, self.memory.batch_frames is not None
        measured = MEASURED_COSTS[generation] if kernels or generation is Generation.V1 else PLAIN_GPU_PRIORS
        return CostModel(self._moved(card, measured))

    def _moved(self, card: Card, measured: Priors) -> Priors:
        slower, reading = H200.tflops / card.tflops, 1e-9 / card.gb_per_s - 1e-9 / H200.gb_per_s
        # Every batch reads its network's weights, the flow's once a step.
        read = {Stage.FLOW: ("flow", self.models.config.flow.num_steps), Stage.VOCODER: ("vocoder", 1)}
        moved: Priors = {}
        for stage, (fixed, row, frame, pair) in measured.items():
            network, times = read.get(stage, ("lm", 1))
            by_pair = H200.gb_per_s / card.gb_per_s if stage is Stage.DECODE else slower
            fixed += times * self.weights[network] * reading
            moved[stage] = Coefficients(fixed, row, frame * slower, pair * by_pair)
        return moved


def outline_models(config: ModelConfig, dtype: torch.dtype) -> Models:
    """The networks' shapes, without weights, on torch's meta device; dtype: as `build_models` takes it."""
    networks: dict[str, Any] = {
        name: part.outline(config).to(torch.float32 if part.float32 else dtype)
        for name, part in NETWORKS[config.generation].items()
    }
    return Models(config=config, device=torch.device("meta"), dtype=dtype, **networks)


def plan_engine(config: ModelConfig, dtype: torch.dtype, memory_bytes: int, settings: EngineSettings) -> EnginePlan:
    """An engine on a CUDA device; InvalidRequest: the memory is too small.

    dtype: of language model and flow; memory_bytes: the whole budget.
    """
    models = outline_models(config, dtype)
    weights = {
        name: sum(one.numel() * one.element_size() for one in getattr(models, name).parameters())
        for name in ("lm", "flow", "vocoder")
    }
    kernels = suits_kernels(config.generation, dtype)
    memory = divide(room_beside(sum(weights.values()), memory_bytes), models, settings, kernels)
    state_s = inf
    if config.generation is not Generation.V1:  # whose flow speaks the whole past anew
        pool = PagePool(models, memory.state_bytes, kernels=kernels)
        state_s = pool.total * pool.page_tokens / config.rates.tokens_per_second
    return EnginePlan(models, memory_bytes, weights, memory, state_s)
