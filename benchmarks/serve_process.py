"""Runs a real `vivavoce serve` in a separate process, on a free port of this machine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO

_SPEAKS = re.compile(r" speaks at (http://\S+) \(ready after ([\d.]+) s\)")
_LAST_LINES = 30


class ServerBroken(RuntimeError):
    """The server did not start; the message ends with the last lines of its log."""


@dataclass(frozen=True)
class ServeProcess:
    """A server that is ready.

    url: http://host:port; process_id: of the server; start_s: seconds from its start until it was ready, by its log.
    """

    url: str
    process_id: int
    start_s: float

    @property
    def engine_id(self) -> int:
        """Process id of the engine, the server's only child; Linux only."""
        (child,) = Path(f"/proc/{self.process_id}/task/{self.process_id}/children").read_text().split()
        return int(child)


@contextmanager
def serve_process(
    flags: Sequence[str],
    log: Path,
    *,
    module: str = "vivavoce",
    variables: Mapping[str, str] | None = None,
    patience_s: float = 300.0,
) -> Iterator[ServeProcess]:
    """Run `python -m MODULE serve FLAGS` at a free port of 127.0.0.1 while the block runs.

    flags: besides host and port; log: file for its stderr; variables: added to this process's environment.

    Raises:
        ServerBroken: it ended before it was ready, or took longer than `patience_s`.
    """
    command = [sys.executable, "-m", module, "serve", "--host", "127.0.0.1", "--port", "0", *flags]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(variables or {})},
    )
    told: SimpleQueue[tuple[str, float] | None] = SimpleQueue()
    assert process.stderr is not None
    reader = threading.Thread(target=_read, args=(process.stderr, log, told), daemon=True)
    reader.start()
    try:
        url, start_s = _ready(told, log, patience_s)
        yield ServeProcess(url, process.pid, start_s)
    finally:
        _stop(process)
        reader.join(timeout=10)
        process.stderr.close()


def _read(lines: IO[str], log: Path, told: SimpleQueue[tuple[str, float] | None]) -> None:
    """Write the server's output to `log`; put (URL, seconds to start) into `told`, and None at the end."""
    with log.open("w", encoding="utf-8") as kept:
        for line in lines:
            kept.write(line)
            kept.flush()
            if (found := _SPEAKS.search(line)) is not None:
                told.put((found[1], float(found[2])))
    told.put(None)


def _ready(told: SimpleQueue[tuple[str, float] | None], log: Path, patience_s: float) -> tuple[str, float]:
    try:
        found = told.get(timeout=patience_s)
    except Empty:
        raise ServerBroken(f"server: not ready after {patience_s:g} s; its log ends:\n{last_words(log)}") from None
    if found is None:
        raise ServerBroken(f"server: ended before it was ready; its log ends:\n{last_words(log)}")
    return found


def last_words(log: Path) -> str:
    """The last lines of a server's log."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:])


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
