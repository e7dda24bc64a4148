"""Measures how many listeners the entry process of a server can serve over HTTP, WebSocket and gRPC.

    python -m benchmarks.entry --listeners 500 1000 2000 4000 --out entry.json

Each load has a new `vivavoce serve`. Its engine processes compute nothing and send 24 kHz audio in real time. Listeners
run in other processes; each requests another 10 s of speech when the last are played. The figures are the share of a
core that the entry process takes, and that its event loop's thread takes; the lateness of pieces, counted from the
moment at which all audio before them has been played; the time to first audio; and failures. `carries` is the largest
load without failures in which 99 % of the pieces are at most 100 ms late. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.entry.client import PROTOCOLS, Heard, Load
from benchmarks.serve_process import ServeProcess, serve_process
from vivavoce_bench.measure import percentiles, rounded, save_json

LATE_MS = 100.0
STARTING_S, SETTLING_S, PATIENCE_S = 4.0, 1.0, 60.0
"""Seconds for client processes to start, then from the last arrival to the first figure, and to wait for results."""


def main() -> None:
    options = _parser().parse_args()
    found: dict[str, Any] = {
        "command": shlex.join(("python", "-m", "benchmarks.entry", *sys.argv[1:])),
        **{"hardware": _processor(), "cores": os.cpu_count(), "python": sys.version.split()[0]},
        **{"engines": options.engines, "clients": options.clients, "seconds": options.seconds, "loads": []},
    }
    for protocol in options.protocols:
        for listeners in options.listeners:
            load = measure(options, protocol, listeners)
            found["loads"].append(load)
            print(line(load), flush=True)
    found["carries"] = carried(found["loads"])
    options.out.parent.mkdir(parents=True, exist_ok=True)
    save_json(rounded(found), options.out)
    print(f"carries: {found['carries']}; {options.out} has all figures")


def measure(options: argparse.Namespace, protocol: str, listeners: int) -> dict[str, Any]:
    """Figures of one load on a new server."""
    grpc_port = _free_port()
    flags = [
        "--device",
        "cpu",
        "--engines",
        options.engines,
        "--grpc-port",
        grpc_port,
        "--max-conc",
        4096,
        "--drain",
        1,
    ]
    variables = {"VIVAVOCE_SERVER_MAX_CONNECTIONS": str(listeners + 200)}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        module = "benchmarks.entry.server"
        with serve_process(list(map(str, flags)), log, module=module, variables=variables) as server:
            port = grpc_port if protocol == "grpc" else int(server.url.rpartition(":")[2])
            return _load(options, protocol, listeners, server, port)


def _load(
    options: argparse.Namespace, protocol: str, listeners: int, server: ServeProcess, port: int
) -> dict[str, Any]:
    begin = time.monotonic() + STARTING_S
    since, until = begin + options.arriving + SETTLING_S, begin + options.seconds
    clients = [
        subprocess.Popen([sys.executable, "-m", "benchmarks.entry.client", json.dumps(asdict(load))], stdout=-1)
        for load in _loads(options, protocol, listeners, port, begin)
    ]
    cpu = []
    for at_s in (since, until):
        time.sleep(max(0.0, at_s - time.monotonic()))
        cpu.append((time.monotonic(), *_busy_s(server.process_id)))
    heard = [_heard(one) for one in clients]
    took_s, process_s, loop_s = (after - before for before, after in zip(*cpu, strict=True))
    came = [piece for one in heard for piece in one.pieces if since <= piece[1] <= until]
    late_ms = [1000 * (at_s - due_s) for due_s, at_s, _ in came]
    audio_s = sum(seconds for *_, seconds in came)
    return {
        **{"protocol": protocol, "listeners": listeners, "pieces": len(came), "audio_s": audio_s},
        "cpu_share": process_s / took_s,
        "loop_share": loop_s / took_s,
        "cpu_ms_per_audio_s": 1000 * process_s / audio_s if came else None,
        **percentiles("late_ms", late_ms, (50, 99)),
        **percentiles("first_audio_ms", [1000 * first_s for one in heard for first_s in one.first], (50, 99)),
        "whole_speeches": sum(one.whole for one in heard),
        "failures": dict(sum((Counter(one.failures) for one in heard), Counter[str]())),
    }


def _heard(client: subprocess.Popen[bytes]) -> Heard:
    try:
        told, _ = client.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        client.kill()
        told = b""
    if not told:
        raise SystemExit("a process of listeners has ended, or hangs; its messages are above")
    return Heard(**json.loads(told))


def _loads(options: argparse.Namespace, protocol: str, listeners: int, port: int, begin: float) -> list[Load]:
    count = max(1, min(options.clients, listeners))
    shares = [listeners * (place + 1) // count - listeners * place // count for place in range(count)]
    return [
        Load(protocol, "127.0.0.1", port, share, begin, options.arriving, options.seconds, seed)
        for seed, share in enumerate(shares)
    ]


def carried(loads: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Protocol → the largest number of listeners up to which no load failed or was late; 0: every load was."""
    most: dict[str, int] = {}
    for protocol in dict.fromkeys(load["protocol"] for load in loads):
        most[protocol] = 0
        for load in sorted((one for one in loads if one["protocol"] == protocol), key=lambda one: one["listeners"]):
            if load["failures"] or load["late_ms_p99"] is None or load["late_ms_p99"] > LATE_MS:
                break
            most[protocol] = load["listeners"]
    return most


def line(load: dict[str, Any]) -> str:
    who = f"{load['protocol']}, {load['listeners']} listeners"
    if not load["pieces"]:
        return f"{who}: nothing came; failures: {load['failures']}"
    cpu = f"{load['cpu_share']:.0%} of a core (its loop {load['loop_share']:.0%})"
    late = f"{load['late_ms_p50']:.1f} / {load['late_ms_p99']:.1f} ms"
    first = f"{load['first_audio_ms_p50']:.1f} / {load['first_audio_ms_p99']:.1f} ms"
    return (
        f"{who}: {cpu}, {load['cpu_ms_per_audio_s']:.2f} ms for a second of audio; pieces late by {late} (p50 / p99), "
        f"first audio {first}; failures: {load['failures'] or 'none'}"
    )


def _busy_s(process: int) -> tuple[float, float]:
    """CPU seconds so far: of all threads of the process, and of its first thread, which runs the event loop."""
    seconds = {}
    for thread in Path(f"/proc/{process}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
            fields = (thread / "stat").read_text().rpartition(")")[2].split()
            seconds[int(thread.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return sum(seconds.values()), seconds[process]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.entry", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--listeners", nargs="+", type=int, default=[500, 1000, 2000, 4000], help="listeners at once")
    parser.add_argument("--protocols", nargs="+", choices=PROTOCOLS, default=list(PROTOCOLS))
    parser.add_argument("--engines", type=int, default=min(8, os.cpu_count() or 1), help="engine processes")
    parser.add_argument("--clients", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="client processes")
    parser.add_argument("--seconds", type=float, default=16.0, help="length of a load")
    parser.add_argument("--arriving", type=float, default=5.0, help="seconds until all listeners have connected")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/entry/entry.json"))
    return parser


if __name__ == "__main__":
    main()
