"""`vivavoce serve` as its users start it: a process of its own, whose log says what it does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LATE_S = 120.0
"""Nothing here takes so long; it ends a test that would hang."""


@dataclass
class Log:
    """Lines of stderr, each a JSON object, as they come."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Lines that are no JSON."""
    ended: bool = False
    news: threading.Condition = field(default_factory=threading.Condition)

    def follow(self, stream: Any) -> None:
        for line in stream:
            with self.news:
                try:
                    self.lines.append(json.loads(line))
                except ValueError:
                    self.broken.append(line)
                self.news.notify_all()
        with self.news:
            self.ended = True
            self.news.notify_all()

    def await_event(self, wanted: str, after: int = 0) -> dict[str, Any]:
        """The first line from number `after` on whose event and message match the expression, once there is one."""

        def found() -> list[dict[str, Any]]:
            return [line for line in self.lines[after:] if re.search(wanted, told_in(line))]

        with self.news:
            self.news.wait_for(lambda: found() or self.ended, LATE_S)
            assert found(), f"no line {wanted!r} in {self.lines} {self.broken}"
            return found()[0]


@dataclass
class ServerProcess:
    """A server that answers, with its log."""

    process: subprocess.Popen[str]
    log: Log

    @property
    def url(self) -> str:
        return self.address(r"speaks at (http\S+)")

    @property
    def legacy_url(self) -> str:
        return self.address(r"own routes are at (http\S+)")

    @property
    def grpc_address(self) -> str:
        return self.address(r"gRPC service is at (\S+)")

    @property
    def engine_process(self) -> int:
        """Of the engine that was ready last."""
        return int([line for line in self.log.lines if line["event"] == "engine ready"][-1]["process"])

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def await_end(self) -> int:
        """The exit code, once the server and all processes that it started have left: they share its stderr."""
        with self.log.news:
            assert self.log.news.wait_for(lambda: self.log.ended, LATE_S)
        return self.process.wait(LATE_S)

    def address(self, wanted: str) -> str:
        """What the group of a regular expression finds in the first line that matches it."""
        return re.findall(wanted, told_in(self.log.await_event(wanted)))[0]


def told_in(line: dict[str, Any]) -> str:
    return f"{line['event']}: {line.get('message', '')}"


def command(*flags: object) -> list[str]:
    return [sys.executable, "-m", "vivavoce", "serve", *map(str, flags)]


def environment(home: Path, **settings: object) -> dict[str, str]:
    """Without what the tester's own machine is set to, and without processes that read texts, which take seconds to
    start; settings by the names of their variables.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("VIVAVOCE_")}
    given = {name: str(value) for name, value in settings.items()}
    quick = {"OMP_NUM_THREADS": "1", "VIVAVOCE_MODEL_TEXT_PROCESSES": "0"}
    return {**own, **quick, "VIVAVOCE_HOME": str(home), **given}


@contextmanager
def serving_process(home: Path, *flags: object, **settings: object) -> Iterator[ServerProcess]:
    """`starting_process`, once it is ready."""
    with starting_process(home, *flags, **settings) as server:
        assert server.url
        yield server


@contextmanager
def starting_process(home: Path, *flags: object, **settings: object) -> Iterator[ServerProcess]:
    """A server on ports of its own choice; ended with all it started when the block is left."""
    given = ("--port", 0, "--device", "cpu", "--voices", home / "voices", "--log-format", "json", *flags)
    log = Log()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, by children too
    with subprocess.Popen(
        command(*given), env=environment(home, **settings), stderr=subprocess.PIPE, text=True
    ) as process:
        following = threading.Thread(target=log.follow, args=(process.stderr,), daemon=True)
        following.start()
        try:
            yield ServerProcess(process, log)
        finally:
            process.kill()
            following.join(LATE_S)  # the engine holds the pipe until it has left, too
