"""Decodes clients' recordings in a separate, sandboxed process, which contains no secrets and can open no files.

Decoders are large C libraries. A malicious recording can only attack a process that has neither the model nor voices.
The process's standard input is a socket, which carries requests and answers. A request is a line of JSON (the audio's
name in messages, maximum seconds, number of bytes), then the file's bytes. The answer is a line of JSON (sample rate,
number of bytes, error), then float32 samples. The parent checks each answer: an attacker may control the process.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import BinaryIO

import numpy as np

from vivavoce.child import end_with_parent, ignore_signals, python_command, shut_in
from vivavoce.errors import InvalidAudio, MissingDependency
from vivavoce.frontend.audio.decode import MAX_DECODE_S, decode_audio, read_source
from vivavoce.frontend.audio.samples import MAX_SAMPLE_RATE, Audio
from vivavoce.time_limit import time_limit

DECODE_S = 10.0
"""Maximum time to decode a recording, in seconds; 30 s of audio in the slowest format take 0.1 s."""
MEMORY_BYTES = 1 << 30
"""Limit of the process's address space. Python and libraries take 0.2 GB, the largest file with its samples 0.1 GB."""
_MAX_LINE = 4096
_AMR = b"#!AMR\n" + (b"\x04" + bytes(12)) * 8
"""An AMR file of 0.16 s, to test FFmpeg: libsndfile cannot decode AMR."""


class DecodingProcess:
    """Runs `decode_audio` in the process that `command` starts. Thread-safe; decodes one recording at a time.

    If the process ends, takes too long, or sends an invalid answer, a new process replaces it.
    """

    def __init__(self, command: tuple[str, ...] = python_command(__name__)) -> None:
        self._command, self._lock = command, Lock()
        self._start()

    def check(self) -> None:
        """Decode a test file; raises MissingDependency if decoding does not work on this machine."""
        try:
            self.decode(_AMR)
        except InvalidAudio:
            raise MissingDependency(
                "recordings: the process that decodes them does not start; its message on stderr says why (no av?)"
            ) from None

    def decode(
        self, source: str | Path | bytes | BinaryIO, *, field: str = "reference audio", max_seconds: float | None = None
    ) -> Audio:
        """See `decode_audio`. Raises InvalidAudio also if decoding crashes, or takes too long or too much memory."""
        data, label = read_source(source, field)
        with self._lock:
            if self._process.poll() is not None:  # the process ended before this recording
                self.close()
                self._start()
            began, limit_s = time.monotonic(), MAX_DECODE_S if max_seconds is None else max_seconds
            try:
                with time_limit(DECODE_S, partial(_end, self._process, self._socket)):
                    return _exchange(self._socket, data, field, limit_s)
            except InvalidAudio:
                raise
            except Exception:  # the process ended, or its next answer might belong to another recording
                problem = "takes too long to decode" if time.monotonic() - began >= DECODE_S else "breaks its decoder"
                self.close()
                self._start()
        raise InvalidAudio(f"{label} {problem}; convert it to WAV and upload that")

    def close(self) -> None:
        _end(self._process, self._socket)
        self._process.wait()
        self._socket.close()

    def _start(self) -> None:
        # By default, libraries reserve address space for each processor (threads, memory pools), beyond the limit.
        few = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(self._command, stdin=theirs.fileno(), env={**os.environ, **few})


def _end(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    process.kill()
    with suppress(OSError):  # the socket is already closed
        connection.shutdown(socket.SHUT_RDWR)  # a child of the process might keep the other end open


def _exchange(connection: socket.socket, data: bytes, field: str, limit_s: float) -> Audio:
    """Send a recording and return its samples. After any error except InvalidAudio, the process must be replaced."""
    connection.sendall(json.dumps([field, limit_s, len(data)]).encode() + b"\n" + data)
    with connection.makefile("rb") as answers:
        rate, length, error = json.loads(answers.readline(_MAX_LINE))
        if error and error.isprintable():
            raise InvalidAudio(error)
        if error or not (0 < rate <= MAX_SAMPLE_RATE and 0 < length <= limit_s * rate * np.float32().itemsize):
            raise ValueError(error)
        samples = answers.read(length)
    return Audio(np.frombuffer(bytearray(samples), np.float32, length // 4), int(rate))  # bytearray: writable


def main() -> None:
    ignore_signals()  # the parent closes the socket when it ends
    end_with_parent()
    decode_audio(_AMR)  # load all lazy imports and files before the sandbox forbids it
    shut_in(MEMORY_BYTES)
    with open(sys.stdin.fileno(), "wb", closefd=False) as answers:
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
