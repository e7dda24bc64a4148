"""Describes the machine on which a benchmark runs: hardware, software and peak memory."""

from __future__ import annotations

import os
import platform
import resource
import sys
from pathlib import Path
from typing import Any

import torch

from vivavoce.checkpoint.folder import ModelCard
from vivavoce.version import __version__


def reset_peaks(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def resources(device: torch.device | None) -> dict[str, int | None]:
    """Return peak memory in bytes: of the device since `reset_peaks`, and of this process since its start."""
    cuda = device is not None and device.type == "cuda"
    # ru_maxrss is in kilobytes, but on macOS in bytes.
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "gpu_memory_bytes": torch.cuda.max_memory_allocated(device) if cuda else None,
        "gpu_memory_reserved_bytes": torch.cuda.max_memory_reserved(device) if cuda else None,
        "rss_bytes": rss,
    }


def machine(device: torch.device) -> dict[str, Any]:
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
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def client_keys(command: str) -> dict[str, Any]:
    """Describe the client's machine, for a load test of a server."""
    return {"vivavoce": __version__, "command": command, "cpu": processor(), "cpu_cores": os.cpu_count()}


def run_keys(command: str, card: ModelCard, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    return {
        "vivavoce": __version__,
        "command": command,
        "model": card.name,
        "trained": card.trained,
        "dtype": str(dtype).removeprefix("torch."),
        **machine(device),
    }
