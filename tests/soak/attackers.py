"""Those who want others to hear nothing; each goes on until it is told to end, in a process of its own."""

from __future__ import annotations

import asyncio
import fcntl
import io
import itertools
import multiprocessing
import os
import random
import resource
import wave
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from tests.soak.bare_http import FORM, answer, asked, form, request, speech, status

SENDER = "127.0.0.66"
"""Where attackers come from; others come from 127.0.0.1."""
PAUSE_S = LEAVES_S = 0.5
"""After which one who was turned away comes again, and one who leaves does."""
IDLE, HALF_HEADS, DRIPS = 1010, 1150, 1030
LARGE = 33_553_000
TEXTS = ("1.", "1,", "9", "3€ ", "Of course I will. ", '"', "(", "«")
"""What 20,000 characters are made of; the last ones cannot be spoken."""
UNSPEAKABLE = 3
MOST_CHARS = 20_000


@dataclass(frozen=True)
class Place:
    """What they attack; keys: by name, "alice" has 2 requests a minute and 1 at once, "mallory" has no limits."""

    port: int
    grpc_port: int
    voices: Path
    keys: dict[str, str]
    callers: int = 8


Came = Counter[str]
"""What became of what they did."""


async def texts(place: Place, came: Came) -> None:
    """Long texts that are hard to read: of every four callers two stay until they are answered, two leave."""

    async def ask(caller: int, turn: int) -> None:
        stays = caller % 4 < 2
        # Whom the server speaks to has a place by right: those who stay ask for what it has to refuse.
        kinds = TEXTS[-UNSPEAKABLE:] if stays else TEXTS
        content = speech((kinds[turn % len(kinds)] * MOST_CHARS)[:MOST_CHARS], place.keys["mallory"])
        with suppress(TimeoutError, asyncio.TimeoutError):
            came[
                f"{(await asyncio.wait_for(answer(place.port, content, SENDER), None if stays else LEAVES_S))[0]}"
            ] += 1

    await again(place.callers, ask, 0.1)


async def store(place: Place, came: Came) -> None:
    """Another process holds the voices' locks while callers add some."""
    await add(place, came, "mallory", 1.0, "first")
    with locks(place.voices):
        await again(place.callers, lambda n, turn: add(place, came, "mallory", 1.0, f"locked{n}-{turn}"), 0.1)


async def voices(place: Place, came: Came) -> None:
    """One who may add two voices a minute, one at a time, adds 30 long ones at once, again and again."""
    await again(30, lambda n, turn: add(place, came, "alice", 30.0, f"voice{n}-{turn}"))


async def idle(place: Place, came: Came) -> None:
    """Connections that say nothing."""
    await stay(place, came, IDLE, b"")


async def heads(place: Place, came: Came) -> None:
    """Connections that begin a request."""
    await stay(place, came, HALF_HEADS, request("/v1/audio/speech", b"{}")[:40])


async def drips(place: Place, came: Came) -> None:
    """Bodies that come byte by byte."""
    await stay(place, came, DRIPS, request("/v1/audio/speech", key=place.keys["mallory"], length=1_000_000), 5.0)


async def uploads(place: Place, came: Came) -> None:
    """16 bodies of one caller, which together have nearly all the room there is, and do not end."""
    head = request("/v1/audio/voices", kind=FORM, key=place.keys["alice"], length=LARGE)
    await stay(place, came, 16, head + form({"name": "large"}, "file", b"")[:-8].ljust(LARGE - 1, b"\0"))


async def grpc(place: Place, came: Came) -> None:
    """Two connections, one without a key, of 40 calls each whose messages of 31 MB never end."""
    keys = ("", place.keys["alice"])
    await again(2, lambda number, _: Stuffing(keys[number], came).run(place.grpc_port))


ATTACKS: dict[str, Callable[[Place, Came], Awaitable[None]]] = {
    attack.__name__: attack for attack in (texts, store, idle, heads, grpc, voices, drips, uploads)
}


async def again(callers: int, work: Callable[[int, int], Awaitable[None]], pause_s: float = PAUSE_S) -> None:
    """So many at once, each of whom does it again when it is done, or when the server has closed the connection."""

    async def caller(number: int) -> None:
        for turn in itertools.count():
            with suppress(OSError, asyncio.IncompleteReadError):
                await work(number, turn)
            await asyncio.sleep(pause_s)

    await asyncio.gather(*map(caller, range(callers)))


async def add(place: Place, came: Came, who: str, seconds: float, name: str) -> None:
    """Add a voice."""
    body = form({"name": f"{name}-{os.getpid()}", "transcript": "Of course I will."}, "file", recording(seconds))
    content = request("/v1/audio/voices", body, kind=FORM, key=place.keys[who])
    came[f"{(await answer(place.port, content, SENDER))[0]}"] += 1


