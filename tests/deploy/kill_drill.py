"""`python -m tests.deploy.kill_drill`: servers behind a proxy, many listeners, and one server killed by -9.

Three `vivavoce serve` with a tiny random model behind nginx or Envoy, as deploy/ configures them. Every listener has a
seed of its own, so that a stream that got another one's audio shows. Prints the latency that the proxy adds and how
soon the fleet served everybody again, as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tests.deploy.proxies import Upstream, proxy
from tests.server.http.serve_process import LATE_S, ServerProcess, serving_process
from tests.small_checkpoint import small_checkpoint

TEXT = "One two three four. " * 2
SEEDS = 3
"""Of the listeners: what each seed says is asked for alone before, which costs time."""
MOST_DIFFERENCE = 0.05
"""Root mean square of the difference to the same request alone, over that of its audio: as in tests/soak."""
QUEUE = ("--admission", "queue", "--slots", "2", "--drain", "600")
"""Two speak at once on a server and the others wait: when one is killed, some have heard of it and some have not."""
VARIABLES = {"VIVAVOCE_MODEL_WARM_UP_S": 0, "VIVAVOCE_MODEL_TEXT_PROCESSES": 0}


@dataclass
class Heard:
    """What one listener got; whole: the answer had its end; at_s: of the first byte, and of the end."""

    seed: int
    audio: bytes = b""
    whole: bool = False
    status: int = 0
    at_s: tuple[float, float] = (0.0, 0.0)

    def is_of(self, alone: bytes) -> bool:
        """It is what the seed says alone, or a beginning of it where it was cut."""
        count = len(self.audio) // 2
        mine, wanted = (np.frombuffer(data, "<i2", count).astype(float) for data in (self.audio, alone))
        length_fits = len(self.audio) == len(alone) if self.whole else len(self.audio) <= len(alone)
        difference, level = (float(np.sqrt(np.mean(part**2))) if count else 0.0 for part in (mine - wanted, wanted))
        return length_fits and difference <= MOST_DIFFERENCE * level + 2


@dataclass
class Drill:
    """What came of it. heard: by listener; killed_at_s: since the first of them asked."""

    heard: list[Heard] = field(default_factory=list)
    killed_at_s: float = 0.0

    def cut(self) -> list[Heard]:
        return [one for one in self.heard if not one.whole]


@asynccontextmanager
async def servers(folder: Path, count: int = 3) -> AsyncIterator[list[ServerProcess]]:
    """That many, each with a process of its own; started at once."""
    model = small_checkpoint(folder / "babble")
    with ExitStack() as stack:

        def start(place: int) -> ServerProcess:
            flags = ("--model", model, "--grpc-port", 0, "--legacy", "--legacy-port", 0, *QUEUE)
            return stack.enter_context(serving_process(folder / str(place), *flags, **VARIABLES))

        yield list(await asyncio.gather(*(asyncio.to_thread(start, place) for place in range(count))))


def upstream(server: ServerProcess) -> Upstream:
    ports = [int(one.rpartition(":")[2]) for one in (server.url, server.legacy_url, server.grpc_address)]
    return Upstream(*ports)


def order(seed: int) -> dict[str, Any]:
    sampling = {"max_ratio": 2.0, "min_ratio": 2.0, "top_k": 5}  # babble does not stop by itself
    return {"input": TEXT, "response_format": "pcm", "seed": seed, "sampling": sampling}


async def spoken_alone(client: httpx.AsyncClient, url: str) -> Mapping[int, bytes]:
    """What each seed says to a single listener."""
    found = {}
    for seed in range(SEEDS):
        answer = await client.post(f"{url}/v1/audio/speech", json=order(seed))
        assert answer.status_code == 200, answer.text
        found[seed] = answer.content
    return found


async def kill_one(client: httpx.AsyncClient, url: str, victim: ServerProcess, listeners: int) -> Drill:
    """Listeners at once, and the victim killed while it speaks to one of them and others wait for it."""
    drill, killed, began = Drill(), asyncio.Event(), time.perf_counter()

    async def has_begun(identity: str) -> None:
        if killed.is_set():
            return
        told = await client.get(f"{victim.url}/v1/audio/requests/{identity}")
        if told.status_code == 200 and told.json()["finish_reason"] is None and not killed.is_set():
            killed.set()
            os.kill(victim.process.pid, signal.SIGKILL)
            drill.killed_at_s = time.perf_counter() - began

    async def listen(place: int) -> Heard:
        heard, first_s = Heard(place % SEEDS), 0.0
        try:
            async with client.stream("POST", f"{url}/v1/audio/speech", json=order(heard.seed)) as answer:
                heard.status = answer.status_code
                async for piece in answer.aiter_raw():
                    if not heard.audio:
                        first_s = time.perf_counter() - began
                        heard.audio = piece
                        with suppress(httpx.TransportError):  # the victim does not answer any more
                            await has_begun(answer.headers["x-request-id"])
                    else:
                        heard.audio += piece
                heard.whole = True
        except httpx.TransportError:
            pass  # it was cut, and knows it
        heard.at_s = (first_s, time.perf_counter() - began)
        return heard

    drill.heard = list(await asyncio.gather(*(listen(place) for place in range(listeners))))
    assert killed.is_set(), "the victim spoke to nobody"
    return drill


async def first_bytes_s(client: httpx.AsyncClient, url: str, count: int) -> list[float]:
    """Seconds to the first byte, of requests one after another."""
    found = []
    for place in range(count):
        began = time.perf_counter()
        async with client.stream("POST", f"{url}/v1/audio/speech", json=order(place % SEEDS)) as answer:
            async for _ in answer.aiter_raw():
                found.append(time.perf_counter() - began)
                break
    return found


async def health_s(client: httpx.AsyncClient, url: str, count: int) -> list[float]:
    """Seconds that a question to /health/live takes."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        await client.get(f"{url}/health/live")
        found.append(time.perf_counter() - began)
    return found


