"""Compares one engine with several behind one server, and kills an engine under load.

    python -m benchmarks.fleet --model /tmp/vivavoce-v2-release --gpus 0,1 --concurrency 64 256
    python -m benchmarks.fleet --model babble --device cpu --engines 2 --concurrency 4 --requests 8 --tokens 25

`streams` loads a server with one engine, then a server with all, with the same number of users per engine. It gives the
time to first audio, underruns, and audio per second. Users run in other processes, and send a request when the last is
answered. `offline` speaks whole texts by `vivavoce bench --offline`. `kill` kills an engine (SIGKILL) under load; it
gives the outcome of the streams, and the time until all engines are ready again. A missing model folder is made, with
random weights in the release's sizes, or in tiny sizes with --tiny.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.serve_process import ServeProcess, serve_process
from vivavoce_bench import ClosedLoop, Outcome, Piece, Refused, Workload, figures, run_load
from vivavoce_bench.load import Ending, Utterance, with_ending
from vivavoce_bench.measure import rounded, save_json

PARTS = ("streams", "kill", "offline")
RECOVERY_S = 300.0
"""Longest time, in seconds, that engines may take to restart."""
RATE = 24_000
KEYS = (
    "requests", "ok", "refused", "failed", "ttfb_ms_p50", "ttfb_ms_p99", "gap_ms_p99", "underruns", "underrun_requests",
    "margin_ms_min", "rtf", "throughput_audio_s_per_s", "audio_s", "wall_s",
)  # fmt: skip
HUNG, CUT = "hung", "cut"


class ClearError(Exception):
    """The server answered with an error, or cut its answer in a way that the client notices."""


@dataclass(frozen=True)
class WireTarget:
    """A `Target` of a load: requests speech over a plain socket, which costs the client least."""

    host: str
    port: int
    ratio: float
    voice: str | None
    patience_s: float
    sample_rate: int = RATE

    async def speak(self, utterance: Utterance) -> AsyncIterator[Piece]:
        """Yield the pieces of the utterance's audio as they arrive."""
        sampling = {"min_ratio": self.ratio, "max_ratio": self.ratio} if self.ratio else {}
        wanted = {"input": utterance.text, "response_format": "pcm", "seed": utterance.seed, "sampling": sampling}
        body = json.dumps(wanted | ({"voice": self.voice} if self.voice else {})).encode()
        head = f"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        head += "content-type: application/json\r\nconnection: close\r\n\r\n"
        reader, writer = await asyncio.open_connection(self.host, self.port, limit=1 << 22)
        try:
            writer.write(head.encode() + body)
            answer = (await self._within(reader.readuntil(b"\r\n\r\n"))).decode("latin-1").lower()
            if not answer.startswith("http/1.1 200"):
                said = (await self._within(reader.read())).decode(errors="replace")
                if " 429 " in answer[:20]:
                    raise Refused(float(answer.partition("retry-after: ")[2].split("\r\n")[0] or 1))
                raise ClearError(f"{answer[9:12]} {said}")
            while size := int(await self._within(reader.readuntil(b"\r\n")), 16):
                yield Piece(len(await self._within(reader.readexactly(size + 2))) // 2 - 1)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise ClearError(CUT) from None
        finally:
            writer.close()

    async def _within(self, work: Any) -> bytes:
        """The bytes that `work` reads; TimeoutError: it got no bytes for `patience_s` seconds."""
        read: bytes = await asyncio.wait_for(work, self.patience_s)
        return read


def ask(target: WireTarget, utterances: Sequence[Utterance], concurrency: int) -> list[Outcome]:
    """Run the users of one process."""
    return asyncio.run(run_load(target, utterances, ClosedLoop(concurrency)))


@dataclass(frozen=True)
class Crowd:
    """Users in several processes, which start before the measurement. The processes share one clock (Linux)."""

    pool: ProcessPoolExecutor
    processes: int
    options: argparse.Namespace

    def load(self, url: str, concurrency: int, requests: int, purpose: str) -> list[Outcome]:
        """Send `requests` requests from `concurrency` users at once."""
        host, _, port = url.removeprefix("http://").partition(":")
        target = WireTarget(
            host, int(port), self.options.tokens_per_text_token, self.options.voice, self.options.patience_s
        )
        utterances = Workload(seed=self.options.seed).utterances(requests, purpose)
        parts = min(self.processes, concurrency)
        asked = [
            self.pool.submit(ask, target, utterances[part::parts], (concurrency + part) // parts)
            for part in range(parts)
        ]
        return [outcome for part in asked for outcome in part.result()]


@contextmanager
def crowd(options: argparse.Namespace) -> Iterator[Crowd]:
    """A `Crowd`; its processes end with the block."""
    with ProcessPoolExecutor(options.clients, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(abs, range(options.clients)))
        yield Crowd(pool, options.clients, options)


@contextmanager
def server(options: argparse.Namespace, engines: int, log: Path) -> Iterator[ServeProcess]:
    """`vivavoce serve` with `engines` engines, all of which are ready."""
    flags = ["--model", str(options.model), "--admission", options.admission, *places(options, engines)]
    variables = {"VIVAVOCE_SERVER_MAX_CONNECTIONS": "8192"}
    with serve_process([*flags, *options.serve_flags], log, variables=variables, patience_s=600.0) as process:
        await_engines(process.url, time.monotonic())
        yield process


def places(options: argparse.Namespace, engines: int) -> list[str]:
    """The flags that give a server the first `engines` engines."""
    if options.gpus:
        return ["--gpus", ",".join(options.gpus.split(",")[:engines])]
    return ["--device", options.device, "--engines", str(engines)]


def await_engines(url: str, since: float, ready: bool = True) -> float:
    """Seconds from `since` until all engines are ready or, with `ready` False, until one is not."""
    while time.monotonic() - since < RECOVERY_S:
        try:
            with urllib.request.urlopen(f"{url}/health") as answer:
                told = json.load(answer).get("engines", {"": "ready"})
        except urllib.error.HTTPError:
            told = {"": "unavailable"}
        if (set(told.values()) == {"ready"}) is ready:
            return time.monotonic() - since
        time.sleep(0.02)
    raise RuntimeError(f"engines: not ready after {RECOVERY_S:g} s")


def streams(process: ServeProcess, crowd: Crowd, engines: int) -> dict[str, Any]:
    """Figures for each number of users per engine."""
    options, found = crowd.options, {}
    for each in options.concurrency:
        users, requests = each * engines, max(options.requests, 2 * each) * engines
        crowd.load(process.url, users, users, "warm-up")
        report = figures(crowd.load(process.url, users, requests, "load"))
        found[str(each)] = {"users": users, **{key: report[key] for key in KEYS}}
        print(f"  {engines} engines, {users} users:", {key: report[key] for key in KEYS[1:8]}, flush=True)
    return found


def engine_processes(server_process: int) -> list[int]:
    """Process ids of a server's engines, in the order in which they were started; Linux only."""
    children = Path(f"/proc/{server_process}/task/{server_process}/children").read_text().split()
    commands = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    return [child for child, command in commands.items() if b"engine_process.process" in command]


def kill(process: ServeProcess, crowd: Crowd, engines: int, log: Path) -> dict[str, Any]:
    """Kill an engine under load; the result counts the outcomes of the streams."""
    options = crowd.options
    users, requests = max(options.concurrency) * engines, max(options.requests, 3 * max(options.concurrency)) * engines
    victim, times = engine_processes(process.process_id)[-1], []

    def strike() -> None:
        os.kill(victim, 9)
        times.append(time.monotonic())
        await_engines(process.url, times[0], ready=False)
        times.append(await_engines(process.url, times[0]))

    timer = threading.Timer(options.kill_after_s, strike)
    timer.start()
    outcomes = crowd.load(process.url, users, requests, "kill")
    timer.join()
    at, recovered_s = times
    after = figures(crowd.load(process.url, users, users, "after"))
    ends = Counter("completed" for _ in with_ending(outcomes, Ending.OK))
    for outcome in with_ending(outcomes, Ending.REFUSED):
        ends["refused"] += outcome.ending is Ending.REFUSED
    for outcome in with_ending(outcomes, Ending.FAILED):
        timed_out = "TimeoutError" in outcome.problem
        ends[HUNG if timed_out else "cut_after_audio" if outcome.arrivals else "error_before_audio"] += 1
    lost = [one for one in with_ending(outcomes, Ending.OK) if one.start_s < at < one.end_s]
    return {
        "users": users,
        "streams": len(outcomes),
        "running_when_killed": sum(one.start_s < at < one.end_s for one in outcomes),
        **{name: ends[name] for name in ("completed", "refused", "cut_after_audio", "error_before_audio", HUNG)},
        "moved_to_another_engine": log.read_text(encoding="utf-8").count("request moved"),
        "completed_that_ran_then_ttfb_ms_max": max((one.ttfb_s for one in lost), default=0.0) * 1000,
        "recovered_s": recovered_s,
        "after_ok": after["ok"],
        "after_ttfb_ms_p99": after["ttfb_ms_p99"],
        "problems": sorted({one.problem for one in with_ending(outcomes, Ending.FAILED)})[:5],
    }


def offline(options: argparse.Namespace, engines: int, folder: Path) -> dict[str, Any]:
    """Whole texts through the Python API with `engines` engines."""
    report, each = folder / f"offline-{engines}.json", options.offline_concurrency
    flags = ["--model", str(options.model), *places(options, engines), "--offline", "--admission", "all"]
    load = ["--concurrency", each * engines, "--requests", 4 * each * engines, "--tokens", options.tokens]
    command = [sys.executable, "-m", "vivavoce", "bench", *flags, *map(str, load), "--json", str(report), "--quiet"]
    subprocess.run(command, check=True)
    told = json.loads(report.read_text())
    return {key: told[key] for key in ("ok", "failed", "audio_s", "wall_s", "throughput_audio_s_per_s")}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the parts that `--only` names."""
    engines = len(options.gpus.split(",")) if options.gpus else options.engines
    found: dict[str, Any] = {
        "command": " ".join(["python -m benchmarks.fleet", *sys.argv[1:]]),
        **{"engines": engines, "clients": options.clients, "cpu_cores": os.cpu_count(), "hardware": hardware(options)},
    }
    with tempfile.TemporaryDirectory() as place, crowd(options) as users:
        folder = Path(place)
        if {"streams", "kill"} & set(options.only):
            for count in (1, engines) if "streams" in options.only else (engines,):
                print(f"starting a server with {count} engines", flush=True)
                with server(options, count, log := folder / f"server-{count}.log") as process:
                    if "streams" in options.only:
                        found[f"streams_{count}"] = {"ready_s": process.start_s, **streams(process, users, count)}
                    if "kill" in options.only and count == engines:
                        found["kill"] = kill(process, users, count, log)
                        print("  killed:", found["kill"], flush=True)
        if "offline" in options.only:
            for count in (1, engines):
                found[f"offline_{count}"] = offline(options, count, folder)
                print(f"  offline, {count} engines:", found[f"offline_{count}"], flush=True)
    return rounded(found | ratios(found, engines))


def ratios(found: dict[str, Any], engines: int) -> dict[str, Any]:
    """Ratios of all engines to one engine: audio per second, and 99th percentile of the time to first audio."""
    made, one, key = {}, found.get("streams_1", {}), "throughput_audio_s_per_s"
    for each in (name for name in one if name != "ready_s"):
        both = found[f"streams_{engines}"][each]
        made[f"streams_{each}_audio_ratio"] = both[key] / one[each][key]
        made[f"streams_{each}_ttfb_p99_ratio"] = both["ttfb_ms_p99"] / one[each]["ttfb_ms_p99"]
    if "offline_1" in found:
        made["offline_audio_ratio"] = found[f"offline_{engines}"][key] / found["offline_1"][key]
    return made


def hardware(options: argparse.Namespace) -> str:
    """The name of the first GPU, or of the processor."""
    import torch

    from vivavoce_bench.hardware import processor

    return torch.cuda.get_device_name(int(options.gpus.split(",")[0])) if options.gpus else processor()


def main() -> None:
    """Measure, print figures as they are measured, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a name, or a folder, which is made if it is missing")
    parser.add_argument("--tiny", action="store_true", help="make a missing folder with tiny sizes")
    parser.add_argument("--gpus", help="GPU numbers, such as 0,1; default: --engines on --device")
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--concurrency", nargs="+", type=int, default=[64, 256], help="users for each engine")
    parser.add_argument("--requests", type=int, default=0, help="requests per engine; at least twice the users")
    parser.add_argument("--tokens-per-text-token", type=float, default=8.0, help="0: the model ends the speech")
    parser.add_argument("--tokens", type=int, default=250, help="speech tokens of offline requests")
    parser.add_argument("--offline-concurrency", type=int, default=256, help="requests per engine")
    parser.add_argument("--voice", help="a voice's name; default: the model's first, which all engines have")
    parser.add_argument("--admission", default="all", help="refuse: the server rejects streams that would have gaps")
    parser.add_argument("--kill-after-s", type=float, default=3.0)
    parser.add_argument("--patience-s", type=float, default=60.0, help="without data for this long, a stream hangs")
    parser.add_argument("--clients", type=int, default=max(1, min(8, (os.cpu_count() or 2) // 4)), help="processes")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument(
        "--serve-flags", nargs=argparse.REMAINDER, default=[], help="more flags for the server; must be last"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/fleet/fleet.json"))
    options = parser.parse_args()
    if "/" in options.model and not Path(options.model).exists():
        from benchmarks.gpu.model import make_model
        from vivavoce.checkpoint.config import Generation
        from vivavoce_bench.random_checkpoint import RELEASE, TINY

        options.model = make_model(Path(options.model), TINY if options.tiny else RELEASE, Generation.V2)
    found = measure(options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    save_json(found, options.out)
    print(json.dumps({key: value for key, value in found.items() if "ratio" in key}, indent=2))


if __name__ == "__main__":
    main()
