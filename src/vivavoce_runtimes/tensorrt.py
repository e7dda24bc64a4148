"""Runs the estimator in an engine of TensorRT 10, which is built from our ONNX export or is an official file.

An engine works with one kind of GPU and one version of TensorRT. The file name of our engines contains both, a hash of
the ONNX file, and the maximum batch, so that an outdated engine is not found but built again. API:
https://docs.nvidia.com/deeplearning/tensorrt/latest/_static/python-api.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vivavoce.errors import CheckpointError, InvalidRequest, MissingDependency, StageFailed
from vivavoce.files import replace_file
from vivavoce.models.encoders import check_onnx
from vivavoce_runtimes.estimators import ENDS, OFFICIAL_INPUTS, OPTIONAL_ENDS, EstimatorRunner
from vivavoce_runtimes.files import ESTIMATOR, check_code, file_name, remember_code

log = logging.getLogger(__name__)

FRAMES = (4, 500, 3_000)  # Minimum, usual and maximum frames of an engine's rows, as in the official code.
BATCH = 8  # Maximum rows of a batch in the second profile; the first profile has one row.
_WORKSPACE_BYTES = 1 << 32
_INSTALL = "pip install 'tensorrt>=10,<11'"


def import_tensorrt() -> Any:
    try:
        trt = importlib.import_module("tensorrt")
    except ImportError:
        raise MissingDependency(f"flow_backend: tensorrt needs the package tensorrt; {_INSTALL}") from None
    if not trt.__version__.startswith("10."):
        raise MissingDependency(f"flow_backend: tensorrt {trt.__version__} is not supported; {_INSTALL}")
    return trt


def find_engine(folder: Path, device: torch.device, dtype: torch.dtype, *, trusted: bool, anew: bool = False) -> Path:
    """Return our engine; build it if missing or `anew` (minutes). Without our ONNX file, return the official one."""
    trt, precision = import_tensorrt(), "fp16" if dtype == torch.float16 else "fp32"
    source = folder / file_name(ESTIMATOR, "fp32", "onnx", device)
    official = folder / f"{ESTIMATOR}.{precision}.mygpu.plan"
    if not source.is_file():
        if not official.is_file():
            raise CheckpointError(
                f"flow_backend: {source.name}, the source of an engine, is missing in {folder}; make it with "
                f"`vivavoce export onnx --model {folder}`"
            )
        check_code(official, trusted)
        return official
    check_onnx(source, remedy="export it again")
    content = source.read_bytes()
    gpu, mark = re.sub(r"\W+", "-", torch.cuda.get_device_name(device)), hashlib.sha256(content).hexdigest()[:12]
    path = folder / f"{ESTIMATOR}.{precision}.{gpu}.trt{trt.__version__}.b{BATCH}.{mark}.plan"
    if path.is_file() and not anew:
        check_code(path, trusted)
        return path
    log.warning("tensorrt: building %(name)s, which takes some minutes", {"name": path.name})
    replace_file(path, _build(trt, content.removesuffix(OPTIONAL_ENDS), precision))
    remember_code(path)
    return path


def _build(trt: Any, onnx: bytes, precision: str) -> bytes:
    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    network, config = builder.create_network(0), builder.create_builder_config()
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(onnx):
        reasons = "; ".join(str(parser.get_error(index)) for index in range(parser.num_errors))
        raise CheckpointError(f"tensorrt: does not take the ONNX file ({reasons[:300]}); export it again")
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, _WORKSPACE_BYTES)
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    if precision == "fp16":
        config.set_flag(trt.BuilderFlag.FP16)
        for one in (*inputs, network.get_output(0)):
            if one.name not in ("t", ENDS):
                one.dtype = trt.DataType.HALF
    official_batch = inputs[0].shape[0] == 2
    for rows in ((2, 2, 2),) if official_batch else ((2, 2, 2), (2, BATCH, 2 * BATCH)):
        profile = builder.create_optimization_profile()
        for one in inputs:
            profile.set_shape(one.name, *(_shape(one.name, *size) for size in zip(rows, FRAMES, strict=True)))
        config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise CheckpointError("tensorrt: could not build an engine, its log above says why; use another flow_backend")
    return bytes(engine)


def _shape(name: str, rows: int, frames: int) -> tuple[int, ...]:
    shapes = {"mask": (rows, 1, frames), "t": (rows,), "spks": (rows, 80), ENDS: (rows, frames)}
    return shapes.get(name, (rows, 80, frames))


class TensorRTEngine:
    """Splits a batch into parts of the engine's size; runs up to `contexts` parts at once, each in a CUDA stream."""

    def __init__(self, path: Path, device: torch.device, contexts: int) -> None:
        trt = import_tensorrt()
        engine = trt.Runtime(trt.Logger(trt.Logger.WARNING)).deserialize_cuda_engine(path.read_bytes())
        if engine is None:
            raise CheckpointError(
                f"{path.name} in {path.parent} is not an engine of TensorRT {trt.__version__} for this GPU; remove it, "
                "and it is built again from the ONNX file"
            )
        names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
        dtypes = {trt.DataType.HALF: torch.float16, trt.DataType.FLOAT: torch.float32}
        self.dtypes = {name: dtypes.get(engine.get_tensor_dtype(name), torch.int32) for name in names}
        outputs = [name for name in names if engine.get_tensor_mode(name) != trt.TensorIOMode.INPUT]
        if set(names) - {ENDS, *outputs} != set(OFFICIAL_INPUTS) or len(outputs) != 1:
            raise CheckpointError(f"{path.name} in {path.parent} is not an engine of the estimator; remove it")
        (self._output,), self._device = outputs, device
        self._output_dtype = self.dtypes.pop(self._output)
        shapes = [engine.get_tensor_profile_shape("x", index) for index in range(engine.num_optimization_profiles)]
        self._frames = int(shapes[0][0][2]), int(shapes[0][2][2])
        self._engine = engine  # execution contexts work only while the engine exists
        self._lanes = {
            int(most[0]) // 2: [self._lane(profile) for _ in range(contexts)]
            for profile, (_, _, most) in enumerate(shapes)
        }

    def _lane(self, profile: int) -> tuple[Any, torch.cuda.Stream]:
        context, stream = self._engine.create_execution_context(), torch.cuda.Stream(self._device)
        if context is None or not context.set_optimization_profile_async(profile, stream.cuda_stream):
            raise InvalidRequest("trt_concurrent: the device has no memory for this many contexts; use fewer")
        stream.synchronize()
        return context, stream

    def run(self, tensors: dict[str, Tensor]) -> Tensor:
        """Return the velocity, [rows, bins, frames]; StageFailed: the engine does not take these rows, or fails."""
        rows, bins, frames = tensors["x"].shape
        if not self._frames[0] <= frames <= self._frames[1]:
            raise StageFailed(
                f"tensorrt: voice and text have {frames} mel frames, the engine takes {self._frames[0]} … "
                f"{self._frames[1]}; use another length of text or recording, or another flow_backend"
            )
        batch, current = rows // 2, torch.cuda.current_stream(self._device)
        size = 1 if batch == 1 else max(self._lanes)
        lanes = self._lanes[size]
        velocity = tensors["x"].new_empty(2, batch, bins, frames, dtype=self._output_dtype)
        for number, first in enumerate(range(0, batch, size)):
            context, stream = lanes[number % len(lanes)]
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                piece = {
                    name: one.unflatten(0, (2, batch))[:, first : first + size].flatten(0, 1).contiguous()
                    for name, one in tensors.items()
                }
                found = self._enqueue(context, stream, piece)
                velocity[:, first : first + size] = found.unflatten(0, (2, -1))
        for _, stream in lanes[: -(-batch // size)]:
            current.wait_stream(stream)
            velocity.record_stream(stream)
        return velocity

    def _enqueue(self, context: Any, stream: torch.cuda.Stream, piece: dict[str, Tensor]) -> Tensor:
        velocity = torch.empty_like(piece["x"], dtype=self._output_dtype)
        for name, tensor in piece.items():
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise StageFailed(f"tensorrt: {name} of {tuple(tensor.shape)} does not fit the engine; remove it")
            context.set_tensor_address(name, tensor.data_ptr())
        context.set_tensor_address(self._output, velocity.data_ptr())
        if not context.execute_async_v3(stream.cuda_stream):
            raise StageFailed("tensorrt: the engine failed; its log above says why")
        return velocity


def tensorrt_estimator(path: Path, device: torch.device, contexts: int) -> EstimatorRunner:
    engine = TensorRTEngine(path, device, contexts)
    return EstimatorRunner(engine.run, engine.dtypes)
