"""Networks as files: ONNX, TorchScript, packages of AOTInductor. Each is compared with PyTorch before it is kept."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vivavoce.errors import CheckpointError, InvalidRequest, MissingDependency, StageFailed, VivavoceError
from vivavoce.models.encoders import OnnxModel, open_onnx
from vivavoce_export.parts import EXAMPLE, PARTS, Part, ScriptedEncoder
from vivavoce_runtimes.estimators import (
    OPTIONAL_ENDS,
    EstimatorInputs,
    EstimatorRunner,
    onnx_estimator,
    open_package,
    open_script,
    torch_estimator,
)
from vivavoce_runtimes.files import PRECISIONS, file_name, remember_code

OPSET = 20
ONNX_BYTES = 2_000_000_000
"""Limit of a file without external data: protobuf's limit, less room for the graph."""
TOLERANCE = {torch.float32: 1e-3, torch.float16: 3e-2}
"""Largest error relative to the largest value."""

Run = Callable[..., Any]


def export_part(part: Part, kind: str, folder: Path) -> tuple[Path, float]:
    """Write a part's file into the model's folder, and record its hash if it holds code.

    kind: onnx, jit, aoti, or tensorrt, made from the ONNX file there. Returns the path and the largest error against
    PyTorch. CheckpointError: the error is too large; StageFailed: torch cannot export it. No file is left then.
    """
    if kind == "tensorrt":
        return _export_engine(part, folder)
    precision = next(name for name, dtype in PRECISIONS.items() if dtype == part.dtype)
    target = folder / file_name(part.stem, precision, kind, part.device)
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{target.name}.") as workshop:
        path = Path(workshop) / target.name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's exporters warn about themselves
            try:
                _WRITERS[kind](part, path)
            except (VivavoceError, OSError):
                raise
            except Exception as error:  # torch's exporters raise many types
                reason = " ".join(str(error).split())[:200]
                raise StageFailed(
                    f"export: torch {torch.__version__} cannot write {target.name} ({reason}); try another --dtype or "
                    "--device, or another release of torch"
                ) from error
            worst = check_run(part, _opened(part, kind, path), target.name)
        if kind != "onnx":
            remember_code(path)
        path.replace(target)
    return target, worst


def _export_engine(part: Part, folder: Path) -> tuple[Path, float]:
    from vivavoce_runtimes.tensorrt import find_engine, tensorrt_estimator

    path = find_engine(folder, part.device, part.dtype, trusted=False, anew=True)
    try:
        return path, check_run(part, _masked(tensorrt_estimator(path, part.device, 1)), path.name)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def check_parts(kind: str, parts: str) -> list[str]:
    """Split the parts at commas; InvalidRequest: one is unknown, or cannot be exported as this kind."""
    names = [name.strip() for name in parts.split(",")]
    known = {"onnx": tuple(PARTS), "jit": ("estimator", "encoder")}.get(kind, ("estimator",))
    if wrong := next((name for name in names if name not in known), None):
        raise InvalidRequest(f"parts: {wrong!r} cannot be exported as {kind}; use some of {', '.join(known)}")
    return names


def check_run(part: Part, run: Run, name: str) -> float:
    """The largest error against PyTorch of the exported file, on random shapes; CheckpointError: it is too large."""
    worst, tolerance = 0.0, TOLERANCE[part.dtype]
    for rows, length in part.shapes:
        given = part.inputs(rows, length)
        with torch.inference_mode():
            wanted, found = _tensors(part.network(*given)), _tensors(run(*given))
        for one, other in zip(wanted, found, strict=True):
            error = float((one.float() - other.float()).abs().max() / one.float().abs().max())
            if not error <= tolerance:  # NaN fails, too
                raise CheckpointError(
                    f"{name}: differs from PyTorch by {error:.2g} of the largest value at {rows} × {length}, allowed "
                    f"is {tolerance:g}; nothing was written: try another --dtype, or other versions of its packages"
                )
            worst = max(worst, error)
    return worst


def _tensors(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def _opened(part: Part, kind: str, path: Path) -> Run:
    if kind == "onnx" and part.name != "estimator":
        return partial(_run_onnx, open_onnx(path, num_inputs=len(part.dynamic), remedy="export it again"))
    if kind == "onnx":
        return _masked(onnx_estimator(path, part.device))
    function = (open_script if kind == "jit" else open_package)(path, part.device, trusted=True)
    return function.encode if part.official else _masked(torch_estimator(function, part.device, part.dtype))


def _run_onnx(model: OnnxModel, *given: Tensor) -> tuple[Tensor, ...]:
    names = [one.name for one in model.session.get_inputs()]
    feeds = {name: tensor.cpu().numpy() for name, tensor in zip(names, given, strict=True)}
    return tuple(map(torch.from_numpy, model.session.run(None, feeds)))


def _masked(run: EstimatorRunner) -> Run:
    def masked(*given: Tensor) -> Tensor:
        inputs = EstimatorInputs(*given)
        return run(inputs) * inputs.mask

    return masked


def _write_onnx(part: Part, path: Path) -> None:
    size = sum(one.numel() * one.element_size() for one in part.network.parameters())
    if size > ONNX_BYTES:
        raise InvalidRequest(f"dtype: {size:,} bytes are more than the {ONNX_BYTES:,} of an ONNX file; use fp16")
    try:
        import onnxscript  # noqa: F401 - torch's exporter needs it
    except ImportError:
        raise MissingDependency("export: needs the package onnxscript; pip install 'vivavoce[onnx]'") from None
    # It logs about missing packages that are not needed.
    logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
    program = torch.onnx.export(
        part.network.eval(),
        part.inputs(*EXAMPLE),
        dynamo=True,
        verbose=False,
        dynamic_shapes=dict(part.dynamic),
        input_names=list(part.dynamic),
        output_names=list(part.outputs),
        opset_version=OPSET,
    )
    assert program is not None
    program.save(path, external_data=False)
    if part.name == "estimator":
        with path.open("ab") as file:
            file.write(OPTIONAL_ENDS)


def _write_script(part: Part, path: Path) -> None:
    with torch.enable_grad():  # without gradients some layers read memory in its current layout
        script = torch.jit.trace(part.network.eval(), part.inputs(*EXAMPLE), check_trace=False)
    if part.official:
        script = torch.jit.script(ScriptedEncoder(script, *part.official).eval())
    script.save(path)


def _write_package(part: Part, path: Path) -> None:
    if not any(map(shutil.which, ("g++", "c++", "clang++"))):
        raise MissingDependency("export: AOTInductor needs a C++ compiler; install g++ or clang++")
    from torch._inductor import aoti_compile_and_package

    program = torch.export.export(
        part.network.eval(),
        part.inputs(*EXAMPLE),
        dynamic_shapes=dict(part.dynamic),
        # On CUDA some guards over lengths are always true, but torch cannot prove it.
        prefer_deferred_runtime_asserts_over_guards=True,
    )
    aoti_compile_and_package(program, package_path=str(path))
    # In another process: a file that torch 2.11 made for CUDA crashed the process that loaded it.
    loading = "import sys, torch._inductor as inductor; inductor.aoti_load_package(sys.argv[1])"
    loaded = subprocess.run([sys.executable, "-c", loading, str(path)], capture_output=True, text=True, check=False)
    if loaded.returncode:
        raise RuntimeError(f"a process that loaded it ended with {loaded.returncode}: {loaded.stderr[-150:]}")


_WRITERS: dict[str, Callable[[Part, Path], None]] = {"onnx": _write_onnx, "jit": _write_script, "aoti": _write_package}
