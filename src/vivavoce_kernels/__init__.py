"""Our own kernels for CUDA devices: Triton programs and the functions that launch them.

The modules need the package `triton`, which comes with torch's CUDA builds; code that may run without it first asks
`usable`, and imports them in the function that uses them.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch


def usable(device: torch.device) -> bool:
    """Whether kernels can be launched on the device: on CUDA, or on any device in Triton's interpreter, for tests."""
    if find_spec("triton") is None:
        return False
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
