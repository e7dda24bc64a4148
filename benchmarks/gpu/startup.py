"""Measures the start of an engine in a new process, until it has recorded CUDA graphs and measured its costs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FEW = 8
"""Number of streams that the third start warms up for."""


def startups(model: Path) -> dict[str, Any]:
    """Seconds of a first start, with an empty cache of the compiler, of a second start, and of one for few streams."""
    with tempfile.TemporaryDirectory() as caches:
        environment = {**os.environ, "TRITON_CACHE_DIR": caches}

        def seconds(*streams: str) -> float:
            begun = time.perf_counter()
            command = [sys.executable, "-m", "benchmarks.gpu.startup", str(model), *streams]
            subprocess.run(command, env=environment, check=True)
            return time.perf_counter() - begun

        return {"start_first_s": seconds(), "start_second_s": seconds(), f"start_for_{FEW}_s": seconds(str(FEW))}


def _be_ready(model: Path, streams: int | None = None) -> None:
    from vivavoce.api import load

    tts = load(model)
    tts.warm_up(streams=streams)
    tts.close()


if __name__ == "__main__":
    _be_ready(Path(sys.argv[1]), *map(int, sys.argv[2:]))
