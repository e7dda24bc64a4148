"""Clients that do what no client should, byte by byte, and a listener beside them who must not notice."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import parse_headers
from pathlib import Path
from typing import Any
from unittest import TestCase

import numpy as np
import pytest

from tests.server.fake_backend import FakeBackend, FakeStream, Gate, tone
from tests.server.http.serving import Served, make_state
from vivavoce.frontend.audio.samples import to_int16
from vivavoce.frontend.speech import SpeechRequest
from vivavoce.server.http.app_state import AppState
from vivavoce.server.settings import ServerSection, ServerSettings

SENTENCES = ("I go on talking. ", "Whatever they do. ", "To the very end.")
NEIGHBOUR = 7
"""The seed of the listener beside."""
FORM, END = "multipart/form-data; boundary=x", b"--x--\r\n"
_PATIENCE_S = 60.0


class PatientSpeaker(FakeBackend):
    """Holds the neighbour's stream after its first piece; others it speaks at once, or holds until `gate`."""

    async def speak(self, order: SpeechRequest) -> FakeStream:
        stream = await super().speak(order)
        if order.seed == NEIGHBOUR:
            stream.gate = Gate(pieces=1)
        return stream


def state_of(make: Callable[[], FakeBackend] = PatientSpeaker, **server: Any) -> Callable[[], AppState]:
    """What makes a state with these settings of the server."""
    return lambda: make_state(make(), ServerSettings(server=ServerSection(**server)))


@dataclass(frozen=True)
class Answer:
    """One answer; whole: its body ended as it should."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    whole: bool

    @property
    def error(self) -> dict[str, Any]:
        return dict(json.loads(self.body)["error"])


class Client:
    """A bare socket that speaks as much of HTTP as its test wants."""

    def __init__(self, server: Served, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(_PATIENCE_S)
        self.socket.connect(("127.0.0.1", server.port))
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.socket.close()

    def send(self, pieces: bytes | Iterable[bytes]) -> bool:
        """Whether the server took all of it."""
        try:
            for piece in (pieces,) if isinstance(pieces, bytes) else pieces:
                self.socket.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def ask(self, path: str, body: bytes = b"", method: str = "POST", **headers: str) -> None:
        """A proper request, or its beginning where `content_length` promises more."""
        self.send(request(path, body, method, **headers))

    def exchange(self, path: str, body: bytes = b"", method: str = "POST", **headers: str) -> Answer:
        """The answer to a proper request."""
        self.ask(path, body, method, **headers)
        return self.answer()

    def stop_writing(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Leave without a word more: the server gets RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.__exit__()

    def ended(self) -> bool:
        """Wait for the connection's end: whether it came without another byte."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True

    def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next answer."""
        status = int(self._file.readline().split()[1])
        headers = {name.lower(): value for name, value in parse_headers(self._file).items()}
        return (status, headers) if status >= 200 else self.head()

    def chunk(self) -> bytes:
        """The next of a chunked body; b"": that was the last. Raises what the end of a cut body is."""
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError
        data = self._file.read(int(line, 16) + 2)
        if not data.endswith(b"\r\n"):
            raise ConnectionResetError
        return data[:-2]

    def rest(self) -> tuple[bytes, bool]:
        """What is left of a chunked body, and whether it is whole."""
        pieces: list[bytes] = []
        ended_well = self._each_chunk(pieces.append)
        return b"".join(pieces), ended_well

    def size_of_rest(self) -> tuple[int, bool]:
        """Count the bytes that are left of a chunked body, keep none of them, and tell whether the body is whole."""
        sizes: list[int] = []
        ended_well = self._each_chunk(lambda piece: sizes.append(len(piece)))
        return sum(sizes), ended_well

    def _each_chunk(self, take: Callable[[bytes], None]) -> bool:
        try:
            while piece := self.chunk():
                take(piece)
        except ConnectionResetError:
            return False
        return True

    def answer(self) -> Answer:
        """The next answer, with its body."""
        status, headers = self.head()
        if "chunked" in headers.get("transfer-encoding", ""):
            return Answer(status, headers, *self.rest())
        length = int(headers["content-length"])
        body = self._file.read(length)
        return Answer(status, headers, body, len(body) == length)


def request(path: str, body: bytes = b"", method: str = "POST", **headers: str) -> bytes:
    """A request's bytes; headers: underscores stand for hyphens, and "" leaves a header out."""
    kinds = {"host": "localhost", "content-type": "application/json", "content-length": str(len(body))}
    given = {**kinds, **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [f"{name}: {value}\r\n" for name, value in given.items() if value]
    return f"{method} {path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode() + body


def asked(server: Served, path: str, body: bytes = b"", method: str = "POST", **headers: str) -> Answer:
    """The answer to one proper request."""
    with Client(server) as client:
        client.ask(path, body, method, **headers)
        return client.answer()


def part(name: str, content: bytes, *, file: bool = False) -> bytes:
    """A field of a form, which ends with `END`."""
    filename = b'; filename="a.wav"' if file else b""
    head = b'--x\r\ncontent-disposition: form-data; name="%s"%s\r\n\r\n' % (name.encode(), filename)
    return head + content + b"\r\n"


def speech(text: str = "Hello there.", **fields: Any) -> bytes:
    """The body of a request for speech."""
    return json.dumps({"input": text, "response_format": "pcm", **fields}).encode()


@contextmanager
def undisturbed(server: Served) -> Iterator[None]:
    """While a fault happens a neighbour's stream runs.

    It must be whole, nothing may be left of any of them, and a client's fault may be logged as no defect of the server.
    """
    speaker = server.state.dispatcher.backend
    assert isinstance(speaker, PatientSpeaker)
    before = len(speaker.streams)
    with TestCase().assertNoLogs(level=logging.ERROR), Client(server) as neighbour:
        neighbour.ask("/v1/audio/speech", speech("".join(SENTENCES), seed=NEIGHBOUR))
        assert neighbour.head()[0] == 200
        first = neighbour.chunk()
        yield
        gate = speaker.streams[before].gate
        assert gate is not None
        server.call(gate.set)
        rest, whole = neighbour.rest()
    assert whole
    spoken = np.concatenate([tone(len(sentence), NEIGHBOUR) for sentence in SENTENCES])
    assert first + rest == to_int16(spoken).astype("<i2").tobytes()
    empty(server)


def empty(server: Served, connections: int = 0) -> None:
    """Wait until nothing is left of any request, and so many connections are open."""
    dispatcher, listener = server.state.dispatcher, server.listener
    server.call(lambda: until(lambda: dispatcher.active == 0 and len(listener.connections) == connections))


def unread(server: Served) -> int:
    """Connections that wait for their readers; to be called in the server's event loop."""
    return sum(connection.is_unread for connection in server.listener.connections)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop's other tasks go on until they have brought it about."""
    while not condition():
        await asyncio.sleep(0)


@contextmanager
def memory_bounded(most: int) -> Iterator[None]:
    """Meanwhile this process, with its server, takes no more than so many bytes beyond what it had."""
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    except OSError:
        pytest.skip("only Linux tells a process' peak of memory")
    before = _status("VmRSS")
    yield
    grown = _status("VmHWM") - before
    assert grown < most, f"{grown / 2**20:.0f} MiB more at the peak"


def _status(field: str) -> int:
    """Bytes, of a line like `VmRSS:   1234 kB`."""
    found = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(found.split()[1]) * 1024
