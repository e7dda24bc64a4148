"""A redis server of a test's own, which may be killed and started again on what it left on disk."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BINARY = Path("/usr/bin/redis-server")


class RedisProcess:
    """Keeps every change in an append-only file, as the documentation asks operators to."""

    def __init__(self, folder: Path, *options: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        ports = [] if "--tls-port" in options else ["--port", str(self.port)]
        kept = ["--save", "", "--appendonly", "yes", "--dir", str(folder)]
        given = [option.replace("PORT", str(self.port)) for option in options]
        self._command = [str(BINARY), *ports, "--bind", "127.0.0.1", *kept, *given]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert any("Ready to accept connections" in line for line in self._process.stdout)

    def kill(self) -> None:
        """SIGKILL: nothing can be tidied up."""
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()

    def freeze(self) -> None:
        """It takes connections, and answers nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def running_redis(folder: Path, *options: str) -> Iterator[RedisProcess]:
    if not BINARY.exists():
        pytest.skip(f"{BINARY} is not installed")
    folder.mkdir()
    process = RedisProcess(folder, *options)
    yield process
    process.kill()
