"""CUDA kernels on a CPU: compiled with threads that take turns (`emulated.h`)."""

import ctypes
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest
import torch

from vivavoce_kernels import cuda_kernel

HERE = Path(__file__).parent
SOURCES = Path(cuda_kernel.__file__).parent / "cuda"


def compiled(name, folder):
    """The library of a file beside this one; skips where there is no compiler."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not installed")
    made = folder / f"{name}.so"
    options = ("-O2", "-U_FORTIFY_SOURCE", "-std=c++17", "-shared", "-fPIC", f"-I{SOURCES}", f"-I{HERE}")
    subprocess.run([compiler, *options, "-o", made, HERE / f"{name}.cpp"], check=True)
    return ctypes.CDLL(str(made))


def runner(kernel):
    """Takes what a `CudaKernel` is called with."""
    return partial(_run, kernel)


class TensorMap(ctypes.Structure):
    _fields_ = (("values", ctypes.c_void_p), ("lines", ctypes.c_int), ("columns", ctypes.c_int))


def _run(kernel, programs, arguments):
    def passed(argument):
        if isinstance(argument, cuda_kernel.Matrix):
            assert argument.values.is_contiguous()
            return TensorMap(argument.values.data_ptr(), *argument.values.shape)
        if isinstance(argument, torch.Tensor):
            assert argument.numel() < 2 or argument.is_contiguous()
            return ctypes.c_void_p(argument.data_ptr())
        return ctypes.c_float(argument) if isinstance(argument, float) else argument

    assert kernel(programs, *map(passed, arguments)) == 0, "threads wait for one another"
