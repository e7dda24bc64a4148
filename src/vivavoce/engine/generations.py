"""Chooses the stages that run each generation of models.

A stage implements its interface in `stages.py`; loop, scheduler, runners and entry points use only the interface.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vivavoce.checkpoint.config import Generation
from vivavoce.engine.flow_stage import FlowStage
from vivavoce.engine.lm_stage import LMStage
from vivavoce.engine.stages import FlowInterface, LMInterface, VocoderInterface
from vivavoce.engine.vocoder_stage import VocoderStage


@dataclass(frozen=True)
class StageBuilders:
    """Functions that make a generation's stages; arguments are as for `LMStage`, `FlowStage` and `VocoderStage`."""

    lm: Callable[..., LMInterface]
    flow: Callable[..., FlowInterface]
    vocoder: Callable[..., VocoderInterface]


def _flow_stage_v1(models: Any, **options: Any) -> FlowInterface:
    from vivavoce_v1.flow_stage import FlowStageV1

    return FlowStageV1(models, **options)


_PLAIN_AND_KERNELS = StageBuilders(LMStage, FlowStage, VocoderStage)
STAGES: dict[Generation, StageBuilders] = {
    Generation.V1: StageBuilders(LMStage, _flow_stage_v1, VocoderStage),
    Generation.V2: _PLAIN_AND_KERNELS,
    Generation.V3: _PLAIN_AND_KERNELS,
}
