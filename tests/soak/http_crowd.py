"""`python -m tests.soak.http_crowd`: a crowd on a real `vivavoce serve`; each hears its own text, and nothing is left.

64 users for five minutes with the mini model: over HTTP and WebSockets, some slow, some leaving. What each request says
was asked for alone before: it has to have as many samples, and the same ones up to rounding (a batch on a CPU rounds
otherwise than a row alone). Alone, before and after the crowd, the bytes are the same.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.serve_process import ServeProcess, serve_process
from tests.soak.http_listeners import BYTES_PER_S, WAYS, Ask, Heard, Listener, Way
from vivavoce_bench.texts import SENTENCES

FEWEST_S, MOST_S = 0.03, 0.2
"""Seconds of speech per character that can be its own text's."""
MOST_DIFFERENCE = 0.05
"""Root mean square of the difference to the same request alone, over that of its audio. Another text has about 1.4."""
MOST_MB = {"server": 24.0, "engine": 64.0}
"""Growth of each process's memory, see `growth`."""
GAUGES = ("vivavoce_streams_active", "vivavoce_requests_waiting", "vivavoce_slots_used")
"""What must be 0 when nobody listens."""


@dataclass(frozen=True)
class Plan:
    """Who asks for what, and for how long; seeds: of each text. sampling, variables: of requests, of the server."""

    model: str = "mini"
    users: int = 64
    seconds: float = 300.0
    texts: Sequence[str] = SENTENCES[:8]
    seeds: int = 2
    sampling: Mapping[str, float] = field(default_factory=dict)
    # oneDNN keeps 1024 compiled shapes: a cache that fills for hours would look like a leak.
    variables: Mapping[str, str] = field(default_factory=lambda: {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"})


@dataclass(frozen=True)
class Memory:
    """Resident memory in MB at one moment."""

    at_s: float
    server: float
    engine: float


@dataclass
class CrowdReport:
    """What came of it; difference: the largest, see `MOST_DIFFERENCE`; broken: what was wrong."""

    outcomes: Counter[str] = field(default_factory=Counter)
    audio_s: float = 0.0
    seconds: float = 0.0
    difference: float = 0.0
    memory: list[Memory] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"{self.outcomes.total()} requests in {self.seconds:.0f} s, {self.audio_s:.0f} s of audio checked"]
        lines += [f"  {what:<40}{count:>6}" for what, count in self.outcomes.most_common()]
        lines.append(f"largest difference to the same alone: {100 * self.difference:.2f} % of its own strength")
        for name, grown in growth(self.memory).items():
            first, last = (getattr(self.memory[place], name) for place in (0, -1))
            change = f"{grown:+.1f} since its second quarter (bound {MOST_MB[name]:g})"
            lines.append(f"memory of the {name}: {first:.0f} MB at first, {last:.0f} at the end, {change}")
        return "\n".join([*lines, *([f"broken: {one}" for one in self.broken] or ["all kept"])])


def soak_http(plan: Plan, folder: Path) -> CrowdReport:
    """Start a server, send the crowd, and look at what is left; `folder` takes log and voices."""
    flags = ["--model", plan.model, "--device", "cpu", "--admission", "queue", "--voices", str(folder / "voices")]
    with serve_process(flags, folder / "server.log", variables=plan.variables) as server:
        return asyncio.run(_Crowd(plan, server).run())


class _Crowd:
    """The users of one server."""

    def __init__(self, plan: Plan, server: ServeProcess) -> None:
        self._plan, self._server, self._engine_id = plan, server, server.engine_id
        self._listener = Listener(server.url, plan.sampling)
        self._alone: dict[tuple[Ask, bool], bytes] = {}
        """What each request gave alone, over HTTP and (True) as a text that arrives through a WebSocket."""
        self._report = CrowdReport()
        self._wrong = self._report.broken

    async def run(self) -> CrowdReport:
        """Alone, then in company, then alone again."""
        report = self._report
        try:
            voices = [voice["name"] for voice in (await self._listener.page("/v1/audio/voices")).json()["data"]]
            asks = [
                Ask(text, voices[place % len(voices)], seed)
                for place, text in enumerate(self._plan.texts)
                for seed in range(self._plan.seeds)
            ]
            await self._learn(asks)
            began = time.monotonic()
            numbers = self._numbers(began)
            await asyncio.gather(*(self._user(numbers, asks, began) for _ in range(self._plan.users)))
            report.seconds = time.monotonic() - began
            # Whoever left was noticed long before these are through, so that what is left then stays.
            await self._compare(asks)
            self._wrong += await self._left()
        finally:
            await self._listener.close()
        self._wrong += [*too_much(growth(report.memory))]
        self._wrong += [f"{way.value}: nobody did" for way in Way if not report.outcomes[way.value]]
        return report

    async def _learn(self, asks: Sequence[Ask]) -> None:
        for ask in asks:
            for way in (Way.WHOLE, Way.SOCKET):
                heard = await self._listener.hear(ask, way, random.Random(0))
                self._alone[ask, way is Way.SOCKET] = heard.audio
                if wrong := implausible(ask.text, heard.audio):
                    self._wrong.append(wrong)

    async def _compare(self, asks: Sequence[Ask]) -> None:
        for ask in asks[:: self._plan.seeds]:
            heard = await self._listener.hear(ask, Way.WHOLE, random.Random(0))
            if heard.audio != self._alone[ask, False]:
                self._wrong.append(f"{ask}: alone after the crowd it has other bytes than alone before")

    def _numbers(self, began: float) -> Iterator[int]:
        number = 0
        while number < self._plan.users or time.monotonic() < began + self._plan.seconds:
            yield number
            number += 1

    async def _user(self, numbers: Iterator[int], asks: Sequence[Ask], began: float) -> None:
        for number in numbers:
            chance, way = random.Random(number), WAYS[number % len(WAYS)]
            ask = chance.choice(asks)
            try:
                heard = await self._listener.hear(ask, way, chance)
            except Exception as error:  # whatever a request breaks with is a finding, and ends no other
                self._wrong.append(f"request {number} ({way.value}): {type(error).__name__}: {error}")
            else:
                self._judge(number, ask, way, heard)
            self._report.outcomes[way.value] += 1
            processes = (resident_mb(pid) for pid in (self._server.process_id, self._engine_id))
            self._report.memory.append(Memory(time.monotonic() - began, *processes))

    def _judge(self, number: int, ask: Ask, way: Way, heard: Heard) -> None:
        alone, report = self._alone[ask, way in (Way.SOCKET, Way.INTERRUPTS)], self._report
        report.audio_s += len(heard.audio) / BYTES_PER_S
        if heard.whole and len(heard.audio) != len(alone):
            self._wrong.append(f"request {number} ({way.value}): {len(heard.audio)} bytes, alone it has {len(alone)}")
            return
        found = difference(heard.audio, alone)
        report.difference = max(report.difference, found)
        if found > MOST_DIFFERENCE:
            self._wrong.append(f"request {number} ({way.value}): differs by {found:.2f} from {ask} alone")

    async def _left(self) -> list[str]:
        """What the server's own figures say of requests that are over."""
        page = (await self._listener.page("/metrics")).text
        found = {name: gauge(page, name) for name in (*GAUGES, "vivavoce_engine_starts_total")}
        wrong = [f"{name}: {found[name]:g} is left" for name in GAUGES if found[name]]
        if found["vivavoce_engine_starts_total"] != 1:
            wrong.append("engine: its process was started again")
        if not re.search(r'^vivavoce_requests_total\{.*outcome="cancelled"\} [1-9]', page, re.MULTILINE):
            wrong.append("requests: the server noticed nobody who left")
        return wrong


def difference(audio: bytes, alone: bytes) -> float:
    """How far 16-bit audio is from the beginning of what the same request gave alone: 0 for the same."""
    if len(audio) > len(alone):
        return float("inf")
    expected = _samples(alone)
    apart = _samples(audio) - expected[: len(audio) // 2]
    return float(_strength(apart) / max(_strength(expected), 1.0)) if len(apart) else 0.0


def implausible(text: str, audio: bytes) -> str:
    """Why this cannot be the text's audio; empty: it can."""
    seconds = len(audio) / BYTES_PER_S
    if FEWEST_S * len(text) <= seconds <= MOST_S * len(text):
        return ""
    return f"{text!r}: {seconds:.2f} s of audio are not in {FEWEST_S:g} … {MOST_S:g} s per character"


def growth(memory: Sequence[Memory]) -> dict[str, float]:
    """MB of each process, from the second quarter of the time to the last one: medians."""
    whole_s = memory[-1].at_s
    early = [one for one in memory if whole_s / 4 <= one.at_s <= whole_s / 2] or memory
    late = [one for one in memory if one.at_s >= whole_s * 3 / 4]
    medians = {
        name: [statistics.median(getattr(one, name) for one in part) for part in (early, late)] for name in MOST_MB
    }
    return {name: after - before for name, (before, after) in medians.items()}


def too_much(grown: Mapping[str, float]) -> Iterator[str]:
    """The bounds of memory that were not kept."""
    for name, found in grown.items():
        if found > MOST_MB[name]:
            yield f"memory of the {name}: grew by {found:.1f} MB, the bound is {MOST_MB[name]:g} MB"


def gauge(page: str, name: str) -> float:
    """A value of Prometheus' page; KeyError if it is not there."""
    found = re.search(rf"^{name} (\S+)$", page, re.MULTILINE)
    if found is None:
        raise KeyError(name)
    return float(found[1])


def resident_mb(process_id: int) -> float:
    """What a process has in memory."""
    return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * 4096 / 2**20


def _samples(audio: bytes) -> NDArray[np.float64]:
    return np.frombuffer(audio[: len(audio) // 2 * 2], "<i2").astype(np.float64)


def _strength(samples: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(samples**2)))


def main() -> int:
    """Parse, run, print; 1 if a bound is broken."""
    default = Plan()
    parser = argparse.ArgumentParser("python -m tests.soak.http_crowd", description=__doc__)
    parser.add_argument("--model", default=default.model, help="name or folder")
    parser.add_argument("--users", type=int, default=default.users, help="streams at the same time")
    parser.add_argument("--seconds", type=float, default=default.seconds, help="as long as users ask anew")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = soak_http(Plan(options.model, options.users, options.seconds), Path(folder))
    print(report)
    return 1 if report.broken else 0


if __name__ == "__main__":
    raise SystemExit(main())
