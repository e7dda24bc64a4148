"""Backend by name → what takes part in the engine in the place of our own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from vivavoce.checkpoint.config import Generation, TokenEncoderConfig
from vivavoce.engine.settings import EngineSettings, MemoryPlan
from vivavoce.engine.stages import LMInterface
from vivavoce.errors import CheckpointError, InvalidRequest
from vivavoce.models.build import LanguageModel, Models
from vivavoce.models.exported.estimator import EstimatorRunner, ExportedEstimator, ExportedFlow
from vivavoce.models.exported.files import ENCODER, ESTIMATOR, file_name, find_export


def _vllm(models: Models | LanguageModel, settings: EngineSettings, memory: MemoryPlan) -> LMInterface:
    from vivavoce.engine.backends.streamed_lm import open_runtime
    from vivavoce.engine.backends.vllm import VllmRuntime

    return open_runtime(VllmRuntime, models, settings, memory)


def _trtllm(models: Models | LanguageModel, settings: EngineSettings, memory: MemoryPlan) -> LMInterface:
    from vivavoce.engine.backends.streamed_lm import open_runtime
    from vivavoce.engine.backends.trtllm import TrtllmRuntime

    return open_runtime(TrtllmRuntime, models, settings, memory)


LM: dict[str, Callable[[Models | LanguageModel, EngineSettings, MemoryPlan], LMInterface]] = {
    "vllm": _vllm,
    "trtllm": _trtllm,
}
"""MissingDependency, from one of them: its package is not here."""


def _onnx(models: Models, settings: EngineSettings) -> ExportedFlow:
    from vivavoce.models.exported.runtimes import onnx_estimator

    return _flow(models, onnx_estimator(_estimator_file("onnx", models)[0], models.device))


def _jit(models: Models, settings: EngineSettings) -> ExportedFlow:
    """The estimator, the encoder, or both, as there are files of them."""
    trusted = settings.trust_model_code
    found = find_export(models.folder, ENCODER, "jit", models.device, models.dtype)
    if found is None or not isinstance(models.config.flow.encoder, TokenEncoderConfig):
        return _from_torch("jit", models, trusted)
    from vivavoce.models.exported.script_encoder import ScriptEncoder

    opened, path, dtype = ExportedFlow(None, None), *found
    if find_export(models.folder, ESTIMATOR, "jit", models.device, models.dtype):
        opened = _from_torch("jit", models, trusted)
    return opened._replace(encoder=ScriptEncoder(path, models.flow.encoder, dtype, trusted=trusted))


def _aoti(models: Models, settings: EngineSettings) -> ExportedFlow:
    return _from_torch("aoti", models, settings.trust_model_code)


def _tensorrt(models: Models, settings: EngineSettings) -> ExportedFlow:
    if models.device.type != "cuda":
        raise InvalidRequest(f"flow_backend: tensorrt runs on CUDA devices alone, not on {models.device}; use another")
    from vivavoce.models.exported.tensorrt import find_engine, tensorrt_estimator

    path = find_engine(models.folder, models.device, models.dtype, trusted=settings.trust_model_code)
    return _flow(models, tensorrt_estimator(path, models.device, settings.trt_concurrent))


FLOW: dict[str, Callable[[Models, EngineSettings], ExportedFlow]]
FLOW = {"onnx": _onnx, "jit": _jit, "aoti": _aoti, "tensorrt": _tensorrt}
"""Errors as of `LM`; CheckpointError: the file is missing, cannot be used, or holds code that is not to be run."""


def lm_stage(models: Models | LanguageModel, settings: EngineSettings, memory: MemoryPlan) -> LMInterface:
    """The language model's stage; `settings.lm_backend` is not torch."""
    if settings.lm_backend not in LM:
        raise InvalidRequest(f"lm_backend: {settings.lm_backend} cannot be used in this version; use torch")
    return LM[settings.lm_backend](models, settings, memory)


def foreign_flow(models: Models, settings: EngineSettings) -> ExportedFlow | None:
    """What takes part in the flow's stage, None: its own networks do it all."""
    if settings.flow_backend == "torch":
        return None
    if models.config.generation is Generation.V1:
        raise InvalidRequest("flow_backend: CosyVoice 1's flow runs on torch alone; use torch")
    return FLOW[settings.flow_backend](models, settings)


def _flow(models: Models, run: EstimatorRunner) -> ExportedFlow:
    return ExportedFlow(ExportedEstimator(models.flow.estimator.out, run), None)


def _from_torch(kind: str, models: Models, trusted: bool) -> ExportedFlow:
    from vivavoce.models.exported.runtimes import open_package, open_script, torch_estimator

    path, dtype = _estimator_file(kind, models)
    opened = open_script if kind == "jit" else open_package
    return _flow(models, torch_estimator(opened(path, models.device, trusted=trusted), models.device, dtype))


def _estimator_file(kind: str, models: Models) -> tuple[Path, torch.dtype]:
    found = find_export(models.folder, ESTIMATOR, kind, models.device, models.dtype)
    if found is None:
        name = file_name(ESTIMATOR, "fp32", kind, models.device)
        raise CheckpointError(
            f"flow_backend: {name} is missing in {models.folder}; make it with `vivavoce export {kind} --model "
            f"{models.folder}`"
        )
    return found
