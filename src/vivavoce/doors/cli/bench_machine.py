"""The machine that `vivavoce bench` measures on, and what of it was used."""

from __future__ import annotations

import os
import platform
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def reset_peaks(device: torch.device) -> None:
    """Let the peak of the device's memory count from now on."""
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)


def resources(device: torch.device) -> dict[str, int | None]:
    """Flat keys of the memory that was used: the device's since `reset_peaks`, this process's since its start."""
    import torch

    cuda = device.type == "cuda"
    # Kilobytes, but bytes on macOS.
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "gpu_memory_bytes": torch.cuda.max_memory_allocated(device) if cuda else None,
        "gpu_memory_reserved_bytes": torch.cuda.max_memory_reserved(device) if cuda else None,
        "rss_bytes": rss,
    }


def machine(device: torch.device) -> dict[str, Any]:
    """Flat keys of what the model ran on."""
    import torch

    return {
        "device": str(device),
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "cpu": processor(),
        "cpu_threads": torch.get_num_threads(),
        "cpu_cores": os.cpu_count(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }


def processor() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
