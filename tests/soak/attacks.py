"""`python -m tests.soak.attacks`: what listeners and newcomers notice of an attacker, one kind after the other.

A real `vivavoce serve` speaks to listeners who play as they receive. Somebody new says "hi" every second, probes ask
for the server's health, another key uploads. All of that for a while alone, and for as long beside each attacker.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import re
import resource
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.model import make_model, origin
from benchmarks.serve_process import ServeProcess, serve_process
from tests.soak.attackers import ATTACKS, Place, attacker, recording
from tests.soak.bare_http import FORM, answer, asked, chunks, form, request, speech, status
from tests.soak.http_crowd import resident_mb
from vivavoce.bench.texts import SENTENCES
from vivavoce.measure import Arrival, Stream, json_text, rounded
from vivavoce.models.random_checkpoint import RELEASE, TINY
from vivavoce.service.operations.keys import add_key, new_entry, new_key

RATE = 24_000
TEXTS = [" ".join(SENTENCES[place : place + 4]) for place in range(8, 32)]
LENGTHS = {"min_ratio": 2, "max_ratio": 2}
"""Random weights do not end by themselves."""
TOO_LONG = recording(36.0, rate=4_000, width=1)
"""144 kB that are refused once they were read."""
SLACK_S = 0.1
"""A silence shorter than this is none: a player has so much in hand."""
MOST_LATER_S = 0.5
MOST_GROWTH = 0.1
MOST_UNHEARD = 0.1
"""Of newcomers and uploads, beyond those without the attacker."""
MOST_HEALTH_S = 2.0
MOST_LOG_MB = 5.0
PATIENCE_S = 30.0


@dataclass
class Figures:
    """What was noticed in one while; first_s: to each newcomer's first audio; health_s: worst, infinite: none came."""

    streams: list[Stream] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    unheard: Counter[str] = field(default_factory=Counter)
    """Newcomers, listeners and uploads that were turned away, and by what."""
    asked: Counter[str] = field(default_factory=Counter)
    health_s: dict[str, float] = field(default_factory=lambda: {"live": 0.0, "ready": 0.0})
    log_mb: float = 0.0
    memory_mb: dict[str, list[float]] = field(default_factory=dict)
    """Of each process: before, at most, afterwards."""
    came: dict[str, int] = field(default_factory=dict)
    """What the attacker says."""

    def silences_s(self) -> list[float]:
        """Those of all listeners."""
        return [-margin for stream in self.streams for margin in stream.margins_s if margin < -SLACK_S]

    def lost(self, who: str) -> tuple[int, float]:
        """How many were not served, and their share."""
        lost = sum(count for what, count in self.unheard.items() if what.startswith(who))
        return lost, lost / max(1, self.asked[who])

    def keys(self) -> dict[str, Any]:
        """For JSON; None: nobody was heard, or no answer came."""
        silences = self.silences_s()
        return {
            "audio_s": sum(stream.audio_s for stream in self.streams),
            "underruns": len(silences),
            "silence_s_max": max(silences, default=0.0),
            "first_s_median": statistics.median(self.first_s) if self.first_s else None,
            "first_s_max": max(self.first_s, default=None),
            "newcomers": self.asked["newcomer"],
            "lost": dict(self.unheard),
            **{f"{name}_s_max": worst if math.isfinite(worst) else None for name, worst in self.health_s.items()},
            **{f"{name}_mb": found for name, found in self.memory_mb.items()},
            "log_mb": self.log_mb,
            "attacker": self.came,
        }


