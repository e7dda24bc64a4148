"""Plan an engine's memory and listeners on a GPU, without a device or weights.

Memory is divided as the engine divides it. Times come from the cost model of admission, which was fitted under load on
one H200. For other cards the costs are scaled by the data sheets: launch times stay unchanged, arithmetic scales with
the products per second, and reading with the bytes per second. Figures of other cards are not measured.
For a fleet, one engine is simulated (`simulation.py`) with the costs of batches that run alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import torch

from vivavoce.checkpoint.config import Generation, ModelConfig
from vivavoce.engine.admission import DURATION_S, MAX_ROWS, PROMPT_S, TEXT_ROWS, AdmissionController, AdmissionLimits
from vivavoce.engine.chunk_policy import policy_for
from vivavoce.engine.cost_model import GPU_PRIORS, PLAIN_GPU_PRIORS, BatchSize, Coefficients, CostModel, Priors, Stage
from vivavoce.engine.flow_stage.planning import PagePool
from vivavoce.engine.scheduler import Limits
from vivavoce.engine.settings import CUDA_BYTES, EngineSettings, MemoryPlan, divide, room_beside, suits_kernels
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import Models
from vivavoce.models.generations import NETWORKS
from vivavoce_bench.simulation import Machine

ENTRY_LISTENERS = 500
"""Number of listeners that one server's entry process can serve with 16-bit samples over HTTP. With 500 listeners
this process took 65 % of a Xeon's core (benchmarks/results/entry)."""
MEASURED_COSTS: Mapping[Generation, Priors] = {
    Generation.V1: {
        Stage.PREFILL: Coefficients(1.8e-2, 9e-4, 0.0, 5.8e-10),
        Stage.DECODE: Coefficients(9.5e-3, 3.8e-6, 0.0, 7.1e-8),
        Stage.FLOW: Coefficients(2.4e-1, 2.6e-2, 0.0, 0.0),
        Stage.VOCODER: Coefficients(3.7e-3, 2.4e-4, 1e-5, 0.0),
    },
    Generation.V2: GPU_PRIORS,
    Generation.V3: {
        Stage.PREFILL: Coefficients(2.1e-3, 7.3e-4, 2.6e-6, 2.5e-9),
        Stage.DECODE: Coefficients(3.1e-3, 7.5e-6, 0.0, 6.9e-9),
        Stage.FLOW: Coefficients(1.3e-2, 1.6e-4, 1.9e-5, 3.3e-9),
        Stage.VOCODER: Coefficients(7.8e-4, 1.4e-5, 2.2e-6, 0.0),
    },
}
"""Cost coefficients in seconds of the released models in float16, fitted under load (benchmarks/results/gpu)."""
ALONE_COSTS: Mapping[Generation, Priors] = {
    Generation.V2: {
        Stage.PREFILL: Coefficients(9.8e-4, 7.1e-5, 8.5e-7, 3.1e-9),
        Stage.DECODE: Coefficients(6e-4, 2.7e-6, 0.0, 1.2e-9),
        Stage.FLOW: Coefficients(2.11e-2, 3.6e-4, 9.8e-6, 3.6e-9),
        Stage.SHORT_FLOW: Coefficients(1.08e-2, 6e-5, 0.0, 9e-9),
        Stage.VOCODER: Coefficients(8.3e-4, 1.4e-5, 2e-6, 0.0),
    },
    Generation.V3: {
        Stage.PREFILL: Coefficients(1.5e-3, 3.8e-4, 1.1e-6, 0.0),
        Stage.DECODE: Coefficients(6e-4, 2.7e-6, 0.0, 1.2e-9),
        Stage.FLOW: Coefficients(1.1e-2, 3e-4, 2e-5, 2.8e-9),
        Stage.VOCODER: Coefficients(8.2e-4, 3.7e-5, 1.9e-6, 0.0),
    },
}
"""Cost coefficients of batches that run alone on the H200, fitted to the stages in `h200.json` and `h200-v3.json`."""


class Card(NamedTuple):
    """A GPU's data sheet. tflops: dense float16 products with float32 sums; gb_per_s, gb: rate and size of memory."""

    name: str
    tflops: float
    gb_per_s: float
    gb: int


