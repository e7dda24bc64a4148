"""Runs commands as processes of their own, and holds what commands leave behind."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

import vivavoce

SOURCES = Path(vivavoce.__file__).parents[1]
AUDIO = Path(__file__).parents[1] / "data" / "audio"
MADE = "2026-01-31T12:00:00Z"
"""The time in all tags."""


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        """stdout as text."""
        return self.out.decode()

    @property
    def error(self) -> str:
        """The one line on stderr that a refused command prints."""
        assert self.code == 2, self
        assert self.err.startswith("error: "), self
        assert self.err.count("\n") == 1, self
        return self.err


class Stream(io.TextIOWrapper):
    """A standard stream in memory, which may pose as a terminal."""

    def __init__(self, content: bytes = b"", *, terminal: bool = False) -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8", write_through=True)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def written(self) -> bytes:
        """All bytes that were written."""
        return self.buffer.getvalue()  # type: ignore[attr-defined,no-any-return]


Run = Callable[..., Result]
"""Runs a command in this process; see the fixture `run`."""


def start(*arguments: object, program: tuple[str, ...] = ("-m", "vivavoce")) -> subprocess.Popen[bytes]:
    """Start the program as a process of its own, all streams piped."""
    return subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCES), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""},
    )


def spawn(*arguments: object, stdin: bytes = b"", program: tuple[str, ...] = ("-m", "vivavoce")) -> Result:
    """Run the program as a process of its own."""
    with start(*arguments, program=program) as process:
        out, err = process.communicate(stdin, timeout=120)
    assert b"Traceback" not in err
    return Result(process.returncode, out, err.decode())


def read_wav(source: Path | bytes) -> np.ndarray:
    """The samples of a mono 16-bit WAV file at 24 kHz, [n] int16."""
    samples, rate = soundfile.read(io.BytesIO(source) if isinstance(source, bytes) else source, dtype="int16")
    assert rate == 24_000
    assert samples.ndim == 1
    assert samples.any()
    return np.asarray(samples)
