"""What every stage is given."""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vivavoce.doors.triton.environment import ensure_environment
from vivavoce.doors.triton.pipeline.settings import PipelineSettings
from vivavoce.doors.triton.pipeline.work_folder import WorkFolder
from vivavoce.errors import InvalidRequest, StageFailed

if TYPE_CHECKING:
    from vivavoce.doors.triton.pipeline.serving import Serving

Say = Callable[[str], None]
Run = Callable[[Sequence[str]], None]
"""Runs a command line to its end; raises `VivavoceError` if it fails."""


@dataclass(frozen=True, eq=False)
class Context:
    """settings: what is asked for; work: where things lie; say: tells the user a line; run: runs a command; serving:
    the server that stages share.
    """

    settings: PipelineSettings
    work: WorkFolder
    say: Say
    run: Run
    serving: Serving

    def vivavoce(self, *arguments: object, python: Path | None = None) -> None:
        """Run a command of this program as a process of its own: as it would be typed, and its memory goes with it."""
        words = [str(argument) for argument in arguments]
        self.say("+ " + shlex.join(["vivavoce", *words]))
        self.run([str(python or sys.executable), "-m", "vivavoce", *words])

    def with_grpc(self) -> Path:
        """An interpreter that has Triton's client for gRPC: the running one, or the server's."""
        if importlib.util.find_spec("tritonclient") is not None:
            return Path(sys.executable)
        return ensure_environment(self.settings.environment, self.say).python


def run_command(command: Sequence[str]) -> None:
    """Run a command with our own streams.

    Raises:
        InvalidRequest: it found a mistake that the user can mend, and has said which.
        StageFailed: it failed otherwise.
    """
    code = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
    name = " ".join(command[2:5]) if command[1:2] == ["-m"] else command[0]
    if code == 2:
        raise InvalidRequest(f"{name}: it was refused; see its message above")
    if code:
        raise StageFailed(f"{name}: it ended with {code}; see its message above")
