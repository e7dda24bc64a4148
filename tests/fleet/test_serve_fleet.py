"""`vivavoce serve --engines`: an engine is killed while everybody listens."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.server.http.serve_process import LATE_S, ServerProcess, serving_process

pytestmark = pytest.mark.process

TEXT = "One two three four five six seven eight. " * 4
BRIEF = {"max_ratio": 2.0, "min_ratio": 0.0, "top_k": 5}
"""Babble does not stop by itself."""
SLOTS = 3
"""Of each engine: who comes later waits, and does not sound yet."""
ROUNDING = 0.02
"""Of the loudest sample: larger batches sum in another order, by up to 0.006; another stream is another wave."""


@dataclass
class Client:
    """What one of them heard; whole: to the end."""

    seed: int
    audio: bytearray = field(default_factory=bytearray)
    whole: bool = False
    problem: str = ""
    sampling: dict[str, float] = field(default_factory=lambda: BRIEF)

    async def listen(self, http: httpx.AsyncClient) -> None:
        body = {"input": TEXT, "response_format": "pcm", "seed": self.seed, "sampling": self.sampling}
        try:
            async with http.stream("POST", "/v1/audio/speech", json=body) as answer:
                if answer.status_code != 200:
                    self.problem = (await answer.aread()).decode()
                    return
                async for piece in answer.aiter_bytes():
                    self.audio += piece
                self.whole = True
        except httpx.RemoteProtocolError as error:  # it was cut, and its client sees that
            self.problem = str(error)

    @property
    def samples(self) -> np.ndarray:
        return np.frombuffer(bytes(self.audio[: len(self.audio) & ~1]), "<i2").astype(np.float32)


def await_ready(server: ServerProcess, count: int) -> None:
    """Wait until so many engines' processes have become ready."""
    after = 0
    for _ in range(count):
        after = 1 + server.log.lines.index(server.log.await_event("engine ready", after), after)


async def waiting(http: httpx.AsyncClient, engine: str) -> float:
    """Requests that an engine took and has not begun."""
    found = re.search(
        rf'^vivavoce_requests_waiting{{engine="{engine}"}} (\S+)$', (await http.get("/metrics")).text, re.M
    )
    return float(found[1]) if found else 0.0  # an engine that is slow to answer has no line


async def all_heard(server: ServerProcess, count: int) -> list[Client]:
    """So many clients at once; while some sound and others wait at an engine that took them, it is killed."""
    clients = [Client(seed) for seed in range(count)]
    victim = next(line for line in server.log.lines if line["event"] == "engine ready" and line["engine"] == "1")
    async with httpx.AsyncClient(base_url=server.url, timeout=LATE_S, limits=httpx.Limits()) as http:
        listening = [asyncio.ensure_future(client.listen(http)) for client in clients]
        while not any(client.audio for client in clients) or await waiting(http, "1") < 2:
            assert not all(one.done() for one in listening), "nobody waited at the engine"
            await asyncio.wait(listening, timeout=0.01)
        os.kill(victim["process"], signal.SIGKILL)
        await asyncio.wait_for(asyncio.gather(*listening), LATE_S)  # none hangs
    return clients


async def alone(server: ServerProcess, seeds: list[int]) -> list[np.ndarray]:
    """What each is when nobody else speaks."""
    clients = [Client(seed) for seed in seeds]
    async with httpx.AsyncClient(base_url=server.url, timeout=LATE_S) as http:
        for client in clients:
            await client.listen(http)
            assert client.whole, client.problem
    return [client.samples for client in clients]


@pytest.mark.parametrize(("engines", "count"), [(2, 18), pytest.param(3, 60, marks=pytest.mark.long)])
def test_an_engine_that_is_killed_takes_no_stream_that_did_not_sound(
    babble: Path, tmp_path: Path, engines: int, count: int
) -> None:
    flags = ("--model", babble, "--engines", engines, "--admission", "all", "--slots", SLOTS)
    with serving_process(tmp_path, *flags, VIVAVOCE_MODEL_WARM_UP_S=0, VIVAVOCE_SERVER_MAX_CONNECTIONS=200) as server:
        names = {str(number): "ready" for number in range(engines)}
        await_ready(server, engines)
        assert httpx.get(f"{server.url}/health").json() == {"status": "ready", "engines": names}
        before = len(server.log.lines)
        clients = asyncio.run(all_heard(server, count))
        whole, cut = ([one for one in clients if one.whole is it] for it in (True, False))
        assert all(one.audio for one in cut), "those without a byte are given to another engine"
        assert len(whole) >= count - SLOTS, "an engine takes no more streams than it had begun"
        assert server.log.await_event("request moved: another engine takes it", before)
        ended = [line for line in server.log.lines[before:] if line["event"] == "speech ended"]
        assert [line["error_code"] for line in ended if line["reason"] == "error"] == ["engine_stopped"] * len(cut)
        await_ready(server, engines + 1)
        assert httpx.get(f"{server.url}/health").json()["engines"] == names
        for one, wanted in zip(clients, asyncio.run(alone(server, [one.seed for one in clients])), strict=True):
            assert len(one.samples) == len(wanted) if one.whole else len(one.samples) < len(wanted)
            off = np.abs(one.samples - wanted[: len(one.samples)]).max()
            assert off < ROUNDING * np.abs(wanted).max(), f"seed {one.seed} is mixed up"
        figures = httpx.get(f"{server.url}/metrics").text
        starts = re.findall(r'vivavoce_engine_starts_total\{engine="(\d)"\} (\d)', figures)
        assert dict(starts) == {name: "2" if name == "1" else "1" for name in names}
