"""A redis server of a test's own, which may be killed and started again on what it left on disk."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

BINARY = Path("/usr/bin/redis-server")


class RedisProcess:
    """Keeps every change in an append-only file, as the documentation asks operators to."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self._options = folder, options
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        ports = [] if "--tls-port" in self._options else ["--port", str(self.port)]
        self._process = subprocess.Popen(
            [BINARY, *ports, "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--dir", self.folder]
            + [option.replace("PORT", str(self.port)) for option in self._options],
            stdout=subprocess.PIPE,
            text=True,
        )
        for line in self._process.stdout:
            if "Ready to accept connections" in line:
                return
        raise AssertionError(f"redis-server ended with {self._process.wait()}")

    def kill(self) -> None:
        """SIGKILL: nothing can be tidied up."""
        self._process.kill()
        self._end()

    def freeze(self) -> None:
        """It takes connections, and answers nothing."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()

    def _end(self) -> None:
        self._process.wait()
        self._process.stdout.close()