def broken(alone: Figures, beside: Figures) -> list[str]:
    """What an attacker has taken from others."""
    wrong = []
    before, after = len(alone.silences_s()), len(beside.silences_s())
    if after > before:
        wrong.append(f"listeners: {after} silences instead of {before}, {max(beside.silences_s()):.1f} s at most")
    if alone.first_s and not beside.first_s:
        wrong.append("newcomers: nobody was heard")
    elif alone.first_s:
        for name, of in (("median", statistics.median), ("worst", max)):
            later = of(beside.first_s) - of(alone.first_s)
            if later >= MOST_LATER_S:
                wrong.append(f"newcomers: their {name} first audio comes {later:.2f} s later")
    for who in ("newcomer", "listener", "upload"):
        (few, little), (many, much) = alone.lost(who), beside.lost(who)
        if many > few + 1 and much > little + MOST_UNHEARD:
            wrong.append(f"{who}s: {much:.0%} were turned away instead of {little:.0%}")
    for name, worst in beside.health_s.items():
        if worst > max(MOST_HEALTH_S, 2 * alone.health_s[name]):
            wrong.append(f"health: /health/{name} took {worst:.1f} s, or did not answer")
    for name, (first, _, last) in beside.memory_mb.items():
        if last > first * (1 + MOST_GROWTH):
            wrong.append(f"memory: the {name} had {first:.0f} MB and keeps {last:.0f} MB")
    if beside.log_mb > MOST_LOG_MB:
        wrong.append(f"log: {beside.log_mb:.1f} MB were written")
    return wrong


