"""`python -m tests.soak.attacks`: what listeners and newcomers notice of an attacker, one kind after the other.

A real `vivavoce serve` speaks to listeners who ask for the next text once they have played one. Somebody new says "hi"
every two seconds, probes ask for the server's health, another key uploads. All of that for a while alone, and for as
long beside each attacker. There are at most as many listeners as the machine carries without an attacker; where it
carries none, the exit code is 2.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.model import make_model, origin
from benchmarks.serve_process import ServeProcess, serve_process
from tests.soak.attackers import ATTACKS, Place, attacker, recording
from tests.soak.bare_http import FORM, answer, asked, chunks, form, request, speech, status
from tests.soak.http_crowd import resident_mb
from vivavoce.server.keys import add_key, new_entry, new_key
from vivavoce_bench.measure import Arrival, PlaybackTrace, json_text, percentile, rounded
from vivavoce_bench.random_checkpoint import RELEASE, TINY
from vivavoce_bench.texts import SENTENCES

RATE = 24_000
TEXTS = [" ".join(SENTENCES[place : place + 4]) for place in range(8, 32)]
SIZES = {"tiny": TINY, "release": RELEASE}
LENGTHS = {"sampling": {"min_ratio": 2, "max_ratio": 2}}
"""Random weights do not end by themselves."""
TOO_COARSE = recording(36.0, rate=4_000, width=1)
"""144 kB that are refused when they are decoded, for their rate."""
NEWCOMER_EVERY_S = 2.0
SLACK_S = 0.1
"""A silence shorter than this is none: a player has so much in hand."""
MOST_LATER_S, MOST_FIRST_S, MOST_HEALTH_S, MOST_LOG_MB = 0.5, 2.0, 2.0, 5.0
MOST_GROWTH = MOST_UNHEARD = 0.1
"""Of memory, and of newcomers, listeners and uploads that are turned away beyond those without the attacker."""
PATIENCE_S, SETTLE_S = 30.0, 10.0
"""For an answer, and for memory to be given back."""


@dataclass
class Figures:
    """What was noticed in one while; first_s: to each newcomer's first audio; health_s: the worst, infinite: none."""

    streams: list[PlaybackTrace] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    """Who was turned away, and by what."""
    health_s: dict[str, float] = field(default_factory=lambda: {"live": 0.0, "ready": 0.0})
    log_mb: float = 0.0
    memory_mb: dict[str, list[float]] = field(default_factory=dict)
    """Of the server's process, and of those below it: before, at most, afterwards."""
    came: dict[str, int] = field(default_factory=dict)
    """What the attacker says."""

    def silences_s(self) -> list[float]:
        """Those of all listeners."""
        return [-margin for stream in self.streams for margin in stream.margins_s if margin < -SLACK_S]

    def carried(self) -> bool:
        """Whether nobody was turned away or had to wait long."""
        return not (self.lost or self.silences_s()) and max(self.first_s, default=math.inf) < MOST_FIRST_S

    def lost_of(self, who: str) -> int:
        """How many of them were turned away."""
        return sum(count for what, count in self.lost.items() if what.startswith(who))

    def keys(self) -> dict[str, Any]:
        """For table and JSON; None: nobody was heard, or no answer came."""
        silences = self.silences_s()
        return {
            "audio_s": sum(stream.audio_s for stream in self.streams),
            "silences": len(silences),
            "silence_s": max(silences, default=0.0),
            "first_s": percentile(self.first_s, 50) if self.first_s else None,
            "first_s_max": max(self.first_s, default=None),
            "lost": self.lost.total(),
            **{f"{name}_s": worst if math.isfinite(worst) else None for name, worst in self.health_s.items()},
            "log_mb": self.log_mb,
            "memory_mb": self.memory_mb,
            "asked": self.asked,
            "turned_away": self.lost,
            "attacker": self.came,
        }


