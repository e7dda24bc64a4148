"""Compiles CUDA C++ for Hopper at run time.

It needs the package `cuda-bindings`, which comes with torch's CUDA builds. A kernel's source code is cuda/device.cuh,
followed by the kernel's own file cuda/*.cu.
"""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

TILE = 64
"""Number of lines, and of columns, of a tile that a kernel fetches at once."""


@dataclass(frozen=True)
class Matrix:
    """An argument that lets a kernel fetch tiles. values: [lines, columns] float16, contiguous; 8 divides `columns`."""

    values: Tensor


Argument = Tensor | Matrix | int | float | ctypes.c_uint64
"""A kernel gets a tensor as a pointer to the tensor's first value, and an int as 32 bits."""
Run = Callable[[int, Sequence[Argument]], None]
"""A function that runs a kernel. It takes the number of programs and the kernel's arguments."""
CAPABILITY = 9
"""Hopper's major compute capability: its multiprocessors have 227 KB of shared memory, and form clusters."""
MULTIPROCESSORS = 132
"""An H100 SXM or H200 has this many multiprocessors; with fewer, not all programs of a batch run at the same time."""


def takes_kernels(weight: Tensor) -> bool:
    """Return whether CUDA C++ kernels can compute with this weight: float16, on Hopper, with `cuda-bindings`."""
    if not weight.is_cuda or weight.dtype is not torch.float16:
        return False
    if find_spec("cuda") is None or find_spec("cuda.bindings") is None:
        return False
    return torch.cuda.get_device_capability(weight.device)[0] == CAPABILITY


def takes_clusters(weight: Tensor) -> bool:
    """Return whether `takes_kernels` is true and the device can run all clusters of a batch at the same time."""
    if not takes_kernels(weight):
        return False
    return torch.cuda.get_device_properties(weight.device).multi_processor_count >= MULTIPROCESSORS


@dataclass(frozen=True)
class Source:
    """name: of the kernel and its .cu file; threads, shared: a program's threads and shared bytes (None: all)."""

    name: str
    threads: int
    shared: int | None = None

    def text(self) -> str:
        folder = resources.files(__package__) / "cuda"
        parts = ("device.cuh", f"{self.name}.cu")
        return "".join((folder / part).read_text(encoding="utf-8") for part in parts)


class CudaKernel:
    """A compiled kernel. RuntimeError: the source does not compile, or the device refuses the kernel."""

    def __init__(self, source: Source, device: torch.device) -> None:
        from cuda.bindings import driver

        self._threads = source.threads
        self._launch = driver.cuLaunchKernel
        with torch.cuda.device(device):
            torch.cuda.current_stream(device).synchronize()  # makes the device's context current
            self._module = _checked(driver.cuModuleLoadData(_compiled(source, device)))
            self._function = _checked(driver.cuModuleGetFunction(self._module, source.name.encode()))
            most = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
            device_most = _checked(driver.cuDeviceGetAttribute(most, _checked(driver.cuCtxGetDevice())))
            self._shared = device_most if source.shared is None else source.shared
            limits = driver.CUfunction_attribute
            for attribute, value in (
                (limits.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, self._shared),
                (limits.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1),
            ):
                _checked(driver.cuFuncSetAttribute(self._function, attribute, value))

    def __call__(self, programs: int, arguments: Sequence[Argument]) -> None:
        """Launch this number of programs on torch's current stream."""
        values, kinds = zip(*map(_passed, arguments), strict=True)
        stream = torch.cuda.current_stream().cuda_stream
        grid, block = (programs, 1, 1), (self._threads, 1, 1)
        _checked(self._launch(self._function, *grid, *block, self._shared, stream, (values, kinds), 0))


def compiled_kernel(
    source: Source, device: torch.device, without: str, trial: Callable[[CudaKernel], object] | None = None
) -> CudaKernel | None:
    """Compile a kernel, and call `trial` with it. If this fails, warn of the consequence `without`, and return None."""
    try:
        kernel = CudaKernel(source, device)
        if trial is not None:
            with torch.cuda.device(device):
                trial(kernel)
        return kernel
    except (ImportError, OSError, RuntimeError) as error:
        warnings.warn(f"{without}, because their kernel does not work: {error}", RuntimeWarning, stacklevel=3)
        return None


def _passed(argument: Argument) -> tuple[Any, Any]:
    if isinstance(argument, Tensor):
        return argument.data_ptr(), ctypes.c_void_p
    if isinstance(argument, Matrix):
        assert argument.values.is_contiguous()
        return _tensor_map(argument.values.data_ptr(), *argument.values.shape), None
    if isinstance(argument, ctypes.c_uint64):
        return argument.value, ctypes.c_uint64
    return argument, ctypes.c_int if isinstance(argument, int) else ctypes.c_float


class _TensorMap(ctypes.Structure):
    _fields_ = (("words", ctypes.c_uint64 * 16),)


_ALIGNMENT = 128
_FLOAT16, _PERMUTED_IN_128_BYTES, _FETCHED_BY_128_BYTES = 6, 3, 2
"""Values of CUDA's enumerations CUtensorMapDataType, CUtensorMapSwizzle and CUtensorMapL2promotion."""


@lru_cache(maxsize=4096)
def _tensor_map(address: int, lines: int, columns: int) -> _TensorMap:
    """Return the description by which kernels fetch tiles. `cuda-bindings` do not align it, so call the driver."""
    room = ctypes.create_string_buffer(ctypes.sizeof(_TensorMap) + _ALIGNMENT)
    made = _TensorMap.from_buffer(room, -ctypes.addressof(room) % _ALIGNMENT)
    wide, narrow = ctypes.c_uint64, ctypes.c_uint32
    error = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled(
        ctypes.byref(made), ctypes.c_int(_FLOAT16), narrow(2), ctypes.c_void_p(address), (wide * 2)(columns, lines),
        (wide * 1)(2 * columns), (narrow * 2)(TILE, TILE), (narrow * 2)(1, 1), ctypes.c_int(0),
        ctypes.c_int(_PERMUTED_IN_128_BYTES), ctypes.c_int(_FETCHED_BY_128_BYTES), ctypes.c_int(0),
    )  # fmt: skip
    if error:
        raise RuntimeError(f"CUDA: cuTensorMapEncodeTiled gives error {error} for {lines} lines of {columns} values")
    return made


def _compiled(source: Source, device: torch.device) -> bytes:
    from cuda.bindings import nvrtc

    file = f"{source.name}.cu"
    program = _checked(nvrtc.nvrtcCreateProgram(source.text().encode(), file.encode(), 0, [], []))
    major, minor = torch.cuda.get_device_capability(device)
    options = [f"--gpu-architecture=sm_{major}{minor}a", "--std=c++17"]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    if result:
        log = bytes(_checked(nvrtc.nvrtcGetProgramLogSize(program)))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"{file}: {log.decode(errors='replace')}")
    made = bytes(_checked(nvrtc.nvrtcGetCUBINSize(program)))
    _checked(nvrtc.nvrtcGetCUBIN(program, made))
    return made


def _checked(answer: tuple[Any, ...]) -> Any:
    """Return the value after the error code in a CUDA function's answer, if any. RuntimeError: the code is an error."""
    error, *values = answer
    if error:
        raise RuntimeError(f"CUDA: {error!r}")
    return values[0] if values else None
