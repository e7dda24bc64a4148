"""Exported estimators in ONNX Runtime, TorchScript and AOTInductor; `tensorrt.py` has those in TensorRT."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vivavoce.errors import CheckpointError, MissingDependency
from vivavoce.models.encoders import open_onnx
from vivavoce_runtimes.code_files import check_code
from vivavoce_runtimes.estimator import ENDS, OFFICIAL_INPUTS, EstimatorInputs, EstimatorRunner

_DTYPES = {"tensor(float)": torch.float32, "tensor(float16)": torch.float16}


def onnx_estimator(path: Path, device: torch.device) -> EstimatorRunner:
    """An estimator in ONNX Runtime. On a CPU each row is computed alone, so its bits do not depend on other rows.
    CheckpointError: the file is not an estimator; MissingDependency: the package lacks CUDA.
    """
    import onnxruntime

    on_cuda = ["CUDAExecutionProvider"] if device.type == "cuda" else []
    if not set(on_cuda) <= set(onnxruntime.get_available_providers()):
        raise MissingDependency(
            "flow_backend: this onnxruntime knows no CUDA; pip install onnxruntime-gpu in its place, or use "
            "--device cpu"
        )
    providers, remedy = [*on_cuda, "CPUExecutionProvider"], "export it again"
    threads = torch.get_num_threads()
    model = open_onnx(path, num_inputs=len(OFFICIAL_INPUTS), providers=providers, threads=threads, remedy=remedy)
    inputs = model.session.get_inputs()
    names, kinds = tuple(one.name for one in inputs), {one.type for one in inputs}
    if names != OFFICIAL_INPUTS or not kinds <= set(_DTYPES):
        raise CheckpointError(
            f"{path.name} in {path.parent} takes {', '.join(names)} of {', '.join(sorted(kinds))}, an estimator "
            f"takes {', '.join(OFFICIAL_INPUTS)} of floats: it is another model; {remedy}"
        )
    dtypes = {one.name: _DTYPES[one.type] for one in inputs}
    if ENDS in {one.name for one in model.session.get_overridable_initializers()}:
        dtypes[ENDS] = torch.int32

    def run(tensors: dict[str, Tensor]) -> Tensor:
        arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        return torch.from_numpy(model.run(*(arrays.pop(name) for name in OFFICIAL_INPUTS), **arrays))

    # Official files take two rows at a time.
    return EstimatorRunner(run, dtypes, None if on_cuda and isinstance(inputs[0].shape[0], str) else 1)


def torch_estimator(function: Callable[..., Any], device: torch.device, dtype: torch.dtype) -> EstimatorRunner:
    """An estimator from a function of `EstimatorInputs` in this dtype, opened by `open_script` or `open_package`."""
    dtypes = dict.fromkeys(EstimatorInputs._fields, dtype) | {"t": torch.float32, ENDS: torch.int32}
    return EstimatorRunner(lambda given: function(*given.values()), dtypes, 1 if device.type == "cpu" else None)


def open_script(path: Path, device: torch.device, *, trusted: bool) -> Any:
    """Open a TorchScript file; CheckpointError: it cannot be loaded, or `check_code` refuses it."""
    return _opened(path, trusted, lambda: torch.jit.load(path, map_location=device).eval())


def open_package(path: Path, device: torch.device, *, trusted: bool) -> Any:

    def load() -> Any:
        from torch._inductor import aoti_load_package

        return aoti_load_package(str(path))

    return _opened(path, trusted, load)


def _opened(path: Path, trusted: bool, load: Callable[[], Any]) -> Any:
    check_code(path, trusted)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # official files are TorchScript, of which torch warns
            return load()
    except Exception as error:  # torch's errors have no common base class
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{path.name} in {path.parent} cannot be loaded ({reason}); export it again") from error