def broken(alone: Figures, beside: Figures) -> list[str]:
    """What an attacker has taken from others."""
    wrong, silences = [], beside.silences_s()
    if len(silences) > len(alone.silences_s()):
        before = len(alone.silences_s())
        wrong.append(f"listeners: {len(silences)} silences instead of {before}, {max(silences):.1f} s at most")
    if alone.first_s and not beside.first_s:
        wrong.append("newcomers: nobody was heard")
    elif alone.first_s:
        for percent in (50, 90):
            if (later := percentile(beside.first_s, percent) - percentile(alone.first_s, percent)) >= MOST_LATER_S:
                wrong.append(f"newcomers: first audio (p{percent}) comes {later:.2f} s later")
    for who in ("newcomer", "listener", "upload"):
        few, many = alone.lost_of(who), beside.lost_of(who)
        if many > few + 1 and many / beside.asked[who] > few / max(1, alone.asked[who]) + MOST_UNHEARD:
            wrong.append(f"{who}s: {many} of {beside.asked[who]} were turned away, {few} of {alone.asked[who]} before")
    for name, worst in beside.health_s.items():
        if worst > max(MOST_HEALTH_S, 2 * alone.health_s[name]):
            wrong.append(f"health: /health/{name} took {worst:.1f} s, or did not answer")
    for name, (first, _, last) in beside.memory_mb.items():
        if last > first * (1 + MOST_GROWTH):
            wrong.append(f"memory: the {name} had {first:.0f} MB and keeps {last:.0f} MB")
    if beside.log_mb > MOST_LOG_MB:
        wrong.append(f"log: {beside.log_mb:.1f} MB were written")
    wrong += [f"attacker: {what}" for what in beside.came if what.startswith("it broke")]
    return wrong


