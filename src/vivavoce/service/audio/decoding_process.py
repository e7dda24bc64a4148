"""Strangers' recordings are decoded in a process of its own, which holds nothing worth taking and can open nothing.

Decoders are large and written in C: a recording that breaks one breaks a process without the model and the voices.
`main` answers a line of JSON (how messages call the audio, the longest accepted in seconds, bytes) and so many bytes
with a line of JSON (rate, bytes, or an error) and so many bytes of float32 samples. It ends when its input does.
Nothing that it sends is trusted.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock, Timer
from typing import BinaryIO

import numpy as np

from vivavoce.child import end_with_parent, python_command, shut_in
from vivavoce.errors import InvalidAudio
from vivavoce.service.audio.decode import MAX_DECODE_S, MAX_SAMPLE_RATE, decode_audio, read_source
from vivavoce.service.audio.samples import Audio

DECODE_S = 10.0
"""The most that a recording may take; 30 s of the slowest format take a tenth of a second."""
MEMORY_BYTES = 1 << 30
"""Of addresses: Python and the libraries take 0.2 GB, the largest file with its samples 0.1 GB more."""
_MAX_LINE = 4096
_ANSWERS = 3
"""The file descriptor of answers; besides, the process has the three of every program alone."""
_AMR = b"#!AMR\n" + (b"\x04" + bytes(12)) * 8
"""A sixth of a second that FFmpeg alone decodes."""


class DecodingProcess:
    """Decodes as `decode_audio` does; from any number of threads, one recording after the other.

    Its process, which `command` runs, is replaced when it ends or takes too long.
    """

    def __init__(self, command: tuple[str, ...] = python_command(__name__)) -> None:
        self._command, self._lock = command, Lock()
        self._process = self._start()

    def decode(
        self, source: str | Path | bytes | BinaryIO, *, field: str = "reference audio", max_seconds: float | None = None
    ) -> Audio:
        """See `decode_audio`; InvalidAudio also for what takes too long, too much memory, or breaks the decoder."""
        data, label = read_source(source, field)
        with self._lock:
            began, timer = time.monotonic(), Timer(DECODE_S, self._process.kill)
            timer.start()
            try:
                return _exchange(self._process, data, field, MAX_DECODE_S if max_seconds is None else max_seconds)
            except (OSError, ValueError, TypeError):  # it has ended, or says what cannot be understood
                problem = "takes too long to decode" if time.monotonic() - began >= DECODE_S else "breaks its decoder"
                self.close()
                self._process = self._start()
            finally:
                timer.cancel()
        raise InvalidAudio(f"{label} {problem}; convert it to WAV and upload that")

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # a recording that was not sent yet
                pipe.close()
        self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        # Further threads and pools of memory take addresses, more of them the more processors there are.
        few = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
        return subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **few})


def _exchange(process: subprocess.Popen[bytes], data: bytes, field: str, limit_s: float) -> Audio:
    """The recording's samples, or InvalidAudio; raises what pipes, JSON and numpy do if the process is broken."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([field, limit_s, len(data)]).encode() + b"\n")
    process.stdin.write(data)
    process.stdin.flush()
    rate, length, error = json.loads(process.stdout.readline(_MAX_LINE))
    if error:
        raise InvalidAudio(" ".join(str(error).split()))
    if not 0 < length <= limit_s * MAX_SAMPLE_RATE * np.float32().itemsize:
        raise ValueError(length)
    samples = process.stdout.read(length)
    if len(samples) < length:
        raise ValueError(length)
    return Audio(np.frombuffer(bytearray(samples), np.float32), int(rate))  # which may be written to


def main() -> None:
    """Answer each recording with its samples, or with what is wrong with it."""
    # The parent process is interrupted, too, and closes the input when it ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    decode_audio(_AMR)  # what is imported or opened at first use is now
    os.dup2(sys.stdout.fileno(), _ANSWERS)
    shut_in(_ANSWERS, MEMORY_BYTES)
    with open(_ANSWERS, "wb") as answers:
        for head in sys.stdin.buffer:
            field, limit_s, length = json.loads(head)
            samples, answer = b"", (0, 0, "")
            try:
                audio = decode_audio(sys.stdin.buffer.read(length), field=field, max_seconds=limit_s)
                samples = audio.samples.tobytes()
                answer = (audio.sample_rate, len(samples), "")
            except InvalidAudio as error:
                answer = (0, 0, str(error))
            except MemoryError:
                answer = (0, 0, f"{field}: takes more than {MEMORY_BYTES >> 20} MiB to decode; convert it to WAV")
            answers.write(json.dumps(answer).encode() + b"\n" + samples)
            answers.flush()
