"""Opens the backends of the language model and of the flow by their names in the settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from vivavoce.checkpoint.config import Generation, TokenEncoderConfig
from vivavoce.engine.settings import EngineSettings, MemoryPlan
from vivavoce.engine.stages import LMInterface
from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce.models.build import LanguageModel, Models
from vivavoce.models.flow.external import ExternalFlow
from vivavoce_runtimes.estimators import EstimatorRunner, ExportedEstimator
from vivavoce_runtimes.files import ENCODER, ESTIMATOR, file_name, find_export
from vivavoce_runtimes.streamed_lm import open_runtime


def _vllm(models: Models | LanguageModel, settings: EngineSettings, memory: MemoryPlan) -> LMInterface:
    from vivavoce_runtimes.vllm import VllmRuntime

    return open_runtime(VllmRuntime, models, settings, memory)


def _trtllm(models: Models | LanguageModel, settings: EngineSettings, memory: MemoryPlan) -> LMInterface:
    from vivavoce_runtimes.trtllm import TrtllmRuntime

    return open_runtime(TrtllmRuntime, models, settings, memory)


LM: dict[str, Callable[[Models | LanguageModel, EngineSettings, MemoryPlan], LMInterface]] = {
    "vllm": _vllm,
    "trtllm": _trtllm,
}
"""Backends of the language model. MissingDependency: the backend's package is not installed."""


def _onnx(models: Models, settings: EngineSettings) -> ExternalFlow:
    from vivavoce_runtimes.estimators import onnx_estimator

    return _flow(models, onnx_estimator(_estimator_file("onnx", models)[0], models.device))


def _from_torch(kind: str, models: Models, settings: EngineSettings) -> ExternalFlow:
    from vivavoce_runtimes.estimators import open_package, open_script, torch_estimator

    path, dtype = _estimator_file(kind, models)
    function = (open_script if kind == "jit" else open_package)(path, models.device, trusted=settings.trust_model_code)
    return _flow(models, torch_estimator(function, models.device, dtype))


def _jit(models: Models, settings: EngineSettings) -> ExternalFlow:
    found = find_export(models.folder, ENCODER, "jit", models.device, models.dtype)
    if found is None or not isinstance(models.config.flow.encoder, TokenEncoderConfig):
        return _from_torch("jit", models, settings)
    from vivavoce_runtimes.estimators import ScriptEncoder

    opened, path, dtype = ExternalFlow(None, None), *found
    if find_export(models.folder, ESTIMATOR, "jit", models.device, models.dtype):
        opened = _from_torch("jit", models, settings)
    return opened._replace(encoder=ScriptEncoder(path, models.flow.encoder, dtype, trusted=settings.trust_model_code))


def _tensorrt(models: Models, settings: EngineSettings) -> ExternalFlow:
    if models.device.type != "cuda":
        raise InvalidRequest(f"flow_backend: tensorrt runs on CUDA devices alone, not on {models.device}; use another")
    from vivavoce_runtimes.tensorrt import find_engine, tensorrt_estimator

    path = find_engine(models.folder, models.device, models.dtype, trusted=settings.trust_model_code)
    return _flow(models, tensorrt_estimator(path, models.device, settings.trt_concurrent))


FLOW: dict[str, Callable[[Models, EngineSettings], ExternalFlow]]
FLOW = {"onnx": _onnx, "jit": _jit, "aoti": partial(_from_torch, "aoti"), "tensorrt": _tensorrt}
"""Backends of the flow. They raise MissingDependency as in `LM`, and CheckpointError if the exported file is missing,
cannot be used, or contains code that is not trusted."""


def lm_stage(models: Models | LanguageModel, settings: EngineSettings, memory: MemoryPlan) -> LMInterface:
    if settings.lm_backend not in LM:
        raise InvalidRequest(f"lm_backend: {settings.lm_backend} cannot be used in this version; use torch")
    return LM[settings.lm_backend](models, settings, memory)


def external_flow(models: Models, settings: EngineSettings) -> ExternalFlow | None:
    """Return the flow's networks that run in another runtime; None if all of them run in our PyTorch code."""
    if settings.flow_backend == "torch":
        return None
    if models.config.generation is Generation.V1:
        raise InvalidRequest("flow_backend: CosyVoice 1's flow runs on torch alone; use torch")
    return FLOW[settings.flow_backend](models, settings)


def _flow(models: Models, run: EstimatorRunner) -> ExternalFlow:
    return ExternalFlow(ExportedEstimator(models.flow.estimator.out, run), None)


def _estimator_file(kind: str, models: Models) -> tuple[Path, torch.dtype]:
    found = find_export(models.folder, ESTIMATOR, kind, models.device, models.dtype)
    if found is None:
        name = file_name(ESTIMATOR, "fp32", kind, models.device)
        raise CheckpointError(
            f"flow_backend: {name} is missing in {models.folder}; make it with `vivavoce export {kind} --model "
            f"{models.folder}`"
        )
    return found