class Watch:
    """Listeners, newcomers, probes and uploads of one server for a while."""

    def __init__(self, server: ServeProcess, place: Place, listeners: int, manner: dict[str, Any]) -> None:
        self._server, self._place, self._listeners, self._manner = server, place, listeners, manner
        self.figures = Figures()
        self._tasks: list[asyncio.Future[None]] = []

    async def run(self, seconds: float) -> None:
        """All of them until then; who waits then has waited for so long."""
        last_at = time.monotonic() + seconds - min(3.0, seconds / 4)
        for work in (*map(self._listener, range(self._listeners)), *map(self._probe, self.figures.health_s)):
            self._begin(work)
        self._begin(self._often(NEWCOMER_EVERY_S, last_at, self._newcomer))
        self._begin(self._often(2.0, last_at, self._upload))
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.note_memory()
            await asyncio.sleep(0.2)
        while not all(task.done() for task in self._tasks):
            for task in self._tasks:  # again: before Python 3.12 wait_for may lose it
                task.cancel()
            await asyncio.wait(self._tasks, timeout=0.5)
        for task in self._tasks:
            if not task.cancelled():
                task.result()

    def _begin(self, work: Awaitable[None]) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    async def _often(self, every_s: float, last_at: float, work: Callable[[], Awaitable[None]]) -> None:
        while time.monotonic() < last_at:
            self._begin(work())
            await asyncio.sleep(every_s)

    async def _listener(self, number: int) -> None:
        await asyncio.sleep(number * 0.02)
        for turn in range(number, 1_000_000):
            stream = await self._hear(TEXTS[turn % len(TEXTS)], "listener", turn)
            heard = stream.arrivals
            left_s = heard[0].at_s + stream.audio_s - time.monotonic() if heard else 0.5
            await asyncio.sleep(left_s)  # the next text is asked for once this one is played

    async def _newcomer(self) -> None:
        await self._hear("hi", "newcomer", 0)

    async def _hear(self, text: str, who: str, seed: int) -> PlaybackTrace:
        content = speech(text, self._place.keys["bob"], seed=seed, **self._manner)
        began, arrivals = time.monotonic(), list[Arrival]()
        self.figures.asked[who] += 1
        try:
            async with asked(self._place.port, content) as (reader, _):
                if (found := await status(reader)) != 200:
                    self.figures.lost[f"{who} {found}"] += 1
                    return PlaybackTrace(began, time.monotonic(), RATE)
                async for piece in chunks(reader):
                    arrivals.append(Arrival(time.monotonic(), len(piece) // 2))
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            self.figures.lost[f"{who} {type(error).__name__}"] += 1
        except asyncio.CancelledError:
            arrivals.append(Arrival(time.monotonic(), 0))  # perhaps it waits in silence
            raise
        finally:
            stream = PlaybackTrace(began, time.monotonic(), RATE, tuple(arrivals))
            if who == "listener":
                self.figures.streams.append(stream)
            elif arrivals:
                self.figures.first_s.append(stream.ttfb_s)
        return stream

    async def _upload(self) -> None:
        """A recording for a voice."""
        body = form({"name": "new", "transcript": "hi"}, "file", TOO_COARSE)
        found, said = await self._answer(request("/v1/audio/voices", body, kind=FORM, key=self._place.keys["carol"]))
        self.figures.asked["upload"] += 1
        self.figures.lost.update({f"upload {found}": 1} if (found, b"4000 Hz" in said) != (400, True) else {})

    async def _probe(self, name: str) -> None:
        worst, content = self.figures.health_s, request(f"/health/{name}", method="GET")
        while True:
            began, found = time.monotonic(), 200
            try:
                found, _ = await self._answer(content)
            finally:
                worst[name] = max(worst[name], time.monotonic() - began if found == 200 else math.inf)
            await asyncio.sleep(0.25)

    async def _answer(self, content: bytes) -> tuple[int, bytes]:
        try:
            return await asyncio.wait_for(answer(self._place.port, content), PATIENCE_S)
        except (OSError, TimeoutError, asyncio.TimeoutError):
            return 0, b""

    def note_memory(self) -> bool:
        """Whether it is as small as at first."""
        server = self._server.process_id
        found = {"server": resident_mb(server), "engine": sum(map(resident_mb, below(server)))}
        for name, now in found.items():
            first, most, _ = self.figures.memory_mb.get(name, (now, now, now))
            self.figures.memory_mb[name] = [first, max(most, now), now]
        return all(last <= first * (1 + MOST_GROWTH) for first, _, last in self.figures.memory_mb.values())


def below(process_id: int) -> list[int]:
    """The processes that one has started, and those that they have."""
    lists = Path(f"/proc/{process_id}/task").glob("*/children")
    children = [int(child) for found in lists for child in found.read_text().split()]
    return [one for child in children for one in (child, *below(child))]


def attack_all(options: argparse.Namespace, folder: Path) -> dict[str, tuple[Figures, Figures]]:
    """The figures alone and beside each attacker; `folder` takes model, keys, voices and log."""
    model, manner, log = options.model, {}, folder / "server.log"
    if model in SIZES:
        kept = Path(tempfile.gettempdir()) if model == "release" else folder  # it takes a minute to make
        model, manner = str(make_model(kept / f"vivavoce-{model}", SIZES[model])), LENGTHS
    keys = {name: new_key() for name in ("alice", "bob", "carol", "mallory")}
    for name, key in keys.items():
        limits = {"requests_per_minute": 2, "concurrent": 1} if name == "alice" else {}
        add_key(folder / "keys.toml", new_entry(key, name, **limits))
    flags = ["--model", model, "--device", options.device, "--grpc-port", "0"]
    flags += ["--voices", str(folder / "voices"), "--keys", str(folder / "keys.toml"), *options.flags.split()]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))  # as shells and systemd start it
    with serve_process(flags, log, variables={"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64"}) as server:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        while not (told := re.search(r"gRPC service is at \S+:(\d+)", log.read_text(encoding="utf-8"))):
            time.sleep(0.1)
        place = Place(int(server.url.rpartition(":")[2]), int(told[1]), folder / "voices", keys, options.callers)

        listeners = options.listeners

        async def watched(attack: str | None = None, seconds: float = options.seconds) -> Figures:
            watch, logged = Watch(server, place, listeners, manner), log.stat().st_size
            with attacker(attack, place, seconds / 10) as ended:
                await watch.run(seconds)
                watch.figures.came = ended()
            until = time.monotonic() + (SETTLE_S if attack else 0.0)
            while not watch.note_memory() and time.monotonic() < until:
                await asyncio.sleep(0.2)
            watch.figures.log_mb = (log.stat().st_size - logged) / 1e6
            return watch.figures

        async def run() -> dict[str, tuple[Figures, Figures]]:
            nonlocal listeners
            found, usual = {}, list[float]()
            while listeners and not (await watched(seconds=options.seconds / 2)).carried():
                listeners -= 1
            print(f"listeners: {listeners}, the machine carries them without an attacker", flush=True)
            for attack in options.attacks if listeners else ():
                await watched(attack, options.seconds / 2)  # buffers get their sizes
                alone = await watched()
                # Few newcomers come in each while, so those of all whiles without an attacker are compared with.
                usual += alone.first_s
                found[attack] = (replace(alone, first_s=usual), await watched(attack))
                print(_row(attack, *found[attack]), flush=True)
            return found

        try:
            return asyncio.run(run())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


