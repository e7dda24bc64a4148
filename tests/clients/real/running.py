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
from urllib.parse import urlencode
from urllib.request import urlopen

from tests.clients.real.catalogue import RealClient
from tests.clients.real.judging import TEXT, VOICE, faults
from tests.server.certificates import certified
from tests.server.http.serve_process import ServerProcess, serving_process
from tests.small_checkpoint import small_checkpoint
from tests.soak.served import served
from vivavoce.checkpoint.config import Generation
from vivavoce.errors import DownloadError, MissingDependency
from vivavoce.frontend.model_choice import MINI
from vivavoce.server.keys import add_key, new_entry, new_key
from vivavoce_triton.client.utterance import LoadMode
from vivavoce_triton.model_repository import ModelSet
from vivavoce_triton.server import ServerInstallation, find_installation

ROOT, SCRIPTS = Path(__file__).parents[3], Path(__file__).parent / "scripts"
ENVIRONMENTS = ROOT / ".venv" / "clients"
LATE_S = 900.0
"""No script takes so long."""
DOORS = ("--legacy", "--legacy-port", 0, "--grpc-port", 0)
"""CosyVoice's own services."""


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
        return self._stack.enter_context(serving_process(home, *flags, **settings))

    @cached_property
    def plain(self) -> Mapping[str, str]:
        """Every door, without TLS and keys: the variables that scripts know it by."""
        server = self._start("plain", "--model", "mini", *DOORS, "--wyoming-port", 0)
        own = {"COSYVOICE_URL": server.legacy_url, "COSYVOICE_GRPC": server.grpc_address}
        return {"URL": server.url, "WYOMING": server.address(r"Wyoming is at (\S+)"), **own}

    @cached_property
    def secure(self) -> Mapping[str, str]:
        """With TLS, by a certificate that every client's environment trusts, and keys, which lists do not want."""
        tls, key, keys = certified(self._folder), new_key(), self._folder / "keys.toml"
        add_key(keys, new_entry(key, "client"))
        certificate = str(tls["tls_certificate"])
        flags = ("--tls-cert", certificate, "--tls-key", tls["tls_key"], "--keys", keys)
        server = self._start("secure", "--model", "mini", *flags, VIVAVOCE_AUTH_OPEN_LISTS=True)
        trusting = dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"), certificate)
        return {"SECURE_URL": server.url, "KEY": key, **trusting}

    @cached_property
    def triton(self) -> Mapping[str, str]:
        """Real Triton servers that answer whole and in a stream, our own in front of the latter, and a recording."""
        whole, stream = (
            self._stack.enter_context(served(MINI, triton(), self._folder / mode.value, mode))
            for mode in (LoadMode.OFFLINE, LoadMode.STREAMING)
        )
        voices = self._folder / "recordings"
        voices.mkdir()
        asked = {"input": TEXT, "voice": VOICE, "response_format": "wav", "sample_rate": 16_000}
        with urlopen(f"{self.plain['URL']}/v1/audio/speech?{urlencode(asked)}", timeout=60) as answer:
            (voices / f"{VOICE}.wav").write_bytes(answer.read())
        (voices / f"{VOICE}.txt").write_text(TEXT, encoding="utf-8")
        front = self._start("front", "--upstream", f"triton://{stream.grpc_url}", "--reference-dir", voices, *DOORS)
        own = {"FRONT_COSYVOICE_URL": front.legacy_url, "FRONT_COSYVOICE_GRPC": front.grpc_address}
        servers = {"TRITON_HTTP": whole.http_url, "TRITON_GRPC": whole.grpc_url, "TRITON_STREAM": stream.grpc_url}
        for models, model in ((ModelSet.DIT, MINI), (ModelSet.COSYVOICE3, self._babble_v3)):
            layout = served(model, triton(), self._folder / models.value, models=models)
            servers[f"TRITON_{models.name}"] = self._stack.enter_context(layout).grpc_url
        return {**servers, **own, "RECORDING": str(voices / f"{VOICE}.wav")}

    @cached_property
    def _babble_v3(self) -> Path:
        """A random model: CosyVoice3 has no small one that can be understood."""
        return small_checkpoint(self._folder / "babble-v3", Generation.V3)


def triton() -> ServerInstallation:
    """A Triton server that can be started."""
    return find_installation(Path(os.environ.get("VIVAVOCE_TRITON_ENV") or ROOT / ".venv" / "triton"))


def lacking(client: RealClient) -> str:
    """Why it cannot be run on this machine; "": it can."""
    if client.program and shutil.which(client.program) is None:
        return f"{client.program} is not installed"
    if _wants_newer_python(client):
        # A version manager's stand-in for a Python that is not chosen ends at once.
        place = shutil.which(client.python)
        if place is None or subprocess.run([place, "--version"], capture_output=True, check=False).returncode:
            return f"{client.python} is not installed"
    try:
        if client.source:
            source_of(client)
        if client.triton:
            triton()
    except (DownloadError, MissingDependency) as error:
        return str(error)
    except subprocess.CalledProcessError as error:
        said = (str(error.stderr).strip().splitlines() or [str(error)])[-1]
        return f"{client.source} cannot be fetched ({said}); {_given(client)} can name a folder that holds it"
    return ""


def _wants_newer_python(client: RealClient) -> bool:
    return tuple(map(int, client.python.removeprefix("python").split("."))) > sys.version_info


def source_of(client: RealClient) -> Path:
    """The repository whose files it is: a folder that a variable names, or what git fetches.

    Git compares every file with the commit's hash, and puts right what was changed since.
    """
    if given := os.environ.get(_given(client)):
        return Path(given).absolute()
    repository, _, commit = client.source.partition("@")
    folder = ENVIRONMENTS / repository.replace("/", "-")

    def git(*words: str) -> None:
        own = ["git", f"--git-dir={folder / '.git'}", f"--work-tree={folder}"]
        environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
        subprocess.run([*own, *words], check=True, capture_output=True, text=True, env=environment)

    folder.mkdir(parents=True, exist_ok=True)
    try:
        git("checkout", "-qf", commit)
    except subprocess.CalledProcessError:
        git("init", "-q")
        git("fetch", "-q", "--depth=1", f"https://github.com/{repository}", commit)
        git("checkout", "-qf", commit)
    return folder


def _given(client: RealClient) -> str:
    """The variable that may name the folder of its source, as COSYVOICE_SOURCE."""
    return client.source.partition("@")[0].rpartition("/")[2].upper() + "_SOURCE"


def run_client(client: RealClient, servers: Servers, folder: Path) -> Iterator[Row]:
    """Run its script; folder: takes its audio."""
    version = _version_of(client)
    folder.mkdir()
    variables = {
        **servers.plain,
        **(servers.secure if client.secure else {}),
        **(servers.triton if client.triton else {}),
    }
    if client.source:
        variables["SOURCE"] = str(source_of(client))
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
            python_program = client.python if _wants_newer_python(client) else sys.executable
            _quietly(python_program, "-m", "venv", "--without-pip", environment)
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


def _version_of(client: RealClient) -> str:
    if client.source:
        return "a folder" if os.environ.get(_given(client)) else client.source.partition("@")[2][:7]
    pins = client.pip or client.npm
    return pins[0].rpartition("==")[2].rpartition("@")[2] if pins else _program_version(client.program)


def _program_version(program: str) -> str:
    flag = "-version" if program.startswith("ff") else "--version"
    lines = subprocess.run([program, flag], capture_output=True, text=True, check=True).stdout.splitlines()
    return next(word for word in lines[0].split() if word[0].isdigit()).partition("-")[0]
