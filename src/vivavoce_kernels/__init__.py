"""CUDA kernels of this project, written in Triton, and the functions that launch them.

Importing the kernel modules needs the package `triton`, which comes with torch's CUDA builds. Code that must also run
without `triton` calls `usable` first, and imports the kernel modules inside the function that uses them.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch


def usable(device: torch.device) -> bool:
    """Return whether kernels can run on the device: on CUDA, or in tests, by Triton's interpreter, on any device."""
    if find_spec("triton") is None:
        return False
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
