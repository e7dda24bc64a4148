"""Where figures come from."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from vivavoce.doors.cli.bench_machine import machine
from vivavoce.version import __version__


def origin(module: str, device: torch.device, arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """The first keys of every result file: the command, versions, commit and hardware.

    arguments: of `module`; None: this process's.
    """
    command = shlex.join(("python", "-m", module, *(sys.argv[1:] if arguments is None else arguments)))
    return {"command": command, "vivavoce": __version__, "commit": _commit(), **machine(device)}


def _commit() -> str | None:
    try:
        command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return asked.stdout.strip() or None