@dataclass
class Watch:
    """Listeners, newcomers, probes and uploads of one server for a while."""

    server: ServeProcess
    place: Place
    listeners: int
    manner: dict[str, Any]
    figures: Figures = field(default_factory=Figures)

    async def run(self, seconds: float) -> None:
        """All of them until then; who waits then has waited for so long."""
        self._ends = time.monotonic() + seconds
        last = min(3.0, seconds / 4)
        tasks = [asyncio.ensure_future(self._listener(number)) for number in range(self.listeners)]
        tasks += [asyncio.ensure_future(self._probe(name)) for name in self.figures.health_s]
        tasks.append(asyncio.ensure_future(self._often(1.0, last, self._newcomer)))
        tasks.append(asyncio.ensure_future(self._often(2.0, last, self._upload)))
        tasks.append(asyncio.ensure_future(self._memory()))
        await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            task.cancel()
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(found, Exception):
                raise found

    async def _often(self, every_s: float, last_s: float, work: Callable[[], Awaitable[None]]) -> None:
        """Another one every so many seconds, but in the last ones."""
        async with _Group() as group:
            while time.monotonic() < self._ends - last_s:
                group.begin(work())
                await asyncio.sleep(every_s)

    async def _listener(self, number: int) -> None:
        await asyncio.sleep(number % 64 * 0.02)
        for turn in range(number, 1_000_000):
            self.figures.asked["listener"] += 1
            if not await self._hear(TEXTS[turn % len(TEXTS)], "listener", turn):
                await asyncio.sleep(0.5)

    async def _newcomer(self) -> None:
        self.figures.asked["newcomer"] += 1
        await self._hear("hi", "newcomer", 0)

    async def _hear(self, text: str, who: str, seed: int) -> bool:
        """Whether there was something to hear."""
        began, arrivals = time.monotonic(), list[Arrival]()
        content = speech(text, self.place.keys["bob"], seed=seed, **self.manner)
        try:
            async with asked(self.place.port, content) as (reader, _):
                found = await status(reader)
                if found != 200:
                    self.figures.unheard[f"{who} {found}"] += 1
                    return False
                async for piece in chunks(reader):
                    arrivals.append(Arrival(time.monotonic(), len(piece) // 2))
                    if who == "newcomer" and len(arrivals) == 1:
                        self.figures.first_s.append(time.monotonic() - began)
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            self.figures.unheard[f"{who} {type(error).__name__}"] += 1
        except asyncio.CancelledError:
            if who == "newcomer" and not arrivals:
                self.figures.first_s.append(time.monotonic() - began)
            if arrivals:
                arrivals.append(Arrival(time.monotonic(), 0))  # its listener waits for it, perhaps in silence
            raise
        finally:
            if who == "listener":
                self.figures.streams.append(Stream(began, time.monotonic(), RATE, tuple(arrivals)))
        return True

    async def _upload(self) -> None:
        """A recording for a voice."""
        self.figures.asked["upload"] += 1
        body = form({"name": "new", "transcript": "hi"}, "file", TOO_LONG)
        content = request("/v1/audio/voices", body, kind=FORM, key=self.place.keys["carol"])
        try:
            found = (await asyncio.wait_for(answer(self.place.port, content), PATIENCE_S))[0]
        except (OSError, TimeoutError, asyncio.TimeoutError) as error:
            self.figures.unheard[f"upload {type(error).__name__}"] += 1
        else:
            if found != 400:
                self.figures.unheard[f"upload {found}"] += 1

    async def _probe(self, name: str) -> None:
        worst, content = self.figures.health_s, request(f"/health/{name}", method="GET")
        while True:
            began = time.monotonic()
            try:
                found = (await asyncio.wait_for(answer(self.place.port, content), PATIENCE_S))[0]
            except asyncio.CancelledError:
                worst[name] = max(worst[name], time.monotonic() - began)
                raise
            except (OSError, TimeoutError, asyncio.TimeoutError):
                found = 0
            worst[name] = max(worst[name], time.monotonic() - began if found == 200 else math.inf)
            await asyncio.sleep(0.25)

    async def _memory(self) -> None:
        first = memory_mb(self.server)
        self.figures.memory_mb = {name: [found, found, found] for name, found in first.items()}
        while True:
            await asyncio.sleep(0.2)
            self.note_memory()

    def note_memory(self) -> bool:
        """Whether it is as small as at first."""
        for name, found in memory_mb(self.server).items():
            first, most, _ = self.figures.memory_mb[name]
            self.figures.memory_mb[name] = [first, max(most, found), found]
        return all(last <= first * (1 + MOST_GROWTH) for first, _, last in self.figures.memory_mb.values())


class _Group:
    """Tasks that are awaited, or cancelled, together."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Future[None]] = []

    def begin(self, work: Awaitable[None]) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    async def __aenter__(self) -> _Group:
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.gather(*self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)


def memory_mb(server: ServeProcess) -> dict[str, float]:
    """Of the server's process, and of the engine's with all that it started."""
    engine, *found = [server.engine_id]
    queue = [engine]
    while queue:
        pid = queue.pop()
        found.append(pid)
        with suppress(OSError):
            queue += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    total = 0.0
    for pid in found:
        with suppress(OSError):
            total += resident_mb(pid)
    return {"server": resident_mb(server.process_id), "engine": total}


@dataclass(frozen=True)
class Plan:
    """How it is tried; settle_s: in which memory has to be given back."""

    model: str = "mini"
    device: str = "cpu"
    listeners: int = 4
    callers: int = 8
    seconds: float = 30.0
    settle_s: float = 20.0
    attacks: Sequence[str] = tuple(ATTACKS)


def attacked(plan: Plan, folder: Path) -> dict[str, tuple[Figures, Figures]]:
    """The figures alone and beside each attacker; `folder` takes model, keys, voices and log."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    random_sizes = {"tiny": TINY, "release": RELEASE}.get(plan.model)
    kept = tempfile.gettempdir() if plan.model == "release" else folder
    model = plan.model if random_sizes is None else str(make_model(Path(kept, f"vivavoce-{plan.model}"), random_sizes))
    keys = {name: new_key() for name in ("alice", "bob", "carol", "mallory")}
    for name, key in keys.items():
        limits = {"requests_per_minute": 2, "concurrent": 1} if name == "alice" else {}
        add_key(folder / "keys.toml", new_entry(key, name, **limits))
    flags = ["--model", model, "--device", plan.device, "--voices", str(folder / "voices"), "--grpc-port", "0"]
    flags += ["--keys", str(folder / "keys.toml")]
    log = folder / "server.log"
    # As shells and systemd start it.
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
    with serve_process(flags, log, variables={"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}) as server:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        place = Place(int(server.url.rpartition(":")[2]), _grpc_port(log), folder / "voices", keys, plan.callers)
        manner = {} if random_sizes is None else {"sampling": LENGTHS}

        async def watched(seconds: float, attack: str | None = None) -> Figures:
            watch, logged = Watch(server, place, plan.listeners, manner), log.stat().st_size
            if attack is None:
                await watch.run(seconds)
            else:
                with attacker(attack, place) as control:
                    asyncio.get_running_loop().call_later(min(2.0, seconds / 5), control.send, "begin")
                    await watch.run(seconds)
                    control.send("end")
                    watch.figures.came = await asyncio.to_thread(control.recv)
                until = time.monotonic() + plan.settle_s
                while not watch.note_memory() and time.monotonic() < until:
                    await asyncio.sleep(0.2)
            watch.figures.log_mb = (log.stat().st_size - logged) / 1e6
            return watch.figures

        async def run() -> dict[str, tuple[Figures, Figures]]:
            await watched(max(2.0, plan.seconds / 3))  # buffers get their sizes
            found = {}
            for attack in plan.attacks:
                found[attack] = (await watched(plan.seconds), await watched(plan.seconds, attack))
                print(f"{attack:<9}{_row(*found[attack])}", flush=True)
            return found

        try:
            return asyncio.run(run())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _grpc_port(log: Path) -> int:
    for _ in range(100):
        if found := re.search(r"gRPC service is at \S+:(\d+)", log.read_text(encoding="utf-8")):
            return int(found[1])
        time.sleep(0.1)
    raise RuntimeError("the server told no port of gRPC")


HEADER = (
    "without → with each attacker\n"
    "         silences  worst s   first audio: median   worst s    lost       live s       ready s   "
    "server MB: before, most, after   engine MB           log MB"
)


def _row(alone: Figures, beside: Figures) -> str:
    one, two = alone.keys(), beside.keys()

    def pair(name: str, width: int, digits: int = 2) -> str:
        shown = [("none" if keys[name] is None else f"{keys[name]:.{digits}f}") for keys in (one, two)]
        return " → ".join(shown).ljust(width)

    lost = f"{sum(alone.unheard.values())} → {sum(beside.unheard.values())}"
    memory = ["{:.0f}, {:.0f}, {:.0f}".format(*beside.memory_mb[name]) for name in ("server", "engine")]
    return (
        f"{pair('underruns', 10, 0)}{pair('silence_s_max', 15)}{pair('first_s_median', 16)}{pair('first_s_max', 16)}"
        f"{lost:<11}{pair('live_s_max', 15)}{pair('ready_s_max', 15)}{memory[0]:<19}{memory[1]:<21}"
        f"{pair('log_mb', 14)}"
    )


def main() -> int:
    """Parse, run, print; 1 if an attacker took something from others."""
    default = Plan()
    parser = argparse.ArgumentParser("python -m tests.soak.attacks", description=__doc__)
    parser.add_argument("--model", default=default.model, help="name or folder; tiny, release: random, in such sizes")
    parser.add_argument("--device", default=default.device)
    parser.add_argument("--listeners", type=int, default=default.listeners)
    parser.add_argument("--callers", type=int, default=default.callers, help="of attackers that ask for much")
    parser.add_argument("--seconds", type=float, default=default.seconds, help="alone, and again with each attacker")
    parser.add_argument("--attacks", nargs="+", choices=list(ATTACKS), default=default.attacks)
    parser.add_argument("--short", action="store_true", help="five seconds of each, tiny model")
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument("--log", type=Path, help="keep the server's log")
    options = parser.parse_args()
    plan = Plan(*(getattr(options, name) for name in ("model", "device", "listeners", "callers", "seconds")))
    plan = Plan(**{**asdict(plan), "attacks": options.attacks})
    if options.short:
        plan = Plan("tiny", listeners=plan.listeners, seconds=5.0, settle_s=5.0, attacks=plan.attacks)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            found = attacked(plan, folder)
        finally:
            if options.log and (folder / "server.log").exists():
                options.log.write_bytes((folder / "server.log").read_bytes())
    wrong = {attack: broken(*pair) for attack, pair in found.items()}
    print(HEADER)
    for attack, pair in found.items():
        print(f"{attack:<9}{_row(*pair)}  {'broken' if wrong[attack] else 'held'}")
    for attack, problems in wrong.items():
        for problem in problems:
            print(f"broken: {attack}: {problem}")
    if options.out:
        device = torch.device("cuda" if torch.cuda.is_available() and plan.device != "cpu" else "cpu")
        results = {
            attack: {"alone": alone.keys(), "beside": beside.keys(), "broken": wrong[attack]}
            for attack, (alone, beside) in found.items()
        }
        keys = {**origin("tests.soak.attacks", device), **asdict(plan), "results": results}
        options.out.write_text(json_text(rounded(keys)) + "\n", encoding="utf-8")
    print("broken" if any(wrong.values()) else "all kept")
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
