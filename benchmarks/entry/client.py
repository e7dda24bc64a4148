"""`python -m benchmarks.entry.client LOAD`: listeners of a server in a separate process; LOAD: `Load` as JSON.

It prints `Heard` as JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
from websockets.asyncio.client import connect

from benchmarks.entry.pace import Listening, pieces, text_of
from vivavoce_grpc.protos import message

SPEECH_S = 10.0
CALLS_A_CHANNEL = 32
_PACKAGE = "vivavoce.v1"


@dataclass(frozen=True)
class Load:
    """The load of one process of listeners.

    at_s: its start on the machine's monotonic clock; arriving_s: seconds until all have connected; seconds: its length.
    """

    protocol: str
    host: str
    port: int
    listeners: int
    at_s: float
    arriving_s: float
    seconds: float
    seed: int


@dataclass
class Heard:
    """Results of all listeners. first, pieces: as in `Listening`; whole: number of complete speeches."""

    first: list[float] = field(default_factory=list)
    pieces: list[tuple[float, float, float]] = field(default_factory=list)
    whole: int = 0
    failures: Counter[str] = field(default_factory=Counter)


Speech = Callable[[str, int], AsyncGenerator[bytes, None]]
"""(text, number of the listener) → audio as it arrives; raises an error if the audio is incomplete."""


def http(load: Load) -> Speech:
    async def speak(text: str, _: int) -> AsyncGenerator[bytes, None]:
        body = json.dumps({"input": text, "response_format": "pcm"}).encode()
        head = f"POST /v1/audio/speech HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        head += "content-type: application/json\r\nconnection: close\r\n\r\n"
        reader, writer = await asyncio.open_connection(load.host, load.port, limit=1 << 20)
        try:
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            if not answer.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(answer.partition(b"\r\n")[0].decode())
            while size := int(await reader.readline(), 16):
                yield (await reader.readexactly(size + 2))[:-2]
        finally:
            writer.close()

    return speak


def websocket(load: Load) -> Speech:
    async def speak(text: str, _: int) -> AsyncGenerator[bytes, None]:
        address = f"ws://{load.host}:{load.port}/v1/audio/stream"
        async with connect(address, compression=None, proxy=None, open_timeout=30, ping_interval=None) as server:
            await server.send(json.dumps({"type": "text", "text": text}))
            await server.send(json.dumps({"type": "end"}))
            async for frame in server:
                if isinstance(frame, bytes):
                    yield frame
                elif (told := json.loads(frame))["type"] == "done":
                    return
                elif told["type"] == "error":
                    raise RuntimeError(told["error"]["code"])

    return speak


def over_grpc(load: Load) -> Speech:
    make, answer = message(f"{_PACKAGE}.SpeakRequest"), message(f"{_PACKAGE}.SpeakResponse")
    channels: dict[int, Any] = {}

    async def speak(text: str, listener: int) -> AsyncGenerator[bytes, None]:
        place = listener // CALLS_A_CHANNEL
        if place not in channels:
            options = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
            channels[place] = grpc.aio.insecure_channel(f"{load.host}:{load.port}", options)
        method = f"/{_PACKAGE}.Speech/Speak"
        call = channels[place].stream_stream(method, make.SerializeToString, answer.FromString)()
        try:
            await call.write(make(start={"text": text}))
            await call.done_writing()
            async for told in call:
                if told.WhichOneof("message") == "audio":
                    yield told.audio.audio
        finally:
            call.cancel()

    return speak


PROTOCOLS = {"http": http, "websocket": websocket, "grpc": over_grpc}


async def listen(load: Load) -> Heard:
    heard, loop, speech = Heard(), asyncio.get_running_loop(), PROTOCOLS[load.protocol](load)
    draw = random.Random(load.seed)

    async def one(listener: int, seconds: float) -> None:
        await asyncio.sleep(load.at_s + load.arriving_s * (listener + 0.5) / load.listeners - loop.time())
        while True:
            text = text_of(seconds)
            await hear(text, listener)
            seconds = SPEECH_S

    async def hear(text: str, listener: int) -> None:
        hearing = Listening(pieces(len(text)), loop.time())
        try:
            async with aclosing(speech(text, listener)) as audio:
                async for part in audio:
                    hearing.take(part, loop.time())
            heard.whole += hearing.is_whole
            heard.failures.update(["cut"] if not hearing.is_whole else [])
        except asyncio.CancelledError:
            raise
        except grpc.aio.AioRpcError as error:
            heard.failures[f"gRPC {error.code().name}: {(error.details() or '')[:60]}"] += 1
            await asyncio.sleep(1.0)
        except Exception as error:
            heard.failures[f"{type(error).__name__}: {str(error)[:60]}"] += 1
            await asyncio.sleep(1.0)
        finally:
            heard.first += hearing.first
            heard.pieces += hearing.pieces

    # Each listener's first speech has a random length, so that later speeches do not begin and end together.
    tasks = [asyncio.create_task(one(place, draw.uniform(1.0, SPEECH_S))) for place in range(load.listeners)]
    await asyncio.sleep(load.at_s + load.seconds - loop.time())
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return heard


def main() -> None:
    load = Load(**json.loads(sys.argv[1]))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    print(json.dumps(vars(asyncio.run(listen(load)))))


if __name__ == "__main__":
    main()
