"""Strangers' recordings are decoded in a process of its own, which holds nothing worth taking and can open nothing.

Decoders are large and written in C: a recording that breaks one breaks a process without the model and the voices.
`main` reads from the socket that is its input a line of JSON (how messages call the audio, the longest accepted in
seconds, bytes) and so many bytes; it answers there with a line of JSON (rate, bytes, or an error) and so many bytes of
float32 samples. Nothing that it sends is trusted.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Lock, Timer
from typing import BinaryIO

import numpy as np

from vivavoce.child import end_with_parent, ignore_signals, python_command, shut_in
from vivavoce.errors import InvalidAudio, MissingDependency
from vivavoce.frontend.audio.decode import MAX_DECODE_S, MAX_SAMPLE_RATE, decode_audio, read_source
from vivavoce.frontend.audio.samples import Audio

DECODE_S = 10.0
"""Longest time for one recording; 30 s of the slowest format take a tenth of a second."""
MEMORY_BYTES = 1 << 30
"""Address space: Python and the libraries take 0.2 GB, the largest file with its samples 0.1 GB more."""
_MAX_LINE = 4096
_AMR = b"#!AMR\n" + (b"\x04" + bytes(12)) * 8
"""A sixth of a second in a format that only FFmpeg decodes."""


class DecodingProcess:
    """Decodes as `decode_audio` does; from any number of threads, one recording after the other.

    Its process, which `command` runs, is replaced when it ends, takes too long or says what cannot be understood.
    """

    def __init__(self, command: tuple[str, ...] = python_command(__name__)) -> None:
        self._command, self._lock = command, Lock()
        self._start()

    def check(self) -> None:
        """Raise MissingDependency if decoding cannot work on this machine."""
        try:
            self.decode(_AMR)
        except InvalidAudio:
            raise MissingDependency(
                "recordings: the process that decodes them does not start; on stderr it says what it lacks (av?)"
            ) from None

    def decode(
        self, source: str | Path | bytes | BinaryIO, *, field: str = "reference audio", max_seconds: float | None = None
    ) -> Audio:
        """See `decode_audio`; InvalidAudio also for what takes too long, too much memory, or breaks the decoder."""
        data, label = read_source(source, field)
        with self._lock:
            if self._process.poll() is not None:  # it was ended meanwhile, and not by this recording
                self.close()
                self._start()
            began, timer = time.monotonic(), Timer(DECODE_S, _end, (self._process, self._socket))
            timer.start()
            try:
                return _exchange(self._socket, data, field, MAX_DECODE_S if max_seconds is None else max_seconds)
            except InvalidAudio:
                raise
            except Exception:  # it has ended, or the next answer of this process might be of another recording
                problem = "takes too long to decode" if time.monotonic() - began >= DECODE_S else "breaks its decoder"
                self.close()
                self._start()
            finally:
                timer.cancel()
        raise InvalidAudio(f"{label} {problem}; convert it to WAV and upload that")

    def close(self) -> None:
        _end(self._process, self._socket)
        self._process.wait()
        self._socket.close()

    def _start(self) -> None:
        # Further threads and pools of memory take addresses, more of them the more processors there are.
        few = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(self._command, stdin=theirs.fileno(), env={**os.environ, **few})


def _end(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    process.kill()
    with suppress(OSError):  # it is closed already
        connection.shutdown(socket.SHUT_RDWR)  # a process that it has started might keep the other end


def _exchange(connection: socket.socket, data: bytes, field: str, limit_s: float) -> Audio:
    """The recording's samples, or InvalidAudio; raises what sockets, JSON and numpy do if the process is broken."""
    connection.sendall(json.dumps([field, limit_s, len(data)]).encode() + b"\n" + data)
    with connection.makefile("rb") as answers:
        rate, length, error = json.loads(answers.readline(_MAX_LINE))
        if error and error.isprintable():
            raise InvalidAudio(error)
        if error or not (0 < rate <= MAX_SAMPLE_RATE and 0 < length <= limit_s * rate * np.float32().itemsize):
            raise ValueError(error)
        samples = answers.read(length)
    return Audio(np.frombuffer(bytearray(samples), np.float32, length // 4), int(rate))  # which may be written to


def main() -> None:
    ignore_signals()  # the parent closes the socket when it ends
    end_with_parent()
    decode_audio(_AMR)  # what is imported or opened at first use is now
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