async def measure(name: str, listeners: int, folder: Path) -> dict[str, Any]:
    """The whole drill with one proxy, and its figures."""
    async with (
        servers(folder) as running,
        proxy(name, folder, [upstream(server) for server in running]) as front,
        httpx.AsyncClient(timeout=LATE_S, limits=httpx.Limits(max_connections=None)) as client,
    ):
        alone = await spoken_alone(client, running[1].url)
        figures: dict[str, Any] = {"proxy": name, "listeners": listeners}
        for what, ask, count in (("live", health_s, 300), ("first_byte", first_bytes_s, 20)):
            straight, through = await ask(client, running[1].url, count), await ask(client, front.url, count)
            figures[f"{what}_ms"] = [round(1e3 * statistics.median(one), 2) for one in (straight, through)]
        drill = await kill_one(client, front.url, running[0], listeners)
        figures |= summary(drill, alone)
        began = time.perf_counter()
        statuses = [await first_bytes_s(client, front.url, 1) for _ in range(6)]
        figures["six_more_s"] = round(time.perf_counter() - began, 2)
        assert all(statuses)
        return figures


def summary(drill: Drill, alone: Mapping[int, bytes]) -> dict[str, Any]:
    """Counts, and when the last of those that had to begin anew or wait was served."""
    whole = [one for one in drill.heard if one.whole]
    later = [one.at_s[0] - drill.killed_at_s for one in whole if one.at_s[0] > drill.killed_at_s]
    return {
        "whole": len(whole),
        "cut": len(drill.cut()),
        "refused": sum(one.status != 200 for one in drill.heard),
        "mixed_up": sum(not one.is_of(alone[one.seed]) for one in drill.heard),
        "first_byte_after_the_kill_s": round(min(later), 3) if later else None,
        "cut_known_after_s": round(max((one.at_s[1] - drill.killed_at_s for one in drill.cut()), default=0.0), 3),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it and print figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--proxy", choices=("nginx", "envoy"), default="nginx")
    parser.add_argument("--listeners", type=int, default=60)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(measure(given.proxy, given.listeners, Path(folder)))))


if __name__ == "__main__":
    main()