H200 = Card("H200", 989, 4800, 141)
CARDS = (
    H200,
    Card("H100 SXM", 989, 3350, 80),
    Card("A100 80 GB", 312, 2039, 80),
    Card("B200", 2250, 8000, 180),
    Card("H800 SXM", 989, 3350, 80),
    Card("H20", 148, 4000, 96),
    Card("A800 80 GB", 312, 2039, 80),
    Card("L40S", 362, 864, 48),
    Card("L20", 119.5, 864, 48),
    Card("RTX 5090", 209.5, 1792, 32),
    Card("RTX 4090", 165, 1008, 24),
    Card("RTX 4090 D", 147, 1008, 24),
    Card("A10", 125, 600, 24),
    Card("L4", 121, 300, 24),
    Card("RTX 3090", 71, 936, 24),
    Card("T4", 65, 300, 16),
    Card("RTX 3060", 25.5, 360, 12),
)
"""From NVIDIA's data sheets. H800 and A800 are H100 and A100 with slower links. Costs were measured on the H200."""
WITH_SHORT_CHUNKS = [card for card in CARDS if card.name in ("H200", "H100 SXM", "H800 SXM")]
"""Cards for which the flow has the kernel of short chunks."""


@dataclass(frozen=True)
class EnginePlan:
    """weights: bytes per network; memory_bytes: all memory; state_s: seconds of speech that flow state covers."""

    models: Models
    memory_bytes: int
    weights: Mapping[str, int]
    memory: MemoryPlan
    state_s: float

    @property
    def num_bytes(self) -> int:
        return CUDA_BYTES + sum(self.weights.values()) + self.memory.num_bytes

    def listeners(self, card: Card) -> int:
        """Return the number of concurrent streams that admission allows; 0 if even a single stream has gaps.

        Each stream has ten seconds and its own voice. Memory limits only the streams that are being computed, because a
        fast card computes a stream in less time than the stream plays.
        """
        limits, config = AdmissionLimits(), self.models.config
        policy = policy_for(config.generation, None)
        admission = AdmissionController(self._costs(card), limits, config.rates, self.memory.slots, policy)
        at_work = self.memory.slots
        if self.state_s < inf:
            at_work = max(1, min(at_work, int(self.state_s / (PROMPT_S + DURATION_S / 2))))
        most = int(limits.headroom * at_work / admission.share_of_real_time(at_work))
        low, high = 0, most + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if admission.share_of_real_time(middle) <= limits.headroom else (low, middle)
        return low

    def offline(self, card: Card) -> float:
        """Return the seconds of audio per second, if every slot generates a whole utterance of ten seconds."""
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
        """Describe this engine for a `Simulation`. InvalidRequest: it cannot be simulated."""
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
        # Every batch reads its network's weights once; the flow reads them in every solver step.
        steps = self.models.config.flow.num_steps
        read = {Stage.FLOW: ("flow", steps), Stage.SHORT_FLOW: ("flow", steps), Stage.VOCODER: ("vocoder", 1)}
        moved: Priors = {}
        for stage, (fixed, row, frame, pair) in measured.items():
            if stage is Stage.SHORT_FLOW and card not in WITH_SHORT_CHUNKS:
                continue
            network, times = read.get(stage, ("lm", 1))
            by_pair = H200.gb_per_s / card.gb_per_s if stage is Stage.DECODE else slower
            fixed += times * self.weights[network] * reading
            moved[stage] = Coefficients(fixed, row, frame * slower, pair * by_pair)
        return moved


def outline_models(config: ModelConfig, dtype: torch.dtype) -> Models:
    """Build the networks without weights, on torch's meta device. dtype: as in `build_models`."""
    networks: dict[str, Any] = {
        name: part.outline(config).to(torch.float32 if part.float32 else dtype)
        for name, part in NETWORKS[config.generation].items()
    }
    return Models(config=config, device=torch.device("meta"), dtype=dtype, **networks)


def plan_engine(config: ModelConfig, dtype: torch.dtype, memory_bytes: int, settings: EngineSettings) -> EnginePlan:
    """Plan an engine on a CUDA device. InvalidRequest: the memory is too small.

    dtype: data type of the language model and the flow; memory_bytes: the whole budget.
    """
    models = outline_models(config, dtype)
    weights = {
        name: sum(one.numel() * one.element_size() for one in getattr(models, name).parameters())
        for name in ("lm", "flow", "vocoder")
    }
    kernels = suits_kernels(config.generation, dtype)
    memory = divide(room_beside(sum(weights.values()), memory_bytes), models, settings, kernels)
    state_s = inf
    if config.generation is not Generation.V1:  # the flow of CosyVoice 1 keeps no state
        pool = PagePool(models, memory.state_bytes, kernels=kernels)
        state_s = pool.total * pool.page_tokens / config.rates.tokens_per_second
    return EnginePlan(models, memory_bytes, weights, memory, state_s)
