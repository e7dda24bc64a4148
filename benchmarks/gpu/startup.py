"""From nothing to an engine that has recorded its launches and knows its costs, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def startups(model: Path) -> dict[str, Any]:
    """Seconds of a first start, with empty compilers' caches, and of a second one."""
    with tempfile.TemporaryDirectory() as caches:
        environment = {**os.environ, "TRITON_CACHE_DIR": caches}
        seconds = []
        for _ in range(2):
            begun = time.perf_counter()
            command = [sys.executable, "-m", "benchmarks.gpu.startup", str(model)]
            subprocess.run(command, env=environment, check=True)
            seconds.append(time.perf_counter() - begun)
    return {"start_first_s": seconds[0], "start_second_s": seconds[1]}


def _be_ready(model: Path) -> None:
    from vivavoce.doors.python import load

    tts = load(model)
    tts.warm_up()
    tts.close()


if __name__ == "__main__":
    _be_ready(Path(sys.argv[1]))
