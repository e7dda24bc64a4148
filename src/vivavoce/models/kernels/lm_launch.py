"""Dependent launch in the language model: a kernel starts while the one before it runs, and waits for its results.

What does not depend on those results (weights, a slot's numbers, keys of earlier steps) may be read before the wait.
The next kernel is let start after the own wait only, so whoever runs knows that all kernels but the one right before
it have ended. Needs compute capability 9.0 (CUDA C++ Programming Guide, "Programmatic Dependent Launch").
"""

from __future__ import annotations

import torch
import triton
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


def supported(device: torch.device) -> bool:
    """Whether kernels may be launched so on the device."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def options(dependent: bool) -> dict[str, bool]:
    """Arguments of a launch; elsewhere the launcher may not know them."""
    return {"launch_pdl": True} if dependent else {}


@triton.jit
def wait_for_inputs():
    """Wait for the kernel before this one; then let the next one start."""
    gdc_wait()
    gdc_launch_dependents()
