"""Launches that begin while the kernel before them drains (programmatic dependent launch, Hopper and later).

A kernel that is launched so may fetch what no kernel writes, such as weights, and then calls `join` before it touches
anything else. It calls it in every program that touches anything, so that a chain of such kernels keeps its order.
"""

from __future__ import annotations

from typing import Any

import triton
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def join():
    """Let the next kernel's programs be set up, and wait until the kernel before has ended."""
    gdc_launch_dependents()
    gdc_wait()


def launch_options(dependent: bool) -> dict[str, Any]:
    """Arguments of a launch of a kernel that has the parameter `DEPENDENT`."""
    return {"DEPENDENT": True, "launch_pdl": True} if dependent else {"DEPENDENT": False}
