"""Compares an engine's peak GPU memory with its memory limit and its plan; each limit has a process of its own.

The peak is the most that the driver reports for the device from the first allocation to the end of the loads, plus the
CUDA context, which exists before. No other program may use the device.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu import loads
from vivavoce.api import load
from vivavoce.engine.admission import AdmissionMode
from vivavoce.engine.settings import EngineSettings
from vivavoce.errors import VivavoceError
from vivavoce.models.build import Models
from vivavoce_bench.planning import plan_engine

GIGABYTES = (8, 16, 24)
CLOSE = 0.97
"""Smallest share of a limit that a plan should use."""
LOADS = (loads.Load.listeners(20), loads.Load("offline64", 64, concurrency=64, offline=True))
TINY_LOADS = (loads.Load.listeners(2, tokens=25), loads.Load("offline2", 2, concurrency=2, offline=True, tokens=25))
_PERIOD_S = 0.005


class Meter:
    """Records the most that `used` gives while `running`; used: gives the bytes in use now."""

    def __init__(self, used: Callable[[], int]) -> None:
        self._used, self._done = used, threading.Event()
        self.first = self.most = used()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure periodically until the block ends."""
        thread = threading.Thread(target=self._look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join()
            self.look()

    def look(self) -> None:
        """Measure once."""
        self.most = max(self.most, self._used())

    def _look(self) -> None:
        while not self._done.wait(_PERIOD_S):
            self.look()


def bounds(model: Path, tiny: bool) -> Iterator[dict[str, Any]]:
    """Figures of each limit, from a process of its own; if the process fails, an error in place of them."""
    for gigabytes in GIGABYTES:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "figures.json"
            command = [sys.executable, "-m", "benchmarks.gpu.memory", str(model), str(gigabytes), str(out)]
            done = subprocess.run(command + (["--tiny"] if tiny else []), check=False)
            found = json.loads(out.read_text()) if out.exists() else {"error": f"it ended with {done.returncode}"}
        yield {f"memory_{gigabytes}gb": found}


def measure(model: Path, gigabytes: int, tiny: bool) -> dict[str, Any]:
    """Measure one limit in this process, which must not have used the device before."""
    allowed, cuda = int(gigabytes * 1e9), torch.cuda.is_available()
    before = _driver_bytes()
    meter = Meter(_device_bytes if cuda else _host_bytes)
    context = meter.first if before is None else (_driver_bytes() or 0) - before
    found: dict[str, Any] = {"allowed_bytes": allowed, "context_bytes": context}
    with meter.running():
        tts = load(model, settings=EngineSettings(admission=AdmissionMode.ALL, memory_bytes=allowed))
        engine = tts.engine
        plan, networks = engine.memory, engine.models
        assert isinstance(networks, Models)
        sizes = plan_engine(networks.config, networks.dtype, allowed, EngineSettings())
        weights = sum(sizes.weights.values())
        found |= {"plan": asdict(plan), "weights_bytes": weights, "planned_bytes": sizes.num_bytes}
        tts.warm_up()
        found["after_warm_up_bytes"] = context + meter.most - meter.first
        for one in TINY_LOADS if tiny else LOADS:
            try:
                report = loads.measure(tts, model, one, gigabytes)
                found[one.name] = {key: report[key] for key in loads.KEYS}
            except VivavoceError as error:
                found[one.name] = {"error": str(error)}
        tts.close()
    return found | figures(found, context + meter.most - meter.first, torch.cuda.max_memory_reserved() if cuda else 0)


def figures(found: dict[str, Any], took: int, reserved: int) -> dict[str, Any]:
    """Figures from the device's peak use (`took`) and the peak that torch reserved (`reserved`), in bytes.

    batches_bytes: measured counterpart of the plan's constants for batches; cuda_bytes: counterpart of `CUDA_BYTES`.
    """
    plan, allowed = found["plan"], found["allowed_bytes"]
    return {
        "took_bytes": took,
        "took_share": round(took / allowed, 4),
        "kept": CLOSE * allowed <= took <= allowed,
        "reserved_bytes": reserved,
        "batches_bytes": reserved - found["weights_bytes"] - plan["slots_bytes"] - plan["state_bytes"],
        "cuda_bytes": took - reserved,
    }


def _device_bytes() -> int:
    free, whole = torch.cuda.mem_get_info()
    return whole - free


def _host_bytes() -> int:
    """Resident memory of this process, in place of a GPU's, to test this program."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _driver_bytes() -> int | None:
    """Bytes in use on the device, which nvidia-smi tells without a CUDA context of this process; None: unknown."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
    with suppress(OSError, ValueError):
        return int(subprocess.run(command, capture_output=True, text=True, check=False).stdout) << 20
    return None


if __name__ == "__main__":
    Path(sys.argv[3]).write_text(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]), "--tiny" in sys.argv)))