COLUMNS = ("silences", "silence_s", "first_s", "first_s_max", "lost", "live_s", "ready_s", "log_mb")
"""Each without → with the attacker; then memory before, at most, afterwards."""


def _row(attack: str, alone: Figures, beside: Figures) -> str:
    one, two = alone.keys(), beside.keys()
    cells = [f"{_figure(one[name])} → {_figure(two[name])}" for name in COLUMNS]
    cells += [", ".join(f"{mb:.0f}" for mb in found) for found in beside.memory_mb.values()]
    return f"{attack:<8} " + " ".join(f"{cell:<15}" for cell in (*cells, "broken" if broken(alone, beside) else "held"))


def _figure(value: float | None) -> str:
    return "none" if value is None else f"{value}" if isinstance(value, int) else f"{value:.2f}"


def main() -> int:
    """Parse, run, print; 1 if an attacker took something from others."""
    parser = argparse.ArgumentParser("python -m tests.soak.attacks", description=__doc__)
    parser.add_argument("--model", default="mini", help="name or folder; tiny, release: random, in such sizes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--listeners", type=int, default=4)
    parser.add_argument("--callers", type=int, default=8, help="of attackers that ask for much")
    parser.add_argument("--seconds", type=float, default=30.0, help="alone, and again with each attacker")
    parser.add_argument("--attacks", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--flags", default="", help="further ones of `vivavoce serve`")
    parser.add_argument("--short", action="store_true", help="five seconds of each, tiny model, one listener")
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument("--log", type=Path, help="keep the server's log")
    options = parser.parse_args()
    if options.short:
        options.model, options.seconds, options.listeners = "tiny", 5.0, 1
    device = torch.device("cuda" if torch.cuda.is_available() and options.device != "cpu" else "cpu")
    with tempfile.TemporaryDirectory() as name:
        try:
            found = attack_all(options, Path(name))
        finally:
            if options.log:
                options.log.write_bytes(Path(name, "server.log").read_bytes())
    if not found:
        print("error: the machine does not carry one listener beside newcomers; try --model tiny", file=sys.stderr)
        return 2
    wrong = {attack: broken(*pair) for attack, pair in found.items()}
    print(f"{'':<8} " + " ".join(f"{name:<15}" for name in (*COLUMNS, "server MB", "engine MB", "")))
    print("\n".join(_row(attack, *pair) for attack, pair in found.items()))
    for attack, (alone, beside) in found.items():
        print(f"{attack}: turned away {dict(alone.lost)} → {dict(beside.lost)}; the attacker: {beside.came}")
        print("\n".join(f"broken: {attack}: {problem}" for problem in wrong[attack]) or f"{attack}: held")
    if options.out:
        results = {one: {"alone": a.keys(), "beside": b.keys(), "broken": wrong[one]} for one, (a, b) in found.items()}
        keys = {**origin("tests.soak.attacks", device), "listeners": options.listeners, "results": results}
        options.out.write_text(json_text(rounded(keys)) + "\n", encoding="utf-8")
    return 1 if any(wrong.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
