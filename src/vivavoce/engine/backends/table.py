"""Backend by name → what takes part in the engine in the place of our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vivavoce.checkpoint.config import Generation
from vivavoce.engine.settings import EngineSettings, MemoryPlan
from vivavoce.engine.stages import LMInterface
from vivavoce.errors import InvalidRequest
from vivavoce.models.build import LanguageModel, Models
from vivavoce.models.flow.foreign import EstimatorRun, ForeignEstimator

LM: dict[str, Callable[[Models | LanguageModel, EngineSettings, MemoryPlan], LMInterface]] = {}
"""MissingDependency, from one of them: its package is not here."""
FLOW: dict[str, Callable[[Models, EngineSettings], EstimatorRun]] = {}
"""Errors as of `LM`."""


def lm_stage(models: Models | LanguageModel, settings: EngineSettings, memory: MemoryPlan) -> LMInterface:
    """The language model's stage; `settings.lm_backend` is not torch."""
    return _known(LM, "lm_backend", settings.lm_backend)(models, settings, memory)


def flow_estimator(models: Models, settings: EngineSettings) -> ForeignEstimator | None:
    """The flow's velocity estimator, None: the network itself."""
    if settings.flow_backend == "torch":
        return None
    if models.config.generation is Generation.V1:
        raise InvalidRequest("flow_backend: CosyVoice 1's flow runs on torch alone; use torch")
    run = _known(FLOW, "flow_backend", settings.flow_backend)(models, settings)
    return ForeignEstimator(models.flow.estimator.out, run)


def _known(table: dict[str, Any], name: str, backend: str) -> Any:
    if backend not in table:
        raise InvalidRequest(f"{name}: {backend} cannot be used in this version; use torch")
    return table[backend]
