"""`python -m tests.soak.served`: thousands of streams of a real tritonserver, some left early; memory stays flat."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from vivavoce.errors import VivavoceError
from vivavoce_bench.random_checkpoint import make_babble_checkpoint
from vivavoce_triton.client.utterance import LoadMode, Manner, Utterance
from vivavoce_triton.client.wire import Connection, request_tensors
from vivavoce_triton.model_repository import ModelSet, RepositoryPlan, render_repository
from vivavoce_triton.server import ServerInstallation, TritonServer, TritonServerSettings, find_installation

SPEAKING = ("cosyvoice2", "vivavoce")
SETTLED = 0.25
"""Share of the requests after which buffers have their size: from then on memory may not grow."""
SLOTS_MB = 2 * 32 * 3.9
"""Keys and values of both engines' slots, which take memory when a sequence first reaches so far."""
MOST_GROWTH_MB = 64.0 + SLOTS_MB / 2
LEAVES = 5
"""One of so many leaves after its first chunk."""
PATIENCE_S = 120.0
TEXT = "Hi."
LONG_TEXT = "a b c d e f g h i j k l m n o p q r s t u v w x y z " * 3


@dataclass(frozen=True)
class ServedReport:
    """How each request ended, and the memory of all the server's processes in MB: settled, and at the end."""

    outcomes: Counter[str]
    settled_mb: float
    end_mb: float
    seconds: float

    @property
    def broken(self) -> tuple[str, ...]:
        """Every bound that was not kept."""
        wrong = [f"{count} requests: {what}" for what, count in self.outcomes.items() if what not in ("heard", "left")]
        growth = self.end_mb - self.settled_mb
        if growth > MOST_GROWTH_MB:
            wrong.append(f"memory: grew by {growth:.0f} MB, the bound is {MOST_GROWTH_MB:.0f} MB")
        return tuple(wrong)

    def __str__(self) -> str:
        ended = ", ".join(f"{count} {what}" for what, count in self.outcomes.most_common())
        memory = f"memory {self.settled_mb:.0f} MB after a quarter, {self.end_mb:.0f} MB at the end"
        return "\n".join([f"{ended} in {self.seconds:.0f} s; {memory}", *(self.broken or ["every bound was kept"])])


@contextmanager
def served(
    model: Path,
    installation: ServerInstallation,
    folder: Path,
    mode: LoadMode = LoadMode.STREAMING,
    models: ModelSet = ModelSet.BOTH,
    **more: str,
) -> Iterator[TritonServer]:
    """A server of these models on the CPU, at ports of its own; `folder` takes repository, log and voices.

    more: further variables of the templates.
    """
    values = {"model_dir": str(model), "device": "cpu", "bls_instance_num": "1", "voices_dir": str(folder / "voices")}
    values |= more
    render_repository(RepositoryPlan(values, mode, models), folder / "repository")
    settings = TritonServerSettings(http_port=0, grpc_port=0, metrics_port=0)
    server = TritonServer(installation, folder / "repository", folder / "server.log", settings)
    with patch.dict(os.environ, OMP_NUM_THREADS="1"), server:
        yield server


async def soak_server(server: TritonServer, requests: int, users: int = 8) -> ServedReport:
    """Ask both speaking models in turn, and measure."""
    outcomes, first = Counter[str](), int(requests * SETTLED)
    async with Connection(server.grpc_url, PATIENCE_S) as connection:
        began = time.perf_counter()
        outcomes += await _ask(connection, range(first), users)
        settled_mb = resident_mb(server)
        outcomes += await _ask(connection, range(first, requests), users)
        return ServedReport(outcomes, settled_mb, resident_mb(server), time.perf_counter() - began)


async def _ask(connection: Connection, numbers: range, users: int) -> Counter[str]:
    waiting, outcomes = iter(numbers), Counter[str]()
    models = [await connection.model(name) for name in SPEAKING]

    async def user() -> None:
        for number in waiting:
            leaves, model = number % LEAVES == 0, models[number % len(models)]
            utterance = Utterance("soak", LONG_TEXT if leaves else TEXT)
            tensors = request_tensors(utterance, Manner(seed=number), model, None)
            ending = "no audio came"
            try:
                async with aclosing(connection.speak(model, tensors, str(number))) as chunks:
                    async for _ in chunks:
                        ending = "left" if leaves else "heard"
                        if leaves:
                            break
            except VivavoceError as error:
                ending = str(error)
            outcomes[ending] += 1

    await asyncio.gather(*(user() for _ in range(users)))
    return outcomes


def resident_mb(server: TritonServer) -> float:
    """Memory of all its processes."""
    lines = subprocess.run(["ps", "-A", "-o", "pgid=,rss="], capture_output=True, text=True, check=True).stdout
    return sum(int(rss) for pgid, rss in map(str.split, lines.splitlines()) if int(pgid) == server.pid) / 1024


def main() -> int:
    """Parse, run, print; 1 if a bound is broken."""
    parser = argparse.ArgumentParser("python -m tests.soak.served", description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--users", type=int, default=8, help="streams at the same time")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = make_babble_checkpoint(folder / "babble")
        with served(model, find_installation(say=print), folder) as server:
            report = asyncio.run(soak_server(server, options.requests, options.users))
    print(report)
    return 1 if report.broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
