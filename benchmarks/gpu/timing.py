"""Milliseconds of the device between two points of a stream."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def device_ms(work: Callable[[], None], device: torch.device, repeats: int) -> float:
    """Median of `repeats` runs of work that was run before, each from an idle device to an idle device."""
    taken = sorted(_once(work, device) for _ in range(repeats))
    return taken[len(taken) // 2]


def _once(work: Callable[[], None], device: torch.device) -> float:
    if device.type != "cuda":
        begun = time.perf_counter()
        work()
        return (time.perf_counter() - begun) * 1e3
    torch.cuda.synchronize(device)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)
