"""A tritonserver as a process of ours: started, waited for until its models are ready, and stopped without a trace."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vivavoce.errors import InvalidRequest, StageFailed
from vivavoce_triton.environment import ServerInstallation

SHARED_MEMORY = Path("/dev/shm")
HEALTH_CHECK_EVERY_S = 0.1
STOP_WITHIN_S = 30.0
EXIT_TIMEOUT_S = 20
"""The server's own patience with requests in flight; it ends before ours does."""
LOG_LINES = 5
"""Of the log, in an error: those that tell errors, else the last ones."""
ERROR_WITHIN_LINES = 400

_ERROR_LINE = re.compile(r"[EF]\d{4} |error: ")
_FRAMES = re.compile(r"\\n\\nAt:\\n.*")
"""Where in Python an error arose; the log has it."""


@dataclass(frozen=True)
class TritonServerSettings:
    """Where the server listens and how it runs. A port of 0 is replaced by a free one when the server starts.

    ready_within_s: seconds for all models to load; shared_memory_bytes: what each model instance begins with, it grows
    as needed; arguments, variables: further options of tritonserver, and variables of its environment.
    """

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    metrics_port: int = 8002
    ready_within_s: float = 300.0
    shared_memory_bytes: int = 1 << 20
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def reached_at(self) -> str:
        """The address that clients on this machine use."""
        return "127.0.0.1" if self.host in ("0.0.0.0", "") else self.host


class TritonServer:
    """One server; a context manager that starts and stops it. Not safe for several threads.

    log_file: where the server's words go, begun anew; None: to our own streams.
    """

    def __init__(
        self,
        installation: ServerInstallation,
        repository: Path,
        log_file: Path | None,
        settings: TritonServerSettings = TritonServerSettings(),
    ) -> None:
        if not repository.is_dir():
            raise InvalidRequest(f"repository: {repository} is no folder; create the repository first")
        self._installation, self._repository = installation, repository.resolve()
        self.log_file, self._settings = log_file, settings
        self._ports = {"http": settings.http_port, "grpc": settings.grpc_port, "metrics": settings.metrics_port}
        # Names of our own: what a killed server leaves is found, and other servers' is not touched.
        self._shared_memory = f"vivavoce_{uuid.uuid4().hex[:12]}_"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def http_url(self) -> str:
        """host:port of HTTP."""
        return f"{self._settings.reached_at}:{self._ports['http']}"

    @property
    def grpc_url(self) -> str:
        """host:port of gRPC."""
        return f"{self._settings.reached_at}:{self._ports['grpc']}"

    @property
    def metrics_url(self) -> str:
        """Where Prometheus reads."""
        return f"http://{self._settings.reached_at}:{self._ports['metrics']}/metrics"

    @property
    def pid(self) -> int | None:
        """The server's process; None: not running."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the server and return when every model is ready.

        `InvalidRequest`: a port is taken; `StageFailed`: the server ended, or was not ready in time.
        """
        with contextlib.ExitStack() as held:
            # Free ports for zeros, held until all are chosen; a foreign server on one would be taken for ours.
            for name, port in self._ports.items():
                self._ports[name] = held.enter_context(_bound(name, self._settings.host, port))
        with contextlib.ExitStack() as opened:
            log = None
            if self.log_file is not None:
                self.log_file.parent.mkdir(parents=True, exist_ok=True)
                log = opened.enter_context(self.log_file.open("wb"))
            self._process = subprocess.Popen(
                self._command(),
                env={**os.environ, **self._installation.variables(), **self._settings.variables},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd="/",  # models' interpreters look there first: a folder `triton` is no library of that name
                start_new_session=True,  # a group of its own, so that all of it can be ended
            )
        try:
            self._await_ready(self._process)
        except BaseException:
            self.stop()
            raise

    def wait(self) -> int:
        """Wait for the started server to end; its exit code."""
        assert self._process is not None, "start comes first"
        return self._process.wait()

    def stop(self) -> None:
        """End the server: politely, then whatever is left of its processes and shared memory. Again is no error."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_WITHIN_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # models' processes outlive a server that crashed
        process.wait()
        for leftover in SHARED_MEMORY.glob(f"{self._shared_memory}*"):
            leftover.unlink(missing_ok=True)

    def models(self) -> list[dict[str, Any]]:
        """Name, version and state of every model, as the server lists them."""
        listed: list[dict[str, Any]] = json.loads(ask(f"http://{self.http_url}/v2/repository/index", b"{}")[1] or b"[]")
        return listed

    def __enter__(self) -> TritonServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        """The server has no signal that it is ready, so it is asked; in between its end is waited for."""
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
            return "see its words above"
        log = self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-ERROR_WITHIN_LINES:]
        lines = ([line for line in log if _ERROR_LINE.match(line)] or [line for line in log if line.strip()])[
            -LOG_LINES:
        ]
        return f"its log {self.log_file} says: {' | '.join(_FRAMES.sub('', line) for line in lines) or 'nothing'}"

    def _command(self) -> list[str]:
        host, backends = self._settings.host, self._installation.backends
        return [
            str(self._installation.binary),
            f"--model-repository={self._repository}",
            *([f"--backend-directory={backends}"] if backends else []),
            *(f"--{name}-address={host}" for name in self._ports),
            *(f"--{name}-port={port}" for name, port in self._ports.items()),
            f"--backend-config=python,shm-default-byte-size={self._settings.shared_memory_bytes}",
            f"--backend-config=python,shm-region-prefix-name={self._shared_memory}",
            f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
            *self._settings.arguments,
        ]


@contextlib.contextmanager
def _bound(name: str, host: str, port: int) -> Iterator[int]:
    """A port that is ours while the block runs, so that three free ones differ."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise InvalidRequest(
                f"{name} port: {host}:{port} cannot be had ({error.strerror}); choose another, or 0 for a free one"
            ) from None
        yield probe.getsockname()[1]


def ask(url: str, data: bytes | None = None) -> tuple[int, bytes]:
    """Status and body of one call; 0 where nothing answers, or what does not speak HTTP."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.netloc, timeout=5.0)
    with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
        connection.request("GET" if data is None else "POST", place.path, data)
        reply = connection.getresponse()
        return reply.status, reply.read()
    return 0, b""