async def stay(place: Place, came: Came, count: int, content: bytes, drip_s: float = 3600.0) -> None:
    """So many connections on which this is said and then a byte now and then; whose is closed opens another."""

    async def work(_: int, __: int) -> None:
        async with asked(place.port, content, SENDER) as (reader, writer):
            came["opened"] += 1
            found = asyncio.ensure_future(status(reader))
            while not (await asyncio.wait([found], timeout=drip_s))[0]:
                writer.write(b"x")
            came[f"closed with {await found}"] += 1

    await again(count, work)


@contextmanager
def locks(folder: Path) -> Iterator[None]:
    """Hold the locks of all folders of voices."""
    files = [os.open(path, os.O_RDWR | os.O_CREAT, 0o600) for path in {folder / ".lock", *folder.rglob(".lock")}]
    try:
        for file in files:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        for file in files:
            os.close(file)


def recording(seconds: float, rate: int = 16_000, width: int = 2) -> bytes:
    """A wav file of noise; width: bytes of a sample."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(width)
        sound.setframerate(rate)
        sound.writeframes(random.Random(0).randbytes(width * int(seconds * rate)))
    return file.getvalue()


class Stuffing:
    """One connection to gRPC: HTTP/2 of 40 streams, each with 30 of the 31 MB that its message is said to have."""

    def __init__(self, key: str, came: Came) -> None:
        self._came = came
        self._left = {1 + 2 * number: 30_000_000 for number in range(40)}
        self._initial = self._window = 65_535
        self._windows: Counter[int] = Counter()
        path, kind = b"/cosyvoice.CosyVoice/Inference", b"application/grpc"
        self._head = b"\x83\x86\x04%c%s\x0f\x10%c%s\x01\x01x" % (len(path), path, len(kind), kind)
        for name, value in (("te", "trailers"), *([("x-api-key", key)] if key else [])):
            self._head += b"\0%c%s%c%s" % (len(name), name.encode(), len(value), value.encode())

    async def run(self, port: int) -> None:
        """Until the server ends the connection, or all calls."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(SENDER, 0))
        try:
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, b""))
            for stream in self._left:
                writer.write(frame(1, stream, self._head, flags=4))
                self._say(writer, stream, b"\0" + (31_000_000).to_bytes(4, "big"))
            while self._left:
                for stream in self._left:
                    while (size := self._allowed(stream)) > 0:
                        self._say(writer, stream, bytes(size))
                        self._left[stream] -= size
                        self._came["MB"] += size / 1e6  # type: ignore[assignment]
                    await writer.drain()
                head = await reader.readexactly(9)
                body = await reader.readexactly(int.from_bytes(head[:3], "big"))
                self._take(writer, head[3], head[4], int.from_bytes(head[5:], "big"), body)
        finally:
            writer.transport.abort()

    def _allowed(self, stream: int) -> int:
        return min(self._window, self._initial + self._windows[stream], self._left[stream], 16_384)

    def _say(self, writer: asyncio.StreamWriter, stream: int, data: bytes) -> None:
        writer.write(frame(0, stream, data))
        self._window -= len(data)
        self._windows[stream] -= len(data)

    def _take(self, writer: asyncio.StreamWriter, kind: int, flags: int, stream: int, body: bytes) -> None:
        if kind == 4 and not flags & 1:
            for place in range(0, len(body), 6):
                if body[place : place + 2] == b"\0\4":
                    self._initial = int.from_bytes(body[place + 2 : place + 6], "big")
            writer.write(frame(4, 0, b"", flags=1))
        elif kind == 6 and not flags & 1:
            writer.write(frame(6, 0, body, flags=1))
        elif kind == 8 and stream:
            self._windows[stream] += int.from_bytes(body, "big")
        elif kind == 8:
            self._window += int.from_bytes(body, "big")
        elif kind == 3 or (kind == 1 and flags & 1):
            self._came["calls ended"] += 1
            self._left.pop(stream, None)
        elif kind == 7:
            raise ConnectionAbortedError


def frame(kind: int, stream: int, body: bytes, flags: int = 0) -> bytes:
    """One of HTTP/2."""
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


@contextmanager
def attacker(name: str | None, place: Place, after_s: float) -> Iterator[Callable[[], dict[str, int]]]:
    """One (None: nobody) in a process of its own, who begins after so long; what is given ends him, and tells."""
    if name is None:
        yield dict
        return
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(name, place, there), daemon=True)
    process.start()
    there.close()

    def end() -> dict[str, int]:
        here.send("end")
        came: dict[str, int] = here.recv()
        process.join()
        return came

    try:
        here.recv()
        here.send(after_s)
        yield end
    finally:
        process.terminate()


def _run(name: str, place: Place, control: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    os.nice(19)  # an attacker has another machine: only his requests may slow the server down

    async def run() -> None:
        came: Came = Counter()
        control.send("here")
        await asyncio.sleep(control.recv())
        attacking = asyncio.ensure_future(ATTACKS[name](place, came))
        ending = asyncio.ensure_future(asyncio.to_thread(control.recv))
        await asyncio.wait([attacking, ending], return_when=asyncio.FIRST_COMPLETED)
        if attacking.done():
            came[f"it broke: {attacking.exception()!r}"] += 1
            await ending
        control.send({what: round(count) for what, count in came.items()})

    asyncio.run(run())
