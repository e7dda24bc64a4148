"""Kernels of our own, for CUDA devices: Triton programs and the functions that launch them.

Modules here need the package `triton`, which comes with torch's CUDA builds; code that may run without it imports them
in the function that uses them, after asking `usable`.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch


def usable(device: torch.device) -> bool:
    """Whether kernels can be launched on the device: a CUDA one, or any in Triton's interpreter, which tests use."""
    if find_spec("triton") is None:
        return False
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
