"""Runs a real client's script in an environment of its own against servers of this package, and judges what it got."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.clients.real.catalogue import RealClient
from tests.clients.real.judging import TEXT, VOICE, faults
from tests.entrypoints.certificates import certified
from tests.entrypoints.http.serve_process import ServerProcess, serving_process
from vivavoce.service.operations.keys import add_key, new_entry, new_key

ROOT, SCRIPTS = Path(__file__).parents[3], Path(__file__).parent / "scripts"
ENVIRONMENTS = ROOT / ".venv" / "clients"
LATE_S = 900.0
"""No script takes so long."""


@dataclass(frozen=True)
class Row:
    """One call of a client; fault: "" if it is green."""

    client: str
    version: str
    call: str
    heard: str
    fault: str
    seconds: float


class Servers:
    """`vivavoce serve` with mini, each started when it is first asked for, and ended with `stack`."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._stack = folder, stack

    def _start(self, name: str, *flags: object, **settings: object) -> ServerProcess:
        home = self._folder / name
        home.mkdir()
        return self._stack.enter_context(serving_process(home, "--model", "mini", *flags, **settings))

    @cached_property
    def plain(self) -> Mapping[str, str]:
        """Every door, without TLS and keys: the variables that scripts know it by."""
        server = self._start("plain", "--legacy", "--legacy-port", 0, "--grpc-port", 0, "--wyoming-port", 0)
        own = {"COSYVOICE_URL": server.legacy_url, "COSYVOICE_GRPC": server.grpc_address}
        return {"URL": server.url, "WYOMING": server.address(r"Wyoming is at (\S+)"), **own}

    @cached_property
    def secure(self) -> Mapping[str, str]:
        """With TLS, by a certificate that every client's environment trusts, and keys, which lists do not want."""
        tls, key, keys = certified(self._folder), new_key(), self._folder / "keys.toml"
        add_key(keys, new_entry(key, "client"))
        certificate = str(tls["tls_certificate"])
        flags = ("--tls-cert", certificate, "--tls-key", tls["tls_key"], "--keys", keys)
        server = self._start("secure", *flags, VIVAVOCE_AUTH_OPEN_LISTS=True)
        trusting = dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"), certificate)
        return {"SECURE_URL": server.url, "KEY": key, **trusting}


def run_client(client: RealClient, servers: Servers, folder: Path) -> Iterator[Row]:
    """Run its script; folder: takes its audio."""
    version = (client.pip or client.npm or (_version_of(client.program),))[0].rpartition("==")[2].rpartition("@")[2]
    folder.mkdir()
    variables = {**servers.plain, **(servers.secure if client.secure else {})}
    own = {name: value for name, value in os.environ.items() if not name.startswith(("VIVAVOCE_", "PYTHONPATH"))}
    try:
        command, told = command_of(client), 0
    except (OSError, subprocess.CalledProcessError) as error:
        yield Row(client.name, version, "its environment", "", str(error), 0.0)
        return
    asked = {"TEXT": TEXT, "VOICE": VOICE, "OUT": str(folder), "PYTHONPATH": str(SCRIPTS), "HOME": str(folder)}
    with (
        open(folder / "stderr.txt", "w+", encoding="utf-8") as errors,
        subprocess.Popen(
            command, env={**own, **variables, **asked}, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith('{"call"'):
                told += 1
                yield _row(client.name, version, json.loads(line))
        code = process.wait(LATE_S)
        if code or not told:
            errors.seek(0)
            last = (errors.read().strip().splitlines() or ["it told no call"])[-1]
            yield Row(client.name, version, "the script", "", f"exit code {code}: {last}", 0.0)


def _row(name: str, version: str, told: Mapping[str, object]) -> Row:
    heard, fault = "", str(told.get("error", ""))
    if not fault and told["file"]:
        file = Path(str(told["file"]))
        heard, fault = faults(file, told["rate"], told["speed"], told["words"])  # type: ignore[arg-type]
    return Row(name, version, str(told["call"]), heard, fault, float(str(told["seconds"])))


def command_of(client: RealClient) -> list[str]:
    """What runs its script: a light one in this environment, another in its own, which is made when it is not there."""
    is_python = client.script.endswith(".py")
    if client.light:
        return [sys.executable, str(SCRIPTS / client.script)]
    pins = "\n".join((*client.pip, *client.npm))
    environment = ENVIRONMENTS / Path(client.script).stem
    python, stamp = environment / "bin" / "python", environment / "installed.txt"
    if not stamp.is_file() or stamp.read_text(encoding="utf-8") != pins:
        shutil.rmtree(environment, ignore_errors=True)
        environment.mkdir(parents=True)
        if is_python:
            newer = tuple(map(int, client.python.removeprefix("python").split("."))) > sys.version_info
            _quietly(client.python if newer else sys.executable, "-m", "venv", "--without-pip", environment)
            if client.pip:
                pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q")
                _quietly(*pip, *client.pip[client.bare :])
                if client.bare:
                    _quietly(*pip, "--no-deps", client.pip[0])
        if client.npm:
            _quietly("npm", "install", "--silent", "--no-fund", "--no-audit", "--prefix", environment, *client.npm)
        stamp.write_text(pins, encoding="utf-8")
    if is_python:
        return [str(python), str(SCRIPTS / client.script)]
    for script in SCRIPTS.glob("*.mjs"):
        shutil.copy(script, environment)  # Node looks for packages beside the script
    return ["node", str(environment / client.script)]


def _quietly(*command: object) -> None:
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)


def _version_of(program: str) -> str:
    flag = "-version" if program.startswith("ff") else "--version"
    lines = subprocess.run([program, flag], capture_output=True, text=True, check=True).stdout.splitlines()
    return next(word for word in lines[0].split() if word[0].isdigit()).partition("-")[0]
