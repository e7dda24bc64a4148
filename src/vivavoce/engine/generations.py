"""Chooses the stages that run each generation of models.

A stage implements its interface in `stages.py`; loop, scheduler, runners and entry points use only the interface.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from vivavoce.checkpoint.config import Generation
from vivavoce.engine.cost_model import GPU_PRIORS, Coefficients, Priors, Stage
from vivavoce.engine.flow_stage import FlowStage
from vivavoce.engine.flow_stage.flow_v1 import FlowStageV1
from vivavoce.engine.lm_stage import LMStage
from vivavoce.engine.stages import FlowInterface, LMInterface, VocoderInterface
from vivavoce.engine.vocoder_stage import VocoderStage


@dataclass(frozen=True)
class StageBuilders:
    """Functions that make a generation's stages; arguments as of `LMStage`, `FlowStage` and `VocoderStage`."""

    lm: Callable[..., LMInterface]
    flow: Callable[..., FlowInterface]
    vocoder: Callable[..., VocoderInterface]


_PLAIN_AND_KERNELS = StageBuilders(LMStage, FlowStage, VocoderStage)
STAGES: dict[Generation, StageBuilders] = {
    Generation.V1: StageBuilders(LMStage, FlowStageV1, VocoderStage),
    Generation.V2: _PLAIN_AND_KERNELS,
    Generation.V3: _PLAIN_AND_KERNELS,
}
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
"""Seconds of batches under load on one H200, with the released models' sizes in float16 (benchmarks/results/gpu)."""
ALONE_COSTS: Mapping[Generation, Priors] = {
    Generation.V2: {
        Stage.PREFILL: Coefficients(9.8e-4, 7.1e-5, 8.5e-7, 3.1e-9),
        Stage.DECODE: Coefficients(6e-4, 2.7e-6, 0.0, 1.2e-9),
        Stage.FLOW: Coefficients(2.11e-2, 3.6e-4, 9.8e-6, 3.6e-9),
        Stage.VOCODER: Coefficients(8.3e-4, 1.4e-5, 2e-6, 0.0),
    },
    Generation.V3: {
        Stage.PREFILL: Coefficients(1.5e-3, 3.8e-4, 1.1e-6, 0.0),
        Stage.DECODE: Coefficients(6e-4, 2.7e-6, 0.0, 1.2e-9),
        Stage.FLOW: Coefficients(1.1e-2, 3e-4, 2e-5, 2.8e-9),
        Stage.VOCODER: Coefficients(8.2e-4, 3.7e-5, 1.9e-6, 0.0),
    },
}
"""Seconds of batches that have the H200 for themselves: fitted to the stages of `h200.json` and `h200-v3.json`."""
