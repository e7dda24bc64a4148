"""A redis server of a test's own, which may be killed and started again on what it left on disk; and a false one."""

from __future__ import annotations

import signal
import socket
import socketserver
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
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


@contextmanager
def false_redis(answer: Callable[[], Iterable[bytes]]) -> Iterator[str]:
    """The URL of a server that sends these pieces as its answer to every command but `CLIENT`."""

    class Connection(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):  # the client has gone
                while header := self.rfile.readline():
                    words = [self.rfile.read(int(self.rfile.readline()[1:]) + 2) for _ in range(int(header[1:]))]
                    for piece in [b"+OK\r\n"] if words[0].startswith(b"CLIENT") else answer():
                        self.wfile.write(piece)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        yield f"redis://127.0.0.1:{server.server_address[1]}?protocol=2"
        server.shutdown()
