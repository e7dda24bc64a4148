"""Where figures come from."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import torch

from vivavoce.doors.cli.bench_machine import machine
from vivavoce.version import __version__


def origin(module: str, device: torch.device) -> dict[str, Any]:
    """The first keys of every result file: the command of this run of `module`, versions, commit and hardware."""
    command = " ".join(("python -m", module, *sys.argv[1:]))
    return {"command": command, "vivavoce": __version__, "commit": _commit(), **machine(device)}


def _commit() -> str | None:
    try:
        asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return asked.stdout.strip() or None
